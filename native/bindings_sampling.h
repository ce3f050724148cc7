#pragma once

#include <nanobind/nanobind.h>

namespace ferrite {

// What chooses tokens of logits, or tells how likely they are.
void bind_sampling(nanobind::module_& m);

}  // namespace ferrite
