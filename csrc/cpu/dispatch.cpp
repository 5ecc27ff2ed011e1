// Chooses the kernel set once, at the first call.
#include <cstdlib>
#include <cstring>

#include "kernels.h"

#if defined(SHF_HAS_AMX)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace surprise_hf::cpu {

#if defined(SHF_HAS_AMX)
namespace {

// Has the processor tiles with int8 and bfloat16 products, and does Linux let this process use them (its threads' saved
// state grows)?
bool amx_permitted() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  constexpr unsigned kBfloat = 1u << 22, kTiles = 1u << 24, kInt8 = 1u << 25;
  constexpr unsigned kWanted = kBfloat | kTiles | kInt8;
  unsigned a, b, c, features = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &features)) return false;
  return (features & kWanted) == kWanted && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace
#endif

std::vector<const KernelSet*> available() {
  std::vector<const KernelSet*> sets;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
#if defined(SHF_HAS_AMX)
  if (avx512 && amx_permitted()) sets.push_back(&kernels_amx);
#endif
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
