#include "isa/portable.h"

#include "isa/table.h"

namespace ferrite {

const KernelTable& portable_kernels() {
  static constexpr KernelTable kTable = isa::make_table<isa::Portable>("portable");
  return kTable;
}

}  // namespace ferrite
