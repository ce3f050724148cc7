// A persistent team of threads that runs one function at a time on all of them.
//
// There is no barrier inside: ops wait for work to be finished, not for threads to arrive (Op::share), so a
// thread that the system has put aside holds up nobody unless it holds a piece of work.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace ferrite {

// Spin for some microseconds, then sleep, until `value` is no longer `old`.
void wait_while_equal(const std::atomic<uint32_t>& value, uint32_t old);

class Team {
 public:
  // `threads` >= 1; the caller of run() is thread 0, so threads - 1 are created. Throws std::system_error
  // when the system gives no more threads.
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  // Run `body(thread)` on every thread, each in the FloatMode of the bits and from then on with long time
  // slices, and wait for all. `begun` is called when the others have begun, before the caller takes its part;
  // it must not throw.
  void run(const std::function<void(int)>& body, const std::function<void()>& begun = [] {});

 private:
  void work(int thread);
  void stop();

  const int size_;
  std::vector<std::thread> workers_;
  const std::function<void(int)>* body_ = nullptr;
  alignas(64) std::atomic<uint32_t> job_ = 0;       // counts jobs; a change starts one
  alignas(64) std::atomic<uint32_t> finished_ = 0;  // counts workers that are done with a job
  std::atomic<bool> stopping_ = false;
};

}  // namespace ferrite
