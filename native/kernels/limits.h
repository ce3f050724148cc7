// What the machine can do at most: int8 dot products from registers, with nothing to load.
#pragma once

#include <utility>

#include "kernels/kernels.h"

namespace ferrite {

template <class S>
int64_t dot_products(int64_t rounds) {
  constexpr int kChains = 4;  // enough to cover the latency of an add, few enough for sixteen registers
  using Dot = typename S::template Dot<4, 0, 8>;
  Dot dots[kChains];
  typename S::B w = S::broadcast4(reinterpret_cast<const int8_t*>("\1\2\3\4"));
  typename S::B x[kChains];
  for (auto& each : x) each = S::broadcast4(reinterpret_cast<const int8_t*>("\5\6\7\10"));
  for (int64_t round = 0; round < rounds; ++round) {
    // Unequal as far as the compiler knows, so that no two chains are one.
    for (auto& each : x) S::opaque(each);
    [&]<int... G>(std::integer_sequence<int, G...>) {
      (
          [&] {
            S::opaque(w);
            for (int i = 0; i < kChains; ++i) {
              dots[i].template add<G>(w, x[i]);
              dots[i].pin();
            }
          }(),
          ...);
    }(std::make_integer_sequence<int, 8>());
  }
  for (auto& dot : dots) {
    float lanes[S::kLanes];
    S::store(lanes, S::to_float(dot.total(typename Dot::Excess())));
    asm volatile("" : : "m"(lanes));
  }
  return rounds * 8 * kChains * S::kLanes * 4;
}

}  // namespace ferrite
