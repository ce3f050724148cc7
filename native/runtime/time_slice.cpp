#include "runtime/time_slice.h"

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ferrite {

#if defined(__linux__)

namespace {

constexpr uint64_t kSliceNanoseconds = 20'000'000;
constexpr uint32_t kOtherPolicy = 0, kBatchPolicy = 3;
constexpr uint64_t kResetOnFork = 1;

// The first version of the system's struct sched_attr, which C libraries declare only lately.
struct ThreadAttributes {
  uint32_t size = sizeof(ThreadAttributes);
  uint32_t policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t slice = 0;  // "sched_runtime"; for ordinary threads the slice
  uint64_t deadline = 0;
  uint64_t period = 0;
};

bool read_attributes(ThreadAttributes& attributes) {
  return syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) == 0;
}

bool ask_once() {
  ThreadAttributes attributes;
  if (!read_attributes(attributes)) return false;
  if (attributes.policy != kOtherPolicy && attributes.policy != kBatchPolicy) return false;
  attributes.slice = kSliceNanoseconds;
  // It would also take a raised priority from the threads that this one creates.
  if (attributes.nice >= 0) attributes.flags |= kResetOnFork;
  // A sandbox may forbid it, an older system ignores it; nothing that is computed depends on it.
  return syscall(SYS_sched_setattr, 0, &attributes, 0) == 0;
}

}  // namespace

void prefer_long_slices() {
  thread_local const bool asked = ask_once();
  static_cast<void>(asked);
}

uint64_t requested_slice() {
  ThreadAttributes attributes;
  return read_attributes(attributes) ? attributes.slice : 0;
}

#else

void prefer_long_slices() {}

uint64_t requested_slice() {
  return 0;
}

#endif

}  // namespace ferrite
