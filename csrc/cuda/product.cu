// The product kernel for each element type and tile width.
#include "cuda/launch.h"

namespace surprise_hf {
namespace {

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocksPerSm) product_kernel(const ProductArgs<typename S::T> args) {
  DeviceBlock block;
  Product<S, DeviceBlock>(block, args).run();
}

template <class S>
void launch(const ProductArgs<typename S::T>& args, cudaStream_t stream) {
  static_assert(S::kRows == kProductRows, "launch.h counts tiles of this many rows");
  check_cuda(cudaFuncSetAttribute(product_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared),
             "reserving shared memory");
  const int64_t blocks = ceil_div(ceil_div(args.n, S::kRows), args.tiles_per_block) * ceil_div(args.m, S::kCols);
  if (blocks == 0) return;
  product_kernel<S><<<static_cast<unsigned>(blocks), S::kThreads, S::kShared, stream>>>(args);
  check_cuda(cudaGetLastError(), "the product kernel");
}

}  // namespace

template <class T>
void launch_product(const ProductArgs<T>& args, cudaStream_t stream) {
  switch (product_cols(args.m)) {
    case 8: return launch<ProductShape<T, 8>>(args, stream);
    case 16: return launch<ProductShape<T, 16>>(args, stream);
    case 32: return launch<ProductShape<T, 32>>(args, stream);
    case 64: return launch<ProductShape<T, 64>>(args, stream);
    case 96: return launch<ProductShape<T, 96>>(args, stream);
    default: return launch<ProductShape<T, 128>>(args, stream);
  }
}

template void launch_product<float>(const ProductArgs<float>&, cudaStream_t);
template void launch_product<F16>(const ProductArgs<F16>&, cudaStream_t);
template void launch_product<BF16>(const ProductArgs<BF16>&, cudaStream_t);

}  // namespace surprise_hf
