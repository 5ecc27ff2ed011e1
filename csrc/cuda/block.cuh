// What a kernel body may ask of the block that runs it. The bodies are templates over this type: here it is the GPU's,
// csrc/testing/fiber_block.h is the host's, and both run the same source.
#pragma once

#include <cuda_runtime.h>

#include "cuda/element.h"

namespace surprise_hf {

struct DeviceBlock {
  static constexpr int kWarp = 32;

  __device__ __forceinline__ int thread() const { return threadIdx.x; }
  __device__ __forceinline__ int threads() const { return blockDim.x; }
  __device__ __forceinline__ int64_t index() const { return blockIdx.x; }
  __device__ __forceinline__ char* shared() const {
    extern __shared__ __align__(128) char memory[];
    return memory;
  }
  __device__ __forceinline__ void sync() { __syncthreads(); }

  template <class T>
  __device__ __forceinline__ T shuffle_xor(T x, int mask) {
    return __shfl_xor_sync(0xffffffffu, x, mask);
  }

  // 16 bytes from global to shared memory without passing through registers; zeros where `valid` is false.
  __device__ __forceinline__ void copy_async(Chunk* to, const void* from, bool valid) {
    const uint32_t shared_address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address), "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
  }
  __device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
  // Waits until at most `kPending` of the latest committed groups are still under way.
  template <int kPending>
  __device__ __forceinline__ void wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
  }

  // Nearest tf32 value.
  __device__ __forceinline__ uint32_t tf32(float x) {
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
  }

  // c (16 x 8) += a (16 x 16 or 16 x 8) b, one warp, fragments laid out as the PTX manual has them for mma.m16n8k16
  // (16-bit types) and mma.m16n8k8 (tf32).
#define SHF_MMA(TAG, SHAPE)                                                                                         \
  __device__ __forceinline__ void mma(TAG, float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,        \
                                      uint32_t b0, uint32_t b1) {                                                   \
    asm volatile("mma.sync.aligned." SHAPE " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                 \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                   \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));                                           \
  }
  SHF_MMA(F16, "m16n8k16.row.col.f32.f16.f16.f32")
  SHF_MMA(BF16, "m16n8k16.row.col.f32.bf16.bf16.f32")
  SHF_MMA(float, "m16n8k8.row.col.f32.tf32.tf32.f32")
#undef SHF_MMA
};

}  // namespace surprise_hf
