// Chooses the kernel set once, at the first call.
#include <cstdlib>
#include <cstring>

#include "kernels.h"

namespace surprise_hf::cpu {

std::vector<const KernelSet*> available() {
  std::vector<const KernelSet*> sets;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
  if (avx512) sets.push_back(&kernels_avx512);
  if (avx2) sets.push_back(&kernels_avx2);
#endif
  sets.push_back(&kernels_portable);
  return sets;
}

namespace {

const KernelSet& choose() {
  const std::vector<const KernelSet*> sets = available();
  const char* wanted = std::getenv("SURPRISE_HF_CPU");
  for (const KernelSet* set : sets)
    if (wanted != nullptr && std::strcmp(wanted, set->name) == 0) return *set;
  return *sets.front();
}

}  // namespace

const KernelSet& kernels() {
  static const KernelSet& chosen = choose();
  return chosen;
}

}  // namespace surprise_hf::cpu
