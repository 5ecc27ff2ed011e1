// The kernels in 16-byte vectors for the baseline of any processor (SSE2 on x86-64, NEON on Arm).
#define SHF_NAME "portable"
#define SHF_TABLE kernels_portable
#define SHF_VECTOR_BYTES 16
#if defined(__aarch64__)
#define SHF_REGISTERS 32
#else
#define SHF_REGISTERS 16
#endif
#include "kernel_impl.inc"
