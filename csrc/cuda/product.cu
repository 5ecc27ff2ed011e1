// The product kernel for each element type and tile width.
#include "cuda/launch.h"

namespace surprise_hf {

template <class S>
static void launch_shape(const ProductArgs<typename S::T>& args, Stream stream) {
  static_assert(S::kRows == kProductRows, "the callers count tiles of this many rows");
  const int64_t blocks = ceil_div(ceil_div(args.n, S::kRows), args.tiles_per_block) * ceil_div(args.m, S::kCols);
  launch<ProductBody<S>, S::kThreads, S::kBlocksPerSm>(blocks, S::kShared, stream, args);
}

template <class T>
void launch_product(const ProductArgs<T>& args, Stream stream) {
  switch (product_cols(args.m)) {
    case 8: return launch_shape<ProductShape<T, 8>>(args, stream);
    case 16: return launch_shape<ProductShape<T, 16>>(args, stream);
    case 32: return launch_shape<ProductShape<T, 32>>(args, stream);
    case 64: return launch_shape<ProductShape<T, 64>>(args, stream);
    case 96: return launch_shape<ProductShape<T, 96>>(args, stream);
    default: return launch_shape<ProductShape<T, 128>>(args, stream);
  }
}

template void launch_product<float>(const ProductArgs<float>&, Stream);
template void launch_product<F16>(const ProductArgs<F16>&, Stream);
template void launch_product<BF16>(const ProductArgs<BF16>&, Stream);

}  // namespace surprise_hf
