// What a kernel body may ask of the block that runs it. The bodies are templates over this type: here it is the GPU's,
// csrc/testing/fiber_block.h is the host's, and both run the same source.
#pragma once

#include <cuda_runtime.h>

#include "cuda/element.h"

namespace surprise_hf {

struct DeviceBlock {
  __device__ __forceinline__ int thread() const { return threadIdx.x; }
  __device__ __forceinline__ int threads() const { return blockDim.x; }
  __device__ __forceinline__ int64_t index() const { return blockIdx.x; }
  // Into shared memory; the host's knows who touches what.
  template <class T>
  using Pointer = T*;
  template <class T>
  __device__ __forceinline__ Pointer<T> shared() const {
    extern __shared__ __align__(128) char memory[];
    return reinterpret_cast<T*>(memory);
  }
  __device__ __forceinline__ void sync() { __syncthreads(); }

  template <class T>
  __device__ __forceinline__ T shuffle_xor(T x, int mask) {
    return __shfl_xor_sync(0xffffffffu, x, mask);
  }

  // Bit l: what lane l brings.
  __device__ __forceinline__ uint32_t ballot(bool x) { return __ballot_sync(0xffffffffu, x); }

  // 16 bytes from global to shared memory without passing through registers; zeros where `valid` is false.
  __device__ __forceinline__ void copy_async(Pointer<Chunk> to, const void* from, bool valid) {
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

  // Four matrices of 8 rows by 16 bytes: lane l gives the address of row l % 8 of matrix l / 8 and receives word l % 4
  // of row l / 4 of each.
  __device__ __forceinline__ void load_matrices(uint32_t* word, Pointer<Chunk> row) {
    const uint32_t shared_address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"(shared_address)
                 : "memory");
  }

  // c (16 x 8) += a (16 x 32 bytes) b (8 x 32 bytes), one warp: mma.m16n8k16 for 16-bit types, m16n8k8 for tf32. With
  // (g, t) = (lane / 4, lane % 4): a = word t of rows g and g + 8, then word t + 4 of them; b = words t and t + 4 of
  // row g; c = columns 2t and 2t + 1 of row g, then of row g + 8.
#define SHF_MMA(TAG, SHAPE)                                                                         \
  __device__ __forceinline__ void mma(TAG, float (&c)[4], const uint32_t* a, const uint32_t* b) {   \
    asm volatile("mma.sync.aligned." SHAPE " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));               \
  }
  SHF_MMA(F16, "m16n8k16.row.col.f32.f16.f16.f32")
  SHF_MMA(BF16, "m16n8k16.row.col.f32.bf16.bf16.f32")
  SHF_MMA(float, "m16n8k8.row.col.f32.tf32.tf32.f32")
#undef SHF_MMA
};

}  // namespace surprise_hf
