// Chooses among the emulated kernel sets (emulated_x86.h) at every call, so that one process tests them all.
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "cpu/kernels.h"

namespace surprise_hf::cpu {

std::vector<const KernelSet*> available() { return {&kernels_amx, &kernels_avx512}; }

const KernelSet& kernels() {
  const char* wanted = std::getenv("SURPRISE_HF_CPU");
  for (const KernelSet* set : available())
    if (wanted != nullptr && std::string(wanted) == set->name) return *set;
  throw std::runtime_error("SURPRISE_HF_CPU names none of the emulated kernel sets");
}

}  // namespace surprise_hf::cpu
