#include "isa/avx512.h"

#include "isa/table.h"

namespace ferrite {

const KernelTable& avx512_table() {
  static constexpr KernelTable kTable = isa::make_table<isa::Avx512>("avx512");
  return kTable;
}

}  // namespace ferrite
