// The whole test framework of the native tests: count checks, print the failing ones, exit by the count.
#pragma once

#include <cstdio>

namespace ferrite::test {

struct Tally {
  int passed = 0;
  int failed = 0;

  void record(bool ok, const char* expression, const char* file, int line) {
    ++(ok ? passed : failed);
    if (!ok) std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, expression);
  }

  // Prints the counts and returns the exit status of main(). A program without checks fails.
  int finish() const {
    std::printf("%d passed, %d failed\n", passed, failed);
    return failed == 0 && passed > 0 ? 0 : 1;
  }
};

inline Tally tally;

}  // namespace ferrite::test

#define CHECK(...) ::ferrite::test::tally.record((__VA_ARGS__), #__VA_ARGS__, __FILE__, __LINE__)

#define CHECK_THROWS(expression, exception)                                                       \
  do {                                                                                            \
    bool caught = false;                                                                          \
    try {                                                                                         \
      static_cast<void>(expression);                                                              \
    } catch (const exception&) {                                                                  \
      caught = true;                                                                              \
    }                                                                                             \
    ::ferrite::test::tally.record(caught, #expression " throws " #exception, __FILE__, __LINE__); \
  } while (false)
