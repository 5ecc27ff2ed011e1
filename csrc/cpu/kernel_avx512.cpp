// The kernels for AVX-512. The target pragma stands before every include so that nothing of this file is compiled for
// another target; all of it lives in an anonymous namespace, so no AVX-512 code can leak by symbol merging.
#if defined(__x86_64__)
#include "compiler.h"
SHF_TARGET("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,f16c")
#include <immintrin.h>
#define SHF_VECTOR_BYTES 64
#define SHF_REGISTERS 32
#include "kernel_impl.inc"

const surprise_hf::cpu::KernelSet surprise_hf::cpu::kernels_avx512 = {"avx512", make_table<float>(),
                                                                      make_table<double>(), halves_product};
SHF_TARGET_END
#endif
