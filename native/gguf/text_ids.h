// The place of a text among the texts of a vocabulary.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace ferrite::gguf {

// A hash table beside texts that lie in one piece of memory: eight to sixteen bytes a text.
class TextIds {
 public:
  // A secret, so that no file can hold texts that all fall into one place (SipHash's two words).
  using Key = std::array<uint64_t, 2>;

  // Text `i` is what `data` holds from `offsets[i]` to `offsets[i + 1]`; both must outlive this. Of equal
  // texts the last one counts. Throws std::invalid_argument for offsets that fall or leave the data.
  TextIds(std::string_view data, std::span<const uint32_t> offsets, Key key);

  // The same texts but some, in the same table.
  TextIds without(std::span<const uint32_t> ids) const;

  std::optional<uint32_t> find(std::string_view text) const;
  // How many different texts can be found.
  std::size_t size() const { return size_; }

 private:
  std::string_view text(uint32_t id) const {
    return data_.substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
  }
  // The slot that holds `text` or could.
  std::size_t slot_of(std::string_view text, const std::vector<uint32_t>& slots) const;

  std::string_view data_;
  std::span<const uint32_t> offsets_;
  Key key_;
  std::shared_ptr<const std::vector<uint32_t>> slots_;
  std::vector<bool> hidden_;
  std::size_t size_ = 0;
};

// SipHash-1-3 of Aumasson and Bernstein.
uint64_t sip_hash(std::string_view text, const TextIds::Key& key);

}  // namespace ferrite::gguf
