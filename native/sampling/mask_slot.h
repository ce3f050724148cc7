// The tokens that may come next in one request: a bit set that another thread fills while the model runs, and
// the handshake by which the sampler waits for it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace ferrite {

// One writer and one reader take turns: begin(), the writer fills words(), publish() or fail(), wait(),
// clear(). Every call returns at once but wait(), which is bounded.
class MaskSlot {
 public:
  enum class State : uint8_t {
    Empty,    // nothing to read: the last mask has been used
    Pending,  // being filled
    Ready,
    Failed,
  };

  // Throws std::invalid_argument unless `vocab_size` is positive.
  explicit MaskSlot(int32_t vocab_size);
  MaskSlot(const MaskSlot&) = delete;
  MaskSlot& operator=(const MaskSlot&) = delete;

  int32_t vocab_size() const { return vocab_size_; }
  State state() const;

  // [ceil(vocab_size / 32)] Bit `i % 32` of word `i / 32` allows token i; bits past the vocabulary mean
  // nothing. Written between begin() and publish(), read while the slot is ready.
  std::span<uint32_t> words() { return words_; }
  bool allows(int32_t token) const {
    return (words_[static_cast<size_t>(token) / 32] >> (static_cast<uint32_t>(token) % 32) & 1U) != 0;
  }

  // Throws std::logic_error while the slot is pending.
  void begin();
  // What is not pending any more stays as it is: a mask that comes too late is not used.
  void publish() { settle(State::Ready); }
  void fail() { settle(State::Failed); }
  // The mask has been used.
  void clear();

  // Waits while the slot is pending; true when it is ready. A slot that stays pending for a minute has lost
  // its writer and fails.
  bool wait();

 private:
  void settle(State state);

  const int32_t vocab_size_;
  std::vector<uint32_t> words_;
  mutable std::mutex mutex_;
  std::condition_variable settled_;
  State state_ = State::Empty;
};

}  // namespace ferrite
