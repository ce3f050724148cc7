#include "isa/neon.h"

#include "isa/table.h"

namespace ferrite {

const KernelTable& neon_table() {
  static constexpr KernelTable kTable = isa::make_table<isa::Neon>("neon");
  return kTable;
}

}  // namespace ferrite
