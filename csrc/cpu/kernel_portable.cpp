// The kernels in 16-byte vectors for the baseline of any processor (SSE2 on x86-64, NEON on Arm).
#define SHF_VECTOR_BYTES 16
#if defined(__aarch64__)
#define SHF_REGISTERS 32
#else
#define SHF_REGISTERS 16
#endif
#include "kernel_impl.inc"

const surprise_hf::cpu::KernelSet surprise_hf::cpu::kernels_portable = {"portable", make_table<float>(),
                                                                        make_table<double>(), halves_product};
