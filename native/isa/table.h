// Fills a KernelTable from the kernel templates and one traits struct.
#pragma once

#include "kernels/attention.h"
#include "kernels/kernels.h"
#include "kernels/limits.h"
#include "kernels/matmul.h"
#include "kernels/rows.h"
#include "quant/q4_0.h"
#include "quant/q4_1.h"
#include "quant/q4_k.h"
#include "quant/q5_0.h"
#include "quant/q5_1.h"
#include "quant/q5_k.h"
#include "quant/q6_k.h"
#include "quant/q8_0.h"

namespace ferrite::isa {

// In the order of quant::Type and KvType.
template <class S>
constexpr KernelTable make_table(const char* name) {
  return {
      name,
      {
          matmul_floats<S, F32Element>,
          matmul_floats<S, F16Element>,
          matmul_floats<S, BF16Element>,
          matmul_quantised<S, quant::Q4_0>,
          matmul_quantised<S, quant::Q4_1>,
          matmul_quantised<S, quant::Q5_0>,
          matmul_quantised<S, quant::Q5_1>,
          matmul_quantised<S, quant::Q8_0>,
          matmul_quantised<S, quant::Q4_K>,
          matmul_quantised<S, quant::Q5_K>,
          matmul_quantised<S, quant::Q6_K>,
      },
      quantize_row<S>,
      rms_norm<S>,
      gate<S>,
      add_row<S>,
      divide_row<S>,
      rotate<S>,
      peak<S>,
      {attend<S, HalfCell>, attend<S, FloatCell>, attend<S, Q8Cell>},
      store_f16<S>,
      store_q8<S>,
      dot_products<S>,
      join<S>,
  };
}

}  // namespace ferrite::isa
