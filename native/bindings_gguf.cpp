#include "bindings_gguf.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>

#include <stdexcept>

#include "gguf/strings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ferrite {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

gguf::StringWalk walk(const Bytes& file, int64_t offset) {
  return {{file.data(), file.size()}, offset};
}

// How many strings there are, up to `count` of them, and where the next one begins.
std::pair<int64_t, int64_t> walk_strings(const Bytes& file, int64_t count, int64_t offset, uint64_t most) {
  gguf::StringWalk at = walk(file, offset);
  int64_t index = 0;
  for (; index < count; ++index) {
    const std::optional<uint64_t> length = at.length();
    if (!length || *length > most) break;
    at.step(*length);
  }
  return {index, at.offset()};
}

nb::list read_strings(const Bytes& file, int64_t count, int64_t offset) {
  gguf::StringWalk at = walk(file, offset);
  nb::list texts;
  for (int64_t index = 0; index < count; ++index) {
    const std::optional<std::string_view> text = at.text();
    if (!text) throw std::invalid_argument("read_strings: a string is not inside the file");
    PyObject* decoded = PyUnicode_DecodeUTF8(text->data(), static_cast<Py_ssize_t>(text->size()), nullptr);
    if (decoded == nullptr) throw nb::python_error();
    texts.append(nb::steal(decoded));
    at.step(text->size());
  }
  return texts;
}

}  // namespace

void bind_gguf(nb::module_& m) {
  m.def("walk_strings", walk_strings, "file"_a, "count"_a, "offset"_a, "most"_a);
  m.def("read_strings", read_strings, "file"_a, "count"_a, "offset"_a);
}

}  // namespace ferrite
