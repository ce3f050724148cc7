// Memory straight from the kernel: zeroed, page-aligned, given back on destruction.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace ferrite {

class MappedMemory {
 public:
  MappedMemory() = default;
  // Pages are taken as they are touched. Throws std::bad_alloc when the range cannot be reserved.
  explicit MappedMemory(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    void* p =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<uint8_t*>(p);
    // Weights and KV are streamed; fewer, larger pages save TLB misses. A refusal changes nothing.
    madvise(data_, bytes, MADV_HUGEPAGE);
  }
  MappedMemory(MappedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  MappedMemory& operator=(MappedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;
  ~MappedMemory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }

  uint8_t* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  uint8_t* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace ferrite
