// Which kernel tables this build has and this CPU can run. Nothing outside isa/ asks about the CPU.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernels.h"

namespace ferrite::isa {

// Tables that run here, the best first; `portable` is always last.
const std::vector<const KernelTable*>& available();

// By name, or the best for "auto"; null when it is unknown or cannot run here.
const KernelTable* find(std::string_view name);

// The CPU's instruction sets that the kernels could use, for the ready line.
std::vector<std::string> cpu_features();

}  // namespace ferrite::isa
