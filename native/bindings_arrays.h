// Arrays that Python hands over: of one dimension, in one piece, read only.
#pragma once

#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>

namespace ferrite {

template <class T>
using Array = nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Bytes = Array<uint8_t>;
using Ints = Array<int32_t>;
using Floats = Array<float>;

template <class T>
std::span<const T> span(const Array<T>& array) {
  return {array.data(), array.size()};
}

}  // namespace ferrite
