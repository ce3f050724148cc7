// The floating-point mode that the bits are defined in, whatever another library left in this thread.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ferrite {

// While it lives, its thread rounds to nearest, keeps denormals and traps nothing.
class FloatMode {
 public:
  FloatMode() : before_(read()) { write(kDefault); }
  ~FloatMode() { write(before_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
#if defined(__x86_64__)
  using Word = uint32_t;
  static constexpr Word kDefault = 0x1F80;  // all exceptions masked, every other bit clear
  static Word read() { return _mm_getcsr(); }
  static void write(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = uint64_t;
  static constexpr Word kDefault = 0;
  static Word read() {
    Word word;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void write(Word word) { asm volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
#else
  using Word = uint32_t;
  static constexpr Word kDefault = 0;
  static Word read() { return 0; }
  static void write(Word) {}
#endif

  Word before_;
};

}  // namespace ferrite
