// The machine's own limits, measured in the same run as what is compared with them.
#pragma once

#include <memory>

#include "kernels/kernels.h"
#include "runtime/memory.h"
#include "runtime/team.h"

namespace ferrite {

class MachineLimits {
 public:
  explicit MachineLimits(std::shared_ptr<Team> team);

  // Bytes a second that the team reads from memory, best of three passes over a range no cache holds.
  double read_bandwidth();
  // int8 multiply-adds a second of the team, best of three.
  double multiply_adds(const KernelTable& kernels);

 private:
  std::shared_ptr<Team> team_;
  MappedMemory memory_;
};

}  // namespace ferrite
