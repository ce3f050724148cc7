#include "gguf/strings.h"

#include <bit>
#include <cstring>

namespace ferrite::gguf {

static_assert(std::endian::native == std::endian::little);

std::optional<uint64_t> StringWalk::length() const {
  if (offset_ < 0 || offset_ > static_cast<int64_t>(file_.size()) - kLengthBytes) return std::nullopt;
  uint64_t length;
  std::memcpy(&length, file_.data() + offset_, sizeof length);
  return length;
}

std::optional<std::string_view> StringWalk::text() const {
  const std::optional<uint64_t> length = this->length();
  if (!length) return std::nullopt;
  const int64_t begin = offset_ + kLengthBytes;
  if (*length > file_.size() - static_cast<std::size_t>(begin)) return std::nullopt;
  return std::string_view(reinterpret_cast<const char*>(file_.data()) + begin, *length);
}

}  // namespace ferrite::gguf
