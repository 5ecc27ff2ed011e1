// The heart of every op: a tile of keys times a tile of queries on the tensor cores, with the key norms taken from the
// same bytes, and the moments or scores of the tile's cosines finished before it leaves the block.
//
// Keys and queries stream through shared memory in steps of 128 bytes per row, several steps ahead of their use. Warps
// read them as matrices of 8 rows by 16 bytes, which for every type are the fragments that the mma instruction wants.
//
// float32 is multiplied as three tf32 products of (high, low) halves, and each 16 columns' sum is added in ordinary
// float32, because the tensor core's own adder truncates.
#pragma once

#include "cuda/columns.cuh"
#include "cuda/rows.cuh"

namespace surprise_hf {

// kWords words of a row tile or column tile, as the mma of this type takes them.
template <class T, int kWords>
struct Operand {
  uint32_t word[kWords];

  SHF_BLOCK void set(const uint32_t (&raw)[kWords]) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = raw[i];
  }
};

// x = high + low, each a tf32. Rounding by hand takes two instructions where cvt.rna.tf32 takes five. It loses NaN,
// which the norms keep. The tensor core ignores the bits below tf32, so `low` is not masked.
template <int kWords>
struct Operand<float, kWords> {
  uint32_t high[kWords], low[kWords];

  SHF_BLOCK void set(const uint32_t (&raw)[kWords]) {
    constexpr uint32_t kTf32 = 0xffffe000u, kHalfUlp = 0x1000u;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      high[i] = (raw[i] + kHalfUlp) & kTf32;
      low[i] = float_to_bits(bits_to_float(raw[i]) - bits_to_float(high[i])) + kHalfUlp;
    }
  }
};

// acc (16 x 8) += 64 bytes of 16 keys times those of 8 queries: two mma of 32 bytes each.
template <class Block, class T>
SHF_BLOCK void multiply(Block& block, float (&acc)[4], const Operand<T, 8>& a, const Operand<T, 4>& b) {
#pragma unroll
  for (int s = 0; s < 2; ++s) block.mma(T{}, acc, a.word + 4 * s, b.word + 2 * s);
}

template <class Block>
SHF_BLOCK void multiply(Block& block, float (&acc)[4], const Operand<float, 8>& a, const Operand<float, 4>& b) {
  float part[4] = {0, 0, 0, 0};
  // the small products first: each addition at full size is one more truncation
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    block.mma(0.0f, part, a.low + 4 * s, b.high + 2 * s);
    block.mma(0.0f, part, a.high + 4 * s, b.low + 2 * s);
  }
#pragma unroll
  for (int s = 0; s < 2; ++s) block.mma(0.0f, part, a.high + 4 * s, b.high + 2 * s);
#pragma unroll
  for (int i = 0; i < 4; ++i) acc[i] += part[i];
}

// kWarpRows x kWarpCols warps, each with kRowTiles x kColTiles mma tiles of 16 x 8.
template <class T_, int kWarpRows_, int kWarpCols_, int kRowTiles_, int kColTiles_, int kStages_, int kBlocksPerSm_>
struct Shape {
  using T = T_;
  static constexpr int kWarpRows = kWarpRows_, kWarpCols = kWarpCols_, kRowTiles = kRowTiles_, kColTiles = kColTiles_;
  static constexpr int kStages = kStages_, kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kThreads = kWarpRows * kWarpCols * kWarpSize;
  static constexpr int kRows = kWarpRows * kRowTiles * 16, kCols = kWarpCols * kColTiles * 8;
  static constexpr int kStepBytes = 128, kStepChunks = kStepBytes / 16, kStep = kStepBytes / sizeof(T);
  static constexpr int kStageChunks = (kRows + kCols) * kStepChunks;
  // row length of the finished tile in shared memory: 8 modulo 16 floats, so that fragment writes do not collide
  static constexpr int kTileStride = kCols % 16 == 8 ? kCols : kCols + 8;
  static constexpr int kPipelineBytes = kStages * kStageChunks * 16, kTileBytes = kRows * kTileStride * 4;
  static constexpr int kShared = (kPipelineBytes > kTileBytes ? kPipelineBytes : kTileBytes) + kRows * 4;
  static_assert(kThreads >= kRows && kThreads >= kCols, "each row and each column needs a thread of its own");
  static_assert(kThreads * sizeof(Sums) <= kPipelineBytes, "moment sums reuse the pipeline's memory");
  static_assert(kShared <= 99 << 10, "more than 8.6, 8.9 and 12.x give a block");
};

constexpr int kProductRows = 128;  // keys of a tile, in every shape

// Column and row tile of the product for m queries, chosen for the least padding; the same for every GPU, so that the
// partition of the moment sums, and with it every bit of the result, depends on the shape alone.
inline int product_cols(int64_t m) {
  if (m <= 8) return 8;
  if (m <= 16) return 16;
  if (m <= 32) return 32;
  int best = 128;
  // a tile costs its columns and, in the share of 32 of them, the reading of its 128 keys
  for (const int cols : {96, 64})
    if (ceil_div(m, cols) * (cols + 32) < ceil_div(m, best) * (best + 32)) best = cols;
  return best;
}

// The shape used for each width: a few queries wait for memory, so many warps and deep pipelines; many queries wait for
// the tensor cores, so large warp tiles (float32 holds twice the operands and takes half the rows).
template <class T, int kCols>
struct ProductShapes;
template <class T>
struct ProductShapes<T, 8> {
  using type = Shape<T, 8, 1, 1, 1, 4, 3>;
};
template <class T>
struct ProductShapes<T, 16> {
  using type = Shape<T, 8, 1, 1, 2, 4, 3>;
};
template <class T>
struct ProductShapes<T, 32> {
  using type = Shape<T, 8, 1, 1, 4, 3, 3>;
};
template <class T>
struct ProductShapes<T, 64> {
  using type = Shape<T, 4, 2, 2, 4, 4, 2>;
};
template <class T>
struct ProductShapes<T, 96> {
  using type = Shape<T, 2, 2, 4, 6, 3, 2>;
};
template <class T>
struct ProductShapes<T, 128> {
  using type = Shape<T, 2, 2, 4, 8, 3, 2>;
};
template <>
struct ProductShapes<float, 96> {
  using type = Shape<float, 4, 2, 2, 6, 3, 2>;
};
template <>
struct ProductShapes<float, 128> {
  using type = Shape<float, 4, 2, 2, 8, 3, 2>;
};
template <class T, int kCols>
using ProductShape = typename ProductShapes<T, kCols>::type;

template <class T>
struct ProductArgs {
  const T* keys;     // (n, dim)
  const T* queries;  // (m, dim)
  int64_t n, m, dim;
  bool aligned;              // rows start at multiples of 16 bytes
  bool normalize;            // cosines, not dot products
  int tiles_per_block;       // row tiles a block takes, one after another
  const float* scale;        // (m) factors of the queries
  const float* shift;        // (m) shifts of the moment sums
  Sums* partial;             // (row blocks, m) or null: no moments wanted
  const double *mean, *std;  // (m) known moments; null: `out` takes cosines
  Output output;
  float* out;  // (n, m) or null
};

// Position of a chunk in a row of shared memory: 8 rows at one chunk meet 8 different banks of 16 bytes.
SHF_BLOCK int turned(int row, int chunk) { return chunk ^ (row & 7); }

template <class S, class Block>
struct Product {
  using T = typename S::T;
  using Args = ProductArgs<T>;

  Block& block;
  const Args& args;
  template <class E>
  using Pointer = typename Block::template Pointer<E>;
  const Pointer<Chunk> stages;
  const Pointer<float> tile;            // in the stages' place, when they are done with
  const Pointer<float> key_scale;       // behind them
  const int warp, lane, group, member;  // group = lane / 4 and member = lane % 4 are the (g, t) above
  const int warp_row, warp_col;

  SHF_BLOCK Product(Block& b, const Args& a)
      : block(b),
        args(a),
        stages(b.template shared<Chunk>()),
        tile(b.template shared<float>()),
        key_scale(b.template shared<float>() + (S::kShared / 4 - S::kRows)),
        warp(b.thread() / kWarpSize),
        lane(b.thread() % kWarpSize),
        group(lane / 4),
        member(lane % 4),
        warp_row(warp / S::kWarpCols),
        warp_col(warp % S::kWarpCols) {}

  // The rows of one operand that a tile reads. Rows past the end repeat the last one; nobody looks at their products.
  struct Source {
    const T* rows;
    int last;

    SHF_BLOCK Source(const T* base, int64_t first, int64_t count, int64_t dim, int size)
        : rows(base + first * dim), last(static_cast<int>(count - first < size ? count - first : size) - 1) {}
  };

  template <bool kAligned>
  SHF_BLOCK void load_chunk(Pointer<Chunk> to, const T* from, int64_t left) {
    if constexpr (kAligned) {
      block.copy_async(to, from, left > 0);
    } else {
      T x[Chunk::kElements<T>] = {};
#pragma unroll
      for (int i = 0; i < Chunk::kElements<T>; ++i)
        if (i < left) x[i] = from[i];
      *to = Chunk::of(x);
    }
  }

  template <bool kAligned, int kSize>
  SHF_BLOCK void load_rows(const Source& source, Pointer<Chunk> stage, int step) {
    constexpr int kRowsAtOnce = S::kThreads / S::kStepChunks;
    const int chunk = block.thread() % S::kStepChunks, first = block.thread() / S::kStepChunks;
    const int64_t col = static_cast<int64_t>(step) * S::kStep + chunk * Chunk::kElements<T>, left = args.dim - col;
    const T* from = source.rows + (left > 0 ? col : 0);
    // rows 8 apart are turned alike, so the place within a row is the same for all of a thread's chunks
    static_assert(kRowsAtOnce % 8 == 0);
    const Pointer<Chunk> to = stage + first * S::kStepChunks + turned(first, chunk);
#pragma unroll
    for (int i = 0; i < kSize; i += kRowsAtOnce) {
      const int row = i + first < source.last ? i + first : source.last;
      if (kSize % kRowsAtOnce == 0 || i + first < kSize)
        load_chunk<kAligned>(to + i * S::kStepChunks, from + static_cast<int64_t>(row) * static_cast<int>(args.dim),
                             left);
    }
  }

  // Starts the loads of one step of the tile.
  template <bool kAligned>
  SHF_BLOCK void load_step(const Source& keys, const Source& queries, int step) {
    const Pointer<Chunk> stage = stages + step % S::kStages * S::kStageChunks;
    load_rows<kAligned, S::kRows>(keys, stage, step);
    load_rows<kAligned, S::kCols>(queries, stage + S::kRows * S::kStepChunks, step);
  }

  // Raw dot products into `tile` and squared key norms into `key_scale`.
  template <bool kAligned>
  SHF_BLOCK void multiply_tile(int64_t first_row, int64_t first_col) {
    const Source source_keys(args.keys, first_row, args.n, args.dim, S::kRows);
    const Source source_queries(args.queries, first_col, args.m, args.dim, S::kCols);
    constexpr int kNormTiles = (S::kRowTiles + S::kWarpCols - 1) / S::kWarpCols;  // warps in a row share the norms
    float acc[S::kRowTiles][S::kColTiles][4] = {};
    float squares[kNormTiles][2] = {};
    const int steps = static_cast<int>((args.dim + S::kStep - 1) / S::kStep);
#pragma unroll
    for (int s = 0; s < S::kStages - 1; ++s) {
      if (s < steps) load_step<kAligned>(source_keys, source_queries, s);
      block.commit();
    }
    for (int s = 0; s < steps; ++s) {
      block.template wait<S::kStages - 2>();
      block.sync();
      if (s + S::kStages - 1 < steps) load_step<kAligned>(source_keys, source_queries, s + S::kStages - 1);
      block.commit();
      multiply_step(acc, squares, stages + s % S::kStages * S::kStageChunks);
    }
    block.template wait<0>();
    block.sync();
    store_fragments(acc, squares);
    block.sync();
  }

  // 64 bytes of 16 rows: two fragments of 16 rows by 32 bytes. Lane l gives the address of row l % 8 of matrix l / 8.
  SHF_BLOCK void load_fragments(uint32_t (&word)[8], Pointer<Chunk> rows, int half) {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const int row = lane % 16, chunk = half + 2 * s + lane / 16;
      block.load_matrices(word + 4 * s, rows + row * S::kStepChunks + turned(row, chunk));
    }
  }

  template <int kNormTiles>
  SHF_BLOCK void multiply_step(float (&acc)[S::kRowTiles][S::kColTiles][4], float (&squares)[kNormTiles][2],
                               Pointer<Chunk> stage) {
    const Pointer<Chunk> keys = stage + warp_row * S::kRowTiles * 16 * S::kStepChunks;
    const Pointer<Chunk> queries = stage + (S::kRows + warp_col * S::kColTiles * 8) * S::kStepChunks;
#pragma unroll
    for (int half = 0; half < S::kStepChunks; half += 4) {
      Operand<T, 8> a[S::kRowTiles];
      uint32_t raw[8];
#pragma unroll
      for (int i = 0; i < S::kRowTiles; ++i) {
        load_fragments(raw, keys + i * 16 * S::kStepChunks, half);
        a[i].set(raw);
      }
      // the warps of a row share out its norms; fragments are read again because registers can't be indexed
#pragma unroll
      for (int i = 0; i < kNormTiles; ++i) {
        if constexpr (S::kRowTiles > 1)
          load_fragments(raw, keys + (i * S::kWarpCols + warp_col) % S::kRowTiles * 16 * S::kStepChunks, half);
#pragma unroll
        for (int w = 0; w < 8; ++w) squares[i][w % 2] = add_squares<T>(squares[i][w % 2], raw[w]);
      }
#pragma unroll
      for (int j = 0; j < S::kColTiles; ++j) {
        uint32_t columns[4];
        const int row = lane % 8;
        block.load_matrices(columns, queries + (j * 8 + row) * S::kStepChunks + turned(row, half + lane / 8));
        Operand<T, 4> b;
        b.set(columns);
#pragma unroll
        for (int i = 0; i < S::kRowTiles; ++i) multiply(block, acc[i][j], a[i], b);
      }
    }
  }

  template <int kNormTiles>
  SHF_BLOCK void store_fragments(const float (&acc)[S::kRowTiles][S::kColTiles][4], float (&squares)[kNormTiles][2]) {
#pragma unroll
    for (int i = 0; i < S::kRowTiles; ++i)
#pragma unroll
      for (int j = 0; j < S::kColTiles; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int row = (warp_row * S::kRowTiles + i) * 16 + h * 8 + group;
          const Pointer<float> to = tile + row * S::kTileStride + (warp_col * S::kColTiles + j) * 8 + 2 * member;
          to[0] = acc[i][j][2 * h], to[1] = acc[i][j][2 * h + 1];
        }
#pragma unroll
    for (int i = 0; i < kNormTiles; ++i) {
      const int row_tile = i * S::kWarpCols + warp_col;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float sum = squares[i][h];
        sum += block.shuffle_xor(sum, 1);
        sum += block.shuffle_xor(sum, 2);
        if (member == 0 && row_tile < S::kRowTiles)
          key_scale[(warp_row * S::kRowTiles + row_tile) * 16 + h * 8 + group] = sum;
      }
    }
  }

  // Squared norms to unit factors. A sum that float32 can't vouch for is taken again in float64, where the squares of
  // floats always fit: by the whole warp, since a lone thread's pass over a zero row would hold up its block.
  SHF_BLOCK void scale_keys(int64_t first_row, int rows) {
    const int row = block.thread();
    const float sum = row < rows ? static_cast<float>(key_scale[row]) : 1.0f;
    float factor = args.normalize ? unit_scale(static_cast<double>(sum)) : plain_scale(static_cast<double>(sum));
    const uint32_t doubtful = block.ballot(args.normalize && !(sum >= 1e-30f && sum <= 1e30f));
    for (int i = 0; i < kWarpSize && doubtful >> i != 0; ++i) {
      if ((doubtful >> i & 1) == 0) continue;
      const T* key = args.keys + (first_row + row - lane + i) * args.dim;
      double exact = 0;
      for (int64_t c = lane; c < args.dim; c += kWarpSize) exact += static_cast<double>(widen(key[c])) * widen(key[c]);
      exact = warp_sum(block, exact);
      if (lane == i) factor = unit_scale(exact);
    }
    if (row < rows) key_scale[row] = factor;
  }

  SHF_BLOCK void run() {
    const int64_t across = (args.m + S::kCols - 1) / S::kCols;
    const int64_t first_col = block.index() % across * S::kCols, row_block = block.index() / across;
    const Strip strip(block.thread(), block.threads(), first_col, args.m, S::kCols);
    const int64_t q = first_col + strip.col;
    const bool scored = args.mean != nullptr && args.output != Output::kCosine;
    const float scale = args.scale[q];
    const double shift = args.partial != nullptr ? args.shift[q] : 0.0f;
    const Column<float> column = scored ? make_column<float>(args.mean[q], args.std[q]) : Column<float>{};
    Sums sums{0, 0};
    for (int i = 0; i < args.tiles_per_block; ++i) {
      const int64_t first_row = (row_block * args.tiles_per_block + i) * S::kRows, rows_left = args.n - first_row;
      if (rows_left <= 0) break;
      const int rows = rows_left < S::kRows ? static_cast<int>(rows_left) : S::kRows;
      if (args.aligned)
        multiply_tile<true>(first_row, first_col);
      else
        multiply_tile<false>(first_row, first_col);
      scale_keys(first_row, rows);
      block.sync();
      if (!strip.idle) {
        float* out = args.out + first_row * args.m + q;
        for (int r = strip.row; r < rows; r += strip.step) {
          const float unit = key_scale[r];
          float psi = rounded_product(tile[r * S::kTileStride + strip.col] * unit, scale);
          if (unit < 0 || scale < 0)
            psi = exact_cosine(args.keys + (first_row + r) * args.dim, args.queries + q * args.dim, args.dim,
                               args.normalize);
          if (args.partial != nullptr) sums.add(static_cast<double>(psi) - shift);
          if (args.out != nullptr) out[r * args.m] = scored ? from_z(psi, standardize(psi, column), args.output) : psi;
        }
      }
      block.sync();
    }
    if (args.partial != nullptr && reduce_strips(block, strip, sums)) args.partial[row_block * args.m + q] = sums;
  }
};

}  // namespace surprise_hf
