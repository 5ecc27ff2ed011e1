// Running a kernel body over its blocks: on the GPU under nvcc, thread by thread on the host otherwise (the tests' way
// to run the whole op, the code around the kernels included, where there is no GPU; see csrc/testing/build.py).
#pragma once

#include <stdexcept>
#include <string>

#include "cuda/product.cuh"

#if defined(__CUDACC__)
#include <cuda_runtime.h>

#include "cuda/block.cuh"
#else
#include "testing/fiber_block.h"
#endif

namespace surprise_hf {

constexpr int kThreads = 256;  // of every kernel but the product

// A body as a type, so that it can be a template argument.
#define SHF_BODY(NAME, FUNCTION)                                \
  struct NAME {                                                 \
    template <class Block, class Args>                          \
    SHF_BLOCK static void run(Block& block, const Args& args) { \
      FUNCTION(block, args);                                    \
    }                                                           \
  };

#if defined(__CUDACC__)

using Stream = cudaStream_t;

inline void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // the next call must not find it
  std::string message = std::string("surprise_hf: ") + what + " failed: " + cudaGetErrorString(error);
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction ||
      error == cudaErrorUnsupportedPtxVersion || error == cudaErrorInsufficientDriver)
    message +=
        ". The CUDA library was built for other GPUs or for a newer driver: build it here (TORCH_CUDA_ARCH_LIST names "
        "the"
        " GPUs, 8.0 or later), or set SURPRISE_HF_REFERENCE=1 to have plain torch answer";
  throw std::runtime_error(message);
}

template <class Body, int kBlockThreads, int kBlocksPerSm, class Args>
__global__ void __launch_bounds__(kBlockThreads, kBlocksPerSm) kernel(const Args args) {
  DeviceBlock block;
  Body::run(block, args);
}

template <class Body, int kBlockThreads = kThreads, int kBlocksPerSm = 1, class Args>
void launch(int64_t blocks, int shared_bytes, Stream stream, const Args& args) {
  if (blocks == 0) return;
  if (blocks > INT32_MAX) throw std::runtime_error("surprise_hf: the matrix is too large for one launch");
  auto* run = kernel<Body, kBlockThreads, kBlocksPerSm, Args>;
  if (shared_bytes > (48 << 10))
    check_cuda(cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
               "reserving shared memory");
  run<<<static_cast<unsigned>(blocks), kBlockThreads, shared_bytes, stream>>>(args);
  check_cuda(cudaGetLastError(), "launching a kernel");
}

#else

using Stream = void*;

template <class Body, int kBlockThreads = kThreads, int kBlocksPerSm = 1, class Args>
void launch(int64_t blocks, int shared_bytes, Stream, const Args& args) {
  run_blocks(blocks, kBlockThreads, shared_bytes, [&](FiberBlock& block) { Body::run(block, args); });
}

#endif

template <class S>
struct ProductBody {
  template <class Block, class Args>
  SHF_BLOCK static void run(Block& block, const Args& args) {
    Product<S, Block>(block, args).run();
  }
};

// In product.cu, apart from the rest, because its 18 kernels take the longest to compile.
template <class T>
void launch_product(const ProductArgs<T>& args, Stream stream);

}  // namespace surprise_hf
