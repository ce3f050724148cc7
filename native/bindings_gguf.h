#pragma once

#include <nanobind/nanobind.h>

namespace ferrite {

// Reading of vocabularies, which have hundreds of thousands of strings.
void bind_gguf(nanobind::module_& m);

}  // namespace ferrite
