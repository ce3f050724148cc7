// The thread team, the KV store and rotary embedding.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <set>
#include <stdexcept>
#include <vector>

#include "runtime/kv_store.h"
#include "runtime/ops.h"
#include "runtime/rope.h"
#include "runtime/team.h"
#include "tests/check.h"
#include "tests/random.h"

namespace ferrite {
namespace {

using test::Random;

void every_job_runs_on_every_thread() {
  for (int threads = 1; threads <= 4; ++threads) {
    Team team(threads);
    CHECK(team.size() == threads);
    std::vector<int> runs(static_cast<std::size_t>(threads));
    for (int job = 0; job < 1000; ++job)
      team.run([&](int thread) { ++runs[static_cast<std::size_t>(thread)]; });
    CHECK(std::all_of(runs.begin(), runs.end(), [](int count) { return count == 1000; }));
  }
}

// Each piece of an op is done once, and no thread leaves the op before all are: plain ints written by one
// thread and read by the others, so that one that leaves too early shows here or in a thread sanitizer.
class CountingOp final : public Op {
 public:
  CountingOp(int64_t total, int64_t chunk)
      : counts(static_cast<std::size_t>(total)), total_(total), chunk_(chunk) {}
  void run(const StepContext&, int) noexcept override {
    share(total_, chunk_, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++counts[static_cast<std::size_t>(i)];
    });
    for (const int count : counts) wrong += count != expected;
  }

  std::vector<int> counts;
  int expected = 0;
  std::atomic<int> wrong = 0;

 private:
  int64_t total_, chunk_;
};

void work_is_shared_and_finished_before_any_thread_goes_on() {
  const StepInput input = {};
  std::vector<Buffer> buffers;
  for (int threads = 1; threads <= 4; ++threads) {
    Team team(threads);
    const StepContext ctx = {input, portable_kernels(), buffers, nullptr, threads};
    std::vector<std::unique_ptr<CountingOp>> ops;
    for (const int64_t total : {0, 1, 2, 7, 64})
      for (const int64_t chunk : {1, 3, 100}) ops.push_back(std::make_unique<CountingOp>(total, chunk));
    for (int job = 1; job <= 100; ++job) {
      for (const auto& op : ops) {
        op->prepare(ctx);
        op->expected = job;
      }
      team.run([&](int thread) {
        for (const auto& op : ops) op->run(ctx, thread);
      });
    }
    for (const auto& op : ops) {
      CHECK(op->wrong == 0);
      CHECK(std::all_of(op->counts.begin(), op->counts.end(), [](int count) { return count == 100; }));
    }
  }
}

void an_idle_team_ends() {
  for (int i = 0; i < 100; ++i) {
    Team team(1 + i % 4);
    if (i % 3 == 0) continue;
    int sum = 0;
    team.run([&](int thread) {
      if (thread == 0) ++sum;
    });
    CHECK(sum == 1);
  }
}

void kv_cells_cover_a_block_without_overlap() {
  for (const bool half : {false, true}) {
    const KvShape shape = {3, 2, 48, 32, 5, half};
    const KvStore store(shape);
    const int64_t cell_bytes = 48 * 16 * (half ? 2 : 4);
    CHECK(store.element_bytes() == (half ? 2 : 4));
    CHECK(store.block_bytes() == 3 * 2 * 2 * 2 * cell_bytes);
    const uint8_t* first = store.k_cell(0, 0, 0, 0);
    std::set<int64_t> offsets;
    for (int64_t block = 0; block < shape.blocks; ++block)
      for (int64_t layer = 0; layer < shape.layers; ++layer)
        for (int64_t head = 0; head < shape.kv_heads; ++head)
          for (int64_t position = 0; position < shape.block_tokens; position += 16) {
            offsets.insert(store.k_cell(block, layer, head, position) - first);
            offsets.insert(store.v_cell(block, layer, head, position) - first);
            CHECK(store.k_cell(block, layer, head, position) ==
                  store.k_cell(block, layer, head, position + 15));
            CHECK(store.v_cell(block, layer, head, position) ==
                  store.v_cell(block, layer, head, position + 32 * 7));
          }
    // As many different cells as fit, each at a multiple of its size: all of the memory, once.
    CHECK(static_cast<int64_t>(offsets.size()) * cell_bytes == shape.blocks * store.block_bytes());
    CHECK(*offsets.begin() == 0 && *offsets.rbegin() == shape.blocks * store.block_bytes() - cell_bytes);
    CHECK(std::all_of(offsets.begin(), offsets.end(),
                      [&](int64_t offset) { return offset % cell_bytes == 0; }));
  }
}

void kv_blocks_are_copied_whole_and_alone() {
  KvStore store({2, 1, 16, 16, 3, true});
  const auto bytes = static_cast<std::size_t>(store.block_bytes());
  for (int64_t block = 0; block < 3; ++block)
    std::memset(store.k_cell(block, 0, 0, 0), static_cast<int>(block) + 1, bytes);
  store.copy_block(2, 0);
  const auto filled = [&](int64_t block, uint8_t value) {
    const uint8_t* p = store.k_cell(block, 0, 0, 0);
    return std::all_of(p, p + bytes, [&](uint8_t byte) { return byte == value; });
  };
  CHECK(filled(0, 3) && filled(1, 2) && filled(2, 3));
  CHECK_THROWS(store.copy_block(3, 0), std::out_of_range);
  CHECK_THROWS(store.copy_block(0, 3), std::out_of_range);
  CHECK_THROWS(store.copy_block(-1, 0), std::out_of_range);
  CHECK_THROWS(store.copy_block(0, -1), std::out_of_range);
}

void kv_shapes_that_cannot_be_are_refused() {
  const auto make = [](const KvShape& shape) -> int64_t {
    try {
      return KvStore(shape).block_bytes();
    } catch (const std::bad_alloc&) {
      return -1;
    }
  };
  CHECK(make({1, 1, 16, 16, 1, true}) == 1024);
  CHECK_THROWS(make({0, 1, 16, 16, 1, true}), std::invalid_argument);
  CHECK_THROWS(make({1, 0, 16, 16, 1, true}), std::invalid_argument);
  CHECK_THROWS(make({1, 1, 0, 16, 1, true}), std::invalid_argument);
  CHECK_THROWS(make({1, 1, 24, 16, 1, true}), std::invalid_argument);
  CHECK_THROWS(make({1, 1, 16, 0, 1, true}), std::invalid_argument);
  CHECK_THROWS(make({1, 1, 16, 24, 1, true}), std::invalid_argument);
  CHECK_THROWS(make({1, 1, 16, 16, 0, true}), std::invalid_argument);
  CHECK_THROWS(make({1, 1, 16, 16, -1, true}), std::invalid_argument);
  CHECK_THROWS(make({-1, -1, 16, 16, 1, true}), std::invalid_argument);
  CHECK_THROWS(make({1, -1, -16, 16, 1, true}), std::invalid_argument);
  CHECK_THROWS(make({1, 1, 16, 16, int64_t{1} << 54, true}), std::invalid_argument);
  CHECK_THROWS(make({int64_t{1} << 54, 1, 16, 16, 1, true}), std::invalid_argument);
}

double sincos_error(double x) {
  const SinCos own = sincos(x);
  return std::max(std::abs(own.sin - std::sin(x)), std::abs(own.cos - std::cos(x)));
}

void angles_are_those_of_the_c_library() {
  double error = 0.0;
  for (const double frequency : {1.0, 0.8659643233600653, 0.5, 0.1})
    for (int position = 0; position <= 131072; ++position)
      error = std::max(error, sincos_error(position * frequency));
  for (const double base : {10000.0, 500000.0, 1000000.0})
    for (int pair = 0; pair < 64; ++pair) {
      const double frequency = std::pow(base, -pair / 64.0);
      for (int position = 0; position <= 131072; position += 61)
        error = std::max(error, sincos_error(position * frequency));
    }
  // Where the quadrant changes.
  for (int n = 0; n < 100000; n += 7) {
    const double border = (n + 0.5) * 1.57079632679489661923;
    for (const double x : {border, std::nextafter(border, 0.0), std::nextafter(border, 1e9)})
      error = std::max(error, sincos_error(x));
  }
  CHECK(error <= 1e-15);
  CHECK(sincos(0.0).sin == 0.0 && sincos(0.0).cos == 1.0);
}

void heads_rotate_in_the_order_of_their_kind() {
  Random random(1);
  for (const int64_t pairs : {1, 3, 8, 20})
    for (const RopeKind kind : {RopeKind::Adjacent, RopeKind::Halves}) {
      // Two more columns than are rotated must stay.
      const auto n = static_cast<std::size_t>(pairs);
      const std::vector<float> before = test::random_floats(random, 2 * pairs + 2, 3.0F);
      std::vector<float> head = before, cos(n), sin(n);
      for (std::size_t i = 0; i < n; ++i) {
        cos[i] = std::cos(static_cast<float>(i) + 0.3F);
        sin[i] = std::sin(static_cast<float>(i) + 0.3F);
      }
      rotate(kind, head.data(), cos.data(), sin.data(), pairs);
      bool right = head[2 * n] == before[2 * n] && head[2 * n + 1] == before[2 * n + 1];
      for (std::size_t i = 0; i < n; ++i) {
        const std::size_t a = kind == RopeKind::Adjacent ? 2 * i : i,
                          b = kind == RopeKind::Adjacent ? 2 * i + 1 : i + n;
        const double c = double{cos[i]}, s = double{sin[i]}, x = double{before[a]}, y = double{before[b]};
        right = right && std::abs(double{head[a]} - (x * c - y * s)) < 1e-6 &&
                std::abs(double{head[b]} - (x * s + y * c)) < 1e-6;
      }
      CHECK(right);
    }
}

}  // namespace
}  // namespace ferrite

int main() {
  using namespace ferrite;
  every_job_runs_on_every_thread();
  work_is_shared_and_finished_before_any_thread_goes_on();
  an_idle_team_ends();
  kv_cells_cover_a_block_without_overlap();
  kv_blocks_are_copied_whole_and_alone();
  kv_shapes_that_cannot_be_are_refused();
  angles_are_those_of_the_c_library();
  heads_rotate_in_the_order_of_their_kind();
  return test::tally.finish();
}
