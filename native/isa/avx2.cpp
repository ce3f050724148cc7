#include "isa/avx2.h"

#include "isa/table.h"

namespace ferrite {

const KernelTable& avx2_table() {
  static constexpr KernelTable kTable = isa::make_table<isa::Avx2>("avx2");
  return kTable;
}

}  // namespace ferrite
