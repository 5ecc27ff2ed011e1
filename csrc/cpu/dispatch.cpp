// Chooses the kernel set once, at the first call.
#include <cstdlib>
#include <cstring>

#include "kernels.h"

namespace surprise_hf::cpu {

namespace {

const KernelSet& choose() {
#if defined(__x86_64__)
  const char* wanted = std::getenv("SURPRISE_HF_CPU");
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
  if (wanted != nullptr && std::strcmp(wanted, "portable") == 0) return kernels_portable;
  if (wanted != nullptr && std::strcmp(wanted, "avx2") == 0 && avx2) return kernels_avx2;
  if (avx512) return kernels_avx512;
  if (avx2) return kernels_avx2;
#endif
  return kernels_portable;
}

}  // namespace

const KernelSet& kernels() {
  static const KernelSet& chosen = choose();
  return chosen;
}

}  // namespace surprise_hf::cpu
