// The weight types the kernels know, by their number in GGUF files.
#pragma once

#include <cstdint>

namespace ferrite::quant {

enum class Type : int32_t { F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K };
inline constexpr int kTypeCount = 11;

// Sizes and load-time functions of one type. All functions are plain C++ and run once per weight.
struct TypeInfo {
  Type type;
  int32_t ggml_type;
  const char* name;
  bool quantised;       // takes int8 activations; otherwise float32
  int64_t block_cols;   // columns in a file block; a row holds a whole number of them
  int64_t block_bytes;  // bytes of a file block
  int64_t unit_bytes;   // bytes of the 16-row unit that packs it
  // Pack `units` blocks of up to 16 rows, `row_bytes` apart, into one tile; rows beyond `rows` become zeros.
  void (*pack)(const uint8_t* file, int64_t row_bytes, int rows, int64_t units, uint8_t* tile);
  // Read row `row` of a tile back as float32.
  void (*unpack_row)(const uint8_t* tile, int row, int64_t units, float* out);
};

// By GGUF type number; null for a type that is not supported.
const TypeInfo* find_type(int32_t ggml_type);
const TypeInfo& info(Type type);

}  // namespace ferrite::quant
