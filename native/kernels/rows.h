// Row-wise kernels: quantisation of activations, RMS norm, gated activation, addition, float16 stores.
//
// Sums over a row are sixteen chains (lane l takes columns l, l + 16, ...) joined by one fixed tree.
#pragma once

#include <cstring>

#include "isa/pairs.h"
#include "kernels/exp.h"
#include "kernels/kernels.h"

namespace ferrite {

// Sixteen lanes as kParts registers.
template <class S>
struct Wide {
  static constexpr int kParts = 16 / S::kLanes;
  typename S::F v[kParts];

  static Wide set1(float x) {
    Wide r;
    for (auto& part : r.v) part = S::set1(x);
    return r;
  }
  static Wide load(const float* p) {
    Wide r;
    for (int i = 0; i < kParts; ++i) r.v[i] = S::load(p + i * S::kLanes);
    return r;
  }
  void store(float* p) const {
    for (int i = 0; i < kParts; ++i) S::store(p + i * S::kLanes, v[i]);
  }
};

// ((l0 + l8) + (l4 + l12)) + ... : halves are added until one lane is left.
template <class S>
float sum_lanes(const Wide<S>& w) {
  float lanes[16];
  w.store(lanes);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

template <class S>
float max_lanes(const Wide<S>& w) {
  float lanes[16];
  w.store(lanes);
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
  return lanes[0];
}

inline constexpr int32_t kInfinityBits = 0x7F800000;

// The bits of max|x|. Magnitudes of floats order as their bits do, and a NaN is above infinity, so none is
// lost. Internal linkage, since each instruction set compiles its own.
static inline int32_t largest_magnitude(const float* x, int64_t count) {
  int32_t bits = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t magnitude = __builtin_bit_cast(int32_t, x[i]) & 0x7FFFFFFF;
    bits = magnitude > bits ? magnitude : bits;
  }
  return bits;
}

// q = round(x * 127 / max|x|), scale = max|x| / 127 for each 32 columns; the residual term is what rounding
// left over, in units 254 times finer. A block that is not finite gets a
// NaN scale, so the fault shows in the logits; one too small to invert counts as zero.
template <class S>
void quantize_row(const float* x, int64_t cols, const QuantRows& rows) {
  const QuantRows out = rows;  // what is stored could change `rows`, as far as the compiler knows
  constexpr float kSmallest = 1e-30F;
  const bool two_terms = out.residual.q != nullptr;
  for (int64_t block = 0; block < cols / 32; ++block) {
    const float* in = x + 32 * block;
    const int32_t bits = largest_magnitude(in, 32);
    const float largest = __builtin_bit_cast(float, bits);
    int8_t* q = out.value.q + 32 * block;
    int8_t* residual = two_terms ? out.residual.q + 32 * block : nullptr;
    if (bits >= kInfinityBits || largest < kSmallest) {
      std::memset(q, 0, 32);
      isa::sum_pairs(q, out.value.pairs + 2 * block);
      if (two_terms) {
        std::memset(residual, 0, 32);
        isa::sum_pairs(residual, out.residual.pairs + 2 * block);
      }
      out.scale[block] = out.sum[block] = bits >= kInfinityBits ? __builtin_nanf("") : 0.0F;
      continue;
    }
    constexpr int kRegisters = 32 / S::kLanes;
    const typename S::F inverse = S::set1(127.0F / largest);
    typename S::F scaled[kRegisters];
    typename S::I integers[kRegisters];
    for (int i = 0; i < kRegisters; ++i) {
      scaled[i] = S::mul(S::load(in + i * S::kLanes), inverse);
      integers[i] = S::round(scaled[i]);
    }
    S::store_i8(q, integers);
    if (two_terms) {
      for (int i = 0; i < kRegisters; ++i) {
        const typename S::F rest = S::sub(scaled[i], S::to_float(integers[i]));
        integers[i] = S::round(S::mul(rest, S::set1(static_cast<float>(kResidual))));
      }
      S::store_i8(residual, integers);
    }
    int32_t sum = isa::sum_pairs(q, out.value.pairs + 2 * block);
    float scale = largest / 127.0F;
    if (two_terms) {
      sum = kResidual * sum + isa::sum_pairs(residual, out.residual.pairs + 2 * block);
      scale = largest / (127.0F * static_cast<float>(kResidual));
    }
    out.scale[block] = scale;
    out.sum[block] = scale * static_cast<float>(sum);
  }
}

template <class S>
void rms_norm(const NormArgs& a) {
  Wide<S> squares = Wide<S>::set1(0.0F);
  for (int64_t c = 0; c < a.cols; c += 16)
    for (int p = 0; p < Wide<S>::kParts; ++p) {
      const typename S::F x = S::load(a.x + c + p * S::kLanes);
      squares.v[p] = S::fma(x, x, squares.v[p]);
    }
  const float mean = sum_lanes(squares) / static_cast<float>(a.cols);
  const typename S::F scale = S::set1(1.0F / __builtin_sqrtf(mean + a.eps));
  for (int64_t c = 0; c < a.cols; c += S::kLanes)
    S::store(a.y + c, S::mul(S::mul(S::load(a.x + c), scale), S::load(a.weight + c)));
}

// x / (1 + e^-x), and Gemma's tanh form of GELU, 0.5 x (1 + tanh u) = x / (1 + e^-2u) with
// u = sqrt(2 / pi) (x + 0.044715 x^3).
template <class S, int Count>
[[gnu::always_inline]] inline void gate_columns(GateKind kind, float* gate, const float* up) {
  using F = typename S::F;
  constexpr int kRegisters = Count / S::kLanes;
  F exponent[kRegisters];
  for (int i = 0; i < kRegisters; ++i) {
    const F x = S::load(gate + i * S::kLanes);
    exponent[i] = S::sub(S::zero(), x);
    if (kind == GateKind::GeluTanh) {
      const F cube = S::mul(S::mul(x, x), x);
      const F inner = S::add(x, S::mul(S::set1(0.044715F), cube));
      exponent[i] = S::mul(S::set1(-1.5957691216F), inner);
    }
  }
  exp<S, kRegisters>(exponent);
  for (int i = 0; i < kRegisters; ++i) {
    float* at = gate + i * S::kLanes;
    const F activated = S::div(S::load(at), S::add(S::set1(1.0F), exponent[i]));
    S::store(at, S::mul(activated, S::load(up + i * S::kLanes)));
  }
}

template <class S>
void gate(GateKind kind, float* gate, const float* up, int64_t cols) {
  int64_t c = 0;
  for (; c + 32 <= cols; c += 32) gate_columns<S, 32>(kind, gate + c, up + c);
  for (; c < cols; c += S::kLanes) gate_columns<S, S::kLanes>(kind, gate + c, up + c);
}

template <class S>
void add_row(float* y, const float* x, int64_t cols) {
  for (int64_t c = 0; c < cols; c += S::kLanes) S::store(y + c, S::add(S::load(y + c), S::load(x + c)));
}

template <class S>
void divide_row(float* y, const float* x, float divisor, int64_t cols) {
  for (int64_t c = 0; c < cols; c += S::kLanes) S::store(y + c, S::div(S::load(x + c), S::set1(divisor)));
}

// Columns lie in pairs as the kind has it, so the compiler knows best how to take them apart.
template <class S, int64_t Step>
[[gnu::always_inline]] inline void rotate_pairs(const RotateArgs& a, int64_t distance) {
  float* __restrict head = a.head;
  const float* __restrict cos = a.cos;
  const float* __restrict sin = a.sin;
  const float scale = a.scale;
  for (int64_t i = 0; i < a.pairs; ++i) {
    const float x = head[i * Step], y = head[i * Step + distance];
    head[i * Step] = (x * cos[i] - y * sin[i]) * scale;
    head[i * Step + distance] = (x * sin[i] + y * cos[i]) * scale;
  }
}

template <class S>
void rotate(const RotateArgs& a) {
  if (a.kind == RopeKind::Adjacent) {
    rotate_pairs<S, 2>(a, 1);
  } else {
    rotate_pairs<S, 1>(a, a.pairs);
  }
  for (int64_t d = 2 * a.pairs; d < a.head_dim; ++d) a.head[d] *= a.scale;
}

// x - x is 0 for a finite x and NaN otherwise, and NaN survives addition; max() may lose it.
template <class S>
Peak peak(const float* x, int64_t count) {
  Wide<S> largest = Wide<S>::set1(-__builtin_inff());
  Wide<S> poison = Wide<S>::set1(0.0F);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16)
    for (int p = 0; p < Wide<S>::kParts; ++p) {
      const typename S::F value = S::load(x + i + p * S::kLanes);
      largest.v[p] = S::max(largest.v[p], value);
      poison.v[p] = S::add(poison.v[p], S::sub(value, value));
    }
  Peak result = {max_lanes(largest), sum_lanes(poison) == 0.0F};
  for (; i < count; ++i) {
    result.value = result.value > x[i] ? result.value : x[i];
    result.finite = result.finite && x[i] - x[i] == 0.0F;
  }
  return result;
}

template <class S>
void store_f16(uint16_t* out, const float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += S::kLanes) S::store_f16(out + i, S::load(x + i));
}

// The float16 next to `x`, not below it; x must not be negative.
template <class S>
uint16_t half_not_below(float x) {
  uint16_t half[S::kLanes];
  float nearest[S::kLanes];
  S::store_f16(half, S::set1(x));
  S::store(nearest, S::load_f16(half));
  return nearest[0] < x ? static_cast<uint16_t>(half[0] + 1) : half[0];
}

// scale = max|x| / 127 as a float16, rounded up so that no quotient passes 127; q = round(x / scale), ties to
// even. A group that is not finite, or whose scale no float16 holds, gets a NaN scale: the fault shows in
// every score and output that reads it.
template <class S>
void store_q8(int8_t* q, uint16_t* scales, const float* x, int64_t count) {
  constexpr uint16_t kHalfInfinity = 0x7C00, kHalfNaN = 0x7E00;
  for (int64_t group = 0; group < count / kKvGroup; ++group, q += kKvGroup, x += kKvGroup) {
    const int32_t bits = largest_magnitude(x, kKvGroup);
    const uint16_t scale =
        bits < kInfinityBits ? half_not_below<S>(__builtin_bit_cast(float, bits) / 127.0F) : kHalfNaN;
    scales[group] = scale < kHalfInfinity ? scale : kHalfNaN;
    if (scale == 0 || scale >= kHalfInfinity) {
      for (int64_t i = 0; i < kKvGroup; ++i) q[i] = 0;
      continue;
    }
    uint16_t same[S::kLanes];
    for (uint16_t& each : same) each = scale;
    const typename S::F divisor = S::load_f16(same);
    static_assert(kKvGroup == 32);
    typename S::I integers[32 / S::kLanes];
    for (int i = 0; i < 32 / S::kLanes; ++i)
      integers[i] = S::round(S::div(S::load(x + i * S::kLanes), divisor));
    S::store_i8(q, integers);
  }
}

}  // namespace ferrite
