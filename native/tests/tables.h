// The kernel tables under test.
#pragma once

#include <vector>

#include "isa/dispatch.h"

namespace ferrite {

#if defined(FERRITE_TEST_AVX512_SIMDE)
const KernelTable& emulated_avx512_table();
#endif

namespace test {

// Every table that must give the bits of the portable one.
inline std::vector<const KernelTable*> fast_tables() {
  std::vector<const KernelTable*> tables;
  for (const KernelTable* table : isa::available())
    if (table != &portable_kernels()) tables.push_back(table);
#if defined(FERRITE_TEST_AVX512_SIMDE)
  tables.push_back(&emulated_avx512_table());
#endif
  return tables;
}

// Those and the portable one itself, for what each must hold alone.
inline std::vector<const KernelTable*> all_tables() {
  std::vector<const KernelTable*> tables = fast_tables();
  tables.push_back(&portable_kernels());
  return tables;
}

}  // namespace test
}  // namespace ferrite
