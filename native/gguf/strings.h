// Arrays of strings in GGUF files: each is eight bytes of length, then as many of text.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace ferrite::gguf {

// Steps over the strings from `offset` on, none of which has to be there.
class StringWalk {
 public:
  StringWalk(std::span<const uint8_t> file, int64_t offset) : file_(file), offset_(offset) {}

  // Where the next string begins; beyond the file's end behind a string that does not end in it.
  int64_t offset() const { return offset_; }

  // The length of the next string; none when the file ends before it.
  std::optional<uint64_t> length() const;
  // Step over the next string, whose length is at most 2^62.
  void step(uint64_t length) { offset_ += kLengthBytes + static_cast<int64_t>(length); }
  // The text of the next string; none when the file ends before it does.
  std::optional<std::string_view> text() const;

 private:
  static constexpr int64_t kLengthBytes = 8;

  std::span<const uint8_t> file_;
  int64_t offset_;
};

}  // namespace ferrite::gguf
