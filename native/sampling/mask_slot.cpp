#include "sampling/mask_slot.h"

#include <chrono>
#include <stdexcept>
#include <string>

namespace ferrite {
namespace {

// Far more than the slowest mask on a busy machine, whose work is bounded by the grammar's limits.
constexpr std::chrono::seconds kPatience(60);

std::size_t words_of(int32_t vocab_size) {
  if (vocab_size < 1) {
    throw std::invalid_argument("vocab_size: " + std::to_string(vocab_size) + " is not positive");
  }
  return (static_cast<std::size_t>(vocab_size) + 31) / 32;
}

}  // namespace

MaskSlot::MaskSlot(int32_t vocab_size) : vocab_size_(vocab_size), words_(words_of(vocab_size), 0) {}

MaskSlot::State MaskSlot::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void MaskSlot::begin() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::Pending) throw std::logic_error("a mask that is being filled cannot be begun again");
  state_ = State::Pending;
}

void MaskSlot::clear() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::Ready) state_ = State::Empty;
}

void MaskSlot::settle(State state) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::Pending) return;
    state_ = state;
  }
  settled_.notify_all();
}

bool MaskSlot::wait() {
  std::unique_lock lock(mutex_);
  if (!settled_.wait_for(lock, kPatience, [this] { return state_ != State::Pending; }))
    state_ = State::Failed;
  return state_ == State::Ready;
}

}  // namespace ferrite
