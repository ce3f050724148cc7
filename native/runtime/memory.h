// Memory straight from the kernel: zeroed, page-aligned, given back on destruction.
#pragma once

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <utility>

namespace ferrite {

inline std::size_t page_bytes() {
  return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// Huge pages save TLB misses where memory is streamed; only small ones can be given back one by one.
enum class Pages { Huge, Small };

class MappedMemory {
 public:
  MappedMemory() = default;
  // Pages are taken as they are touched. Throws std::bad_alloc when the range cannot be reserved.
  explicit MappedMemory(std::size_t bytes, Pages pages = Pages::Huge) : bytes_(bytes) {
    if (bytes == 0) return;
    void* p =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<uint8_t*>(p);
    // A refusal changes nothing that is computed.
    madvise(data_, bytes, pages == Pages::Huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
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

  // Give whole pages back to the system; they are taken anew, as zeros, when they are touched. Locked memory
  // (mlockall) stays as it is, which whoever locked it has asked for.
  void release(std::size_t offset, std::size_t bytes) { madvise(data_ + offset, bytes, MADV_DONTNEED); }

  uint8_t* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  uint8_t* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Give the memory of freed objects back to the system, where the C library can.
inline void trim_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

// Take all pages that `mapped` touches out of this process's memory; who reads them again gets them from the
// file. Only for a mapped file: other memory would lose what it holds.
inline void drop_pages(std::span<const uint8_t> mapped) {
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped.data());
  const std::uintptr_t before = begin % page_bytes();
  madvise(reinterpret_cast<void*>(begin - before), mapped.size() + before, MADV_DONTNEED);
}

}  // namespace ferrite
