// A persistent team of threads that runs one function at a time on all of them, with barriers inside.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace ferrite {

class Team {
 public:
  // `threads` >= 1; the caller of run() is thread 0, so threads - 1 are created.
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  // Run `body(thread)` on every thread and wait for all. `body` must not throw.
  void run(const std::function<void(int)>& body);

  // Wait inside a body until every thread of the team has come here.
  void barrier();

 private:
  void work(int thread);

  const int size_;
  std::vector<std::thread> workers_;
  const std::function<void(int)>* body_ = nullptr;
  alignas(64) std::atomic<uint32_t> job_ = 0;       // counts jobs; a change starts one
  alignas(64) std::atomic<int> arrived_ = 0;        // threads at the barrier
  alignas(64) std::atomic<uint32_t> passed_ = 0;    // counts barriers; a change opens one
  std::atomic<bool> stopping_ = false;
};

}  // namespace ferrite
