#include "runtime/weight.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>

namespace ferrite {
namespace {

// File bytes that one thread packs at a time: enough to make advice on their pages cheap beside the packing.
constexpr int64_t kStripeBytes = 1 << 20;

constexpr int64_t kCacheLine = 64;

// Consecutive tiles of one matrix.
struct Stripe {
  const Weight* weight;
  const FileMatrix* matrix;
  int64_t tile_begin, tile_end;

  int64_t row_bytes() const { return static_cast<int64_t>(matrix->data.size()) / matrix->rows; }
  std::span<const uint8_t> file() const {
    const int64_t begin = tile_begin * 16, end = std::min(tile_end * 16, matrix->rows);
    return matrix->data.subspan(static_cast<std::size_t>(begin * row_bytes()),
                                static_cast<std::size_t>((end - begin) * row_bytes()));
  }
};

std::vector<Stripe> cut(std::span<const Weight> weights, std::span<const FileMatrix> matrices) {
  std::vector<Stripe> stripes;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    Stripe stripe = {&weights[i], &matrices[i], 0, 0};
    const int64_t tiles = std::max<int64_t>(1, kStripeBytes / (16 * stripe.row_bytes()));
    for (; stripe.tile_begin < weights[i].tiles(); stripe.tile_begin = stripe.tile_end) {
      stripe.tile_end = std::min(stripe.tile_begin + tiles, weights[i].tiles());
      stripes.push_back(stripe);
    }
  }
  return stripes;
}

void pack_stripe(const Stripe& stripe, uint8_t* tiles) {
  const Weight& weight = *stripe.weight;
  const int64_t row_bytes = stripe.row_bytes(), units = weight.cols() / weight.type().block_cols;
  for (int64_t tile = stripe.tile_begin; tile < stripe.tile_end; ++tile) {
    const int64_t row = tile * 16;
    const int present = static_cast<int>(std::min<int64_t>(weight.rows() - row, 16));
    weight.type().pack(stripe.matrix->data.data() + row * row_bytes, row_bytes, present, units,
                       tiles + tile * weight.tile_bytes());
  }
}

}  // namespace

Weight::Weight(const FileMatrix& matrix)
    : type_(quant::find_type(matrix.ggml_type)), rows_(matrix.rows), cols_(matrix.cols) {
  if (type_ == nullptr)
    throw std::invalid_argument("weight type " + std::to_string(matrix.ggml_type) + " is not supported");
  if (rows_ < 1 || cols_ < 1 || cols_ % type_->block_cols != 0)
    throw std::invalid_argument("shape does not fit the blocks of " + std::string(type_->name));
  const int64_t units = cols_ / type_->block_cols;
  const auto size = static_cast<int64_t>(matrix.data.size());
  // Divisions, because the product of a hostile shape may not fit.
  const bool row_fits = units <= size / type_->block_bytes;
  const int64_t row_bytes = row_fits ? units * type_->block_bytes : 0;
  if (!row_fits || size / row_bytes != rows_ || size % row_bytes != 0)
    throw std::invalid_argument("size of the data does not match its shape");
  tile_bytes_ = units * type_->unit_bytes;
}

std::vector<Weight> Weight::pack(std::span<const FileMatrix> matrices, Source source, Team& team) {
  std::vector<Weight> weights;
  int64_t bytes = 0;
  for (const FileMatrix& matrix : matrices) {
    weights.push_back(Weight(matrix));
    weights.back().offset_ = bytes;
    bytes += (weights.back().bytes() + kCacheLine - 1) / kCacheLine * kCacheLine;
  }
  const auto memory = std::make_shared<MappedMemory>(static_cast<std::size_t>(bytes));
  for (Weight& weight : weights) weight.memory_ = memory;

  const std::vector<Stripe> stripes = cut(weights, matrices);
  std::atomic<std::size_t> next = 0;
  team.run([&](int) {
    for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < stripes.size();) {
      pack_stripe(stripes[i], memory->data() + stripes[i].weight->offset_);
      if (source == Source::MappedFile) drop_pages(stripes[i].file());
    }
  });
  return weights;
}

Weight Weight::pack(std::span<const uint8_t> file, int32_t ggml_type, int64_t rows, int64_t cols,
                    Team& team) {
  const FileMatrix matrix = {file, ggml_type, rows, cols};
  return std::move(pack({&matrix, 1}, Source::Memory, team).front());
}

void Weight::read_row(int64_t row, float* out) const {
  type_->unpack_row(tile(row / 16), static_cast<int>(row % 16), cols_ / type_->block_cols, out);
}

}  // namespace ferrite
