// Launching a kernel body: grid, dynamic shared memory, and the error check. Host side, without torch.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "cuda/block.cuh"
#include "cuda/product.cuh"

namespace surprise_hf {

inline void check_cuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string("surprise_hf: ") + what + " failed: " + cudaGetErrorString(error));
}

template <class T>
void launch_product(const ProductArgs<T>& args, cudaStream_t stream);

extern template void launch_product<float>(const ProductArgs<float>&, cudaStream_t);
extern template void launch_product<F16>(const ProductArgs<F16>&, cudaStream_t);
extern template void launch_product<BF16>(const ProductArgs<BF16>&, cudaStream_t);

}  // namespace surprise_hf
