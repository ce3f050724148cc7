#include "gguf/text_ids.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

namespace ferrite::gguf {
namespace {

constexpr uint32_t kEmpty = UINT32_MAX;

struct SipState {
  uint64_t a, b, c, d;

  void round() {
    a += b;
    b = std::rotl(b, 13) ^ a;
    a = std::rotl(a, 32);
    c += d;
    d = std::rotl(d, 16) ^ c;
    a += d;
    d = std::rotl(d, 21) ^ a;
    c += b;
    b = std::rotl(b, 17) ^ c;
    c = std::rotl(c, 32);
  }

  void add(uint64_t word) {
    d ^= word;
    round();
    a ^= word;
  }
};

}  // namespace

uint64_t sip_hash(std::string_view text, const TextIds::Key& key) {
  SipState state{key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261,
                 key[1] ^ 0x7465646279746573};
  const uint64_t length = text.size();
  uint64_t word;
  for (; text.size() >= sizeof word; text.remove_prefix(sizeof word)) {
    std::memcpy(&word, text.data(), sizeof word);
    state.add(word);
  }
  word = 0;
  if (!text.empty()) std::memcpy(&word, text.data(), text.size());
  state.add(word | length << 56);
  state.c ^= 0xff;
  for (int round = 0; round < 3; ++round) state.round();
  return state.a ^ state.b ^ state.c ^ state.d;
}

TextIds::TextIds(std::string_view data, std::span<const uint32_t> offsets, Key key)
    : data_(data), offsets_(offsets), key_(key) {
  if (offsets.empty() || offsets.size() > kEmpty || offsets.back() > data.size() ||
      !std::is_sorted(offsets.begin(), offsets.end())) {
    throw std::invalid_argument("TextIds: the offsets are not those of texts");
  }
  const uint32_t count = static_cast<uint32_t>(offsets.size() - 1);
  auto slots = std::make_shared<std::vector<uint32_t>>(std::bit_ceil(std::size_t{count} * 2 + 1), kEmpty);
  for (uint32_t id = 0; id < count; ++id) {
    uint32_t& slot = (*slots)[slot_of(text(id), *slots)];
    size_ += slot == kEmpty;
    slot = id;
  }
  slots_ = std::move(slots);
}

TextIds TextIds::without(std::span<const uint32_t> ids) const {
  TextIds fewer = *this;
  fewer.hidden_.resize(offsets_.size() - 1);
  for (const uint32_t id : ids) {
    if (id >= fewer.hidden_.size()) throw std::invalid_argument("TextIds: there is no such text");
    fewer.size_ -= !fewer.hidden_[id] && find(text(id)) == id;
    fewer.hidden_[id] = true;
  }
  return fewer;
}

std::optional<uint32_t> TextIds::find(std::string_view text) const {
  const uint32_t id = (*slots_)[slot_of(text, *slots_)];
  if (id == kEmpty || (!hidden_.empty() && hidden_[id])) return std::nullopt;
  return id;
}

std::size_t TextIds::slot_of(std::string_view text, const std::vector<uint32_t>& slots) const {
  const std::size_t mask = slots.size() - 1;
  std::size_t slot = sip_hash(text, key_) & mask;
  while (slots[slot] != kEmpty && this->text(slots[slot]) != text) slot = (slot + 1) & mask;
  return slot;
}

}  // namespace ferrite::gguf
