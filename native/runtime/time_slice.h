// How the system shares a core between a thread that computes and one that has just woken up.
#pragma once

#include <cstdint>

namespace ferrite {

// Ask, once per thread, that this one run for long and start late: others of the same priority that wake up
// then take the core at once (Linux 6.12 and later), not at the next tick of the timer. Its share of the core
// stays what it was, and a thread it creates is an ordinary one. Whoever chose a real-time policy keeps it.
void prefer_long_slices();

// What this thread asked for, in nanoseconds; 0 where that cannot be known.
uint64_t requested_slice();

}  // namespace ferrite
