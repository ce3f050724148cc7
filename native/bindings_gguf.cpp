#include "bindings_gguf.h"

#include <nanobind/stl/pair.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <stdexcept>

#include "bindings_arrays.h"
#include "gguf/strings.h"
#include "gguf/text_ids.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ferrite {
namespace {

using Numbers = Array<uint32_t>;
using gguf::TextIds;

gguf::StringWalk walk(const Bytes& file, int64_t offset) {
  return {span(file), offset};
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

template <typename Take>
void each_string(const Bytes& file, int64_t count, int64_t offset, Take take) {
  gguf::StringWalk at = walk(file, offset);
  for (int64_t index = 0; index < count; ++index) {
    const std::optional<std::string_view> text = at.text();
    if (!text) throw std::invalid_argument("pack_strings: a string is not inside the file");
    take(*text);
    at.step(text->size());
  }
}

nb::bytes new_bytes(std::size_t size) {
  PyObject* made = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
  if (made == nullptr) throw nb::python_error();
  return nb::steal<nb::bytes>(made);
}

// The bytes of all strings, and as uint32 where each begins in them; the last number is their end.
std::pair<nb::bytes, nb::bytes> pack_strings(const Bytes& file, int64_t count, int64_t offset) {
  std::size_t size = 0;
  each_string(file, count, offset, [&](std::string_view text) { size += text.size(); });
  if (size > UINT32_MAX) throw std::overflow_error("pack_strings: the strings hold more than 4 GiB");
  nb::bytes data = new_bytes(size);
  nb::bytes offsets = new_bytes((static_cast<std::size_t>(count) + 1) * sizeof(uint32_t));
  char* to = PyBytes_AsString(data.ptr());
  char* number = PyBytes_AsString(offsets.ptr());
  uint32_t end = 0;
  std::memcpy(number, &end, sizeof end);
  each_string(file, count, offset, [&](std::string_view text) {
    std::copy(text.begin(), text.end(), to + end);
    end += static_cast<uint32_t>(text.size());
    number += sizeof end;
    std::memcpy(number, &end, sizeof end);
  });
  return {data, offsets};
}

nb::object new_text(std::string_view text) {
  PyObject* made = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr);
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

// Text `i` is what `data` holds from `offsets[i]` to `offsets[i + 1]`.
template <typename Take>
void each_text(const nb::bytes& data, const Numbers& offsets, Take take) {
  for (std::size_t index = 0; index + 1 < offsets.size(); ++index) {
    const uint32_t begin = offsets.data()[index], end = offsets.data()[index + 1];
    if (begin > end || end > data.size()) throw std::invalid_argument("a text is not inside the data");
    take(std::string_view(data.c_str() + begin, end - begin));
  }
}

nb::list unpack_texts(const nb::bytes& data, const Numbers& offsets) {
  nb::list texts;
  each_text(data, offsets, [&](std::string_view text) { texts.append(new_text(text)); });
  return texts;
}

// Each text as the two around its only space.
nb::list unpack_pairs(const nb::bytes& data, const Numbers& offsets) {
  nb::list pairs;
  each_text(data, offsets, [&](std::string_view text) {
    const std::size_t space = text.find(' ');
    if (space == text.npos || text.find(' ', space + 1) != text.npos)
      throw std::invalid_argument("a text has no space or several");
    pairs.append(nb::make_tuple(new_text(text.substr(0, space)), new_text(text.substr(space + 1))));
  });
  return pairs;
}

TextIds::Key random_key() {
  std::random_device source;
  TextIds::Key key;
  for (uint64_t& word : key) word = uint64_t{source()} << 32 | source();
  return key;
}

std::optional<uint32_t> find(const TextIds& ids, const nb::str& text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) {
    // A lone surrogate, which no text of a file has.
    PyErr_Clear();
    return std::nullopt;
  }
  return ids.find({data, static_cast<std::size_t>(size)});
}

nb::object get(const TextIds& ids, const nb::str& text) {
  const std::optional<uint32_t> id = find(ids, text);
  return id ? nb::cast(*id) : nb::none();
}

uint32_t at(const TextIds& ids, const nb::str& text) {
  const std::optional<uint32_t> id = find(ids, text);
  if (!id) {
    PyErr_SetObject(PyExc_KeyError, text.ptr());
    throw nb::python_error();
  }
  return *id;
}

}  // namespace

void bind_gguf(nb::module_& m) {
  m.def("walk_strings", walk_strings, "file"_a, "count"_a, "offset"_a, "most"_a);
  m.def("pack_strings", pack_strings, "file"_a, "count"_a, "offset"_a);
  m.def("unpack_texts", unpack_texts, "data"_a, "offsets"_a);
  m.def("unpack_pairs", unpack_pairs, "data"_a, "offsets"_a);

  nb::class_<TextIds>(m, "TextIds")
      .def(
          "__init__",
          [](TextIds* self, const nb::bytes& data, const Numbers& offsets) {
            new (self) TextIds({data.c_str(), data.size()}, span(offsets), random_key());
          },
          "data"_a, "offsets"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
      .def(
          "without", [](const TextIds& ids, const Numbers& fewer) { return ids.without(span(fewer)); },
          "ids"_a, nb::keep_alive<0, 1>())
      .def("get", get, "text"_a)
      .def("__getitem__", at, "text"_a)
      .def("__contains__",
           [](const TextIds& ids, const nb::str& text) { return find(ids, text).has_value(); })
      .def("__len__", &TextIds::size);
}

}  // namespace ferrite
