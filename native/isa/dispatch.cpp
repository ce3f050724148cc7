#include "isa/dispatch.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace ferrite {

// Each is compiled with its instruction set's flags, so it must not be called before the CPU was asked.
const KernelTable& avx2_table();
const KernelTable& avx512_table();
const KernelTable& neon_table();

namespace isa {
namespace {

struct Feature {
  const char* name;
  bool present;
};

std::vector<Feature> features() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return {
      {"avx2", __builtin_cpu_supports("avx2") != 0},
      {"fma", __builtin_cpu_supports("fma") != 0},
      {"f16c", __builtin_cpu_supports("f16c") != 0},
      {"avx512f", __builtin_cpu_supports("avx512f") != 0},
      {"avx512bw", __builtin_cpu_supports("avx512bw") != 0},
      {"avx512dq", __builtin_cpu_supports("avx512dq") != 0},
      {"avx512vl", __builtin_cpu_supports("avx512vl") != 0},
      {"avx512vnni", __builtin_cpu_supports("avx512vnni") != 0},
  };
#elif defined(__aarch64__)
  return {{"neon", true}, {"dotprod", (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0}};
#else
  return {};
#endif
}

bool has(std::string_view name) {
  for (const Feature& feature : features())
    if (feature.name == name) return feature.present;
  return false;
}

std::vector<const KernelTable*> find_available() {
  std::vector<const KernelTable*> tables;
#if defined(__x86_64__)
  const bool avx2 = has("avx2") && has("fma") && has("f16c");
  const bool avx512 =
      has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl") && has("avx512vnni");
  if (avx2 && avx512) tables.push_back(&avx512_table());
  if (avx2) tables.push_back(&avx2_table());
#elif defined(__aarch64__)
  if (has("dotprod")) tables.push_back(&neon_table());
#endif
  tables.push_back(&portable_kernels());
  return tables;
}

}  // namespace

const std::vector<const KernelTable*>& available() {
  static const std::vector<const KernelTable*> kTables = find_available();
  return kTables;
}

const KernelTable* find(std::string_view name) {
  if (name == "auto") return available().front();
  for (const KernelTable* table : available())
    if (name == table->name) return table;
  return nullptr;
}

std::vector<std::string> cpu_features() {
  std::vector<std::string> names;
  for (const Feature& feature : features())
    if (feature.present) names.emplace_back(feature.name);
  return names;
}

}  // namespace isa
}  // namespace ferrite
