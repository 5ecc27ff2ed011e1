// The kernels for AVX2 with FMA and F16C; see kernel_avx512.cpp for why the pragma comes first.
#if defined(__x86_64__)
#include "compiler.h"
SHF_TARGET("avx2,fma,f16c")
#include <immintrin.h>
#define SHF_VECTOR_BYTES 32
#define SHF_REGISTERS 16
#include "kernel_impl.inc"

const surprise_hf::cpu::KernelSet surprise_hf::cpu::kernels_avx2 = {"avx2", make_table<float>(), make_table<double>(),
                                                                    halves_product};
SHF_TARGET_END
#endif
