// The heart of every op: a tile of keys times a tile of queries on the tensor cores, with the key norms taken from the
// same bytes, and the moments or scores of the tile's cosines finished before it leaves the block.
//
// Keys and queries stream through shared memory in steps of 128 bytes per row, several steps ahead of their use. In a
// step, thread (g, t) of a warp holds chunk t of rows g and g + 8. The mma instructions want other columns in those
// registers, but a dot product does not mind the order of its terms as long as keys and queries agree: so one 16-byte
// load fills the fragments of two mma, for every type.
//
// float32 is multiplied as three tf32 products of (high, low) halves, and each 16 columns' sum is added in ordinary
// float32, because the tensor core's own adder truncates.
#pragma once

#include "cuda/columns.cuh"
#include "cuda/rows.cuh"

namespace surprise_hf {

template <class T>
struct Operand {
  Chunk chunk;
  template <class Block>
  SHF_BLOCK Operand(Block&, const Chunk& c) : chunk(c) {}
};

template <>
struct Operand<float> {
  uint32_t high[4], low[4];
  template <class Block>
  SHF_BLOCK Operand(Block& block, const Chunk& c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x = bits_to_float(c.word[i]);
      high[i] = block.tf32(x);
      low[i] = block.tf32(x - bits_to_float(high[i]));
    }
  }
};

// acc (16 x 8) += the chunks of 16 keys (rows g in `a`, g + 8 in `a8`) times those of 8 queries.
template <class Block, class T>
SHF_BLOCK void multiply(Block& block, float (&acc)[4], const Operand<T>& a, const Operand<T>& a8, const Operand<T>& b) {
#pragma unroll
  for (int s = 0; s < 4; s += 2)
    block.mma(T{}, acc, a.chunk.word[s], a8.chunk.word[s], a.chunk.word[s + 1], a8.chunk.word[s + 1], b.chunk.word[s],
              b.chunk.word[s + 1]);
}

template <class Block>
SHF_BLOCK void multiply(Block& block, float (&acc)[4], const Operand<float>& a, const Operand<float>& a8,
                        const Operand<float>& b) {
  float part[4] = {0, 0, 0, 0};
#pragma unroll
  for (int s = 0; s < 4; s += 2) {
    block.mma(0.0f, part, a.low[s], a8.low[s], a.low[s + 1], a8.low[s + 1], b.high[s], b.high[s + 1]);
    block.mma(0.0f, part, a.high[s], a8.high[s], a.high[s + 1], a8.high[s + 1], b.low[s], b.low[s + 1]);
    block.mma(0.0f, part, a.high[s], a8.high[s], a.high[s + 1], a8.high[s + 1], b.high[s], b.high[s + 1]);
  }
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
  bool aligned;            // rows start at multiples of 16 bytes
  bool normalize;          // cosines, not dot products
  int tiles_per_block;     // row tiles a block takes, one after another
  const float* scale;      // (m) unit factors of the queries; null: 1
  const float* shift;      // (m) shifts of the moment sums
  Sums* partial;           // (row blocks, m) or null: no moments wanted
  const double *mean, *std;  // (m) known moments; null: `out` takes cosines
  Output output;
  float* out;  // (n, m) or null
};

// Position of a chunk in a row of shared memory; neighbouring rows are turned so that 8 lanes meet 8 banks of 16 bytes.
SHF_BLOCK int turned(int row, int chunk) { return chunk ^ ((row & 1) << 2); }

template <class S, class Block>
struct Product {
  using T = typename S::T;
  using Args = ProductArgs<T>;

  Block& block;
  const Args& args;
  Chunk* stages;
  float* tile;
  float* key_scale;
  const int warp, lane, group, member;  // group = lane / 4 and member = lane % 4 are the (g, t) above
  const int warp_row, warp_col;

  SHF_BLOCK Product(Block& b, const Args& a)
      : block(b),
        args(a),
        stages(reinterpret_cast<Chunk*>(b.shared())),
        tile(reinterpret_cast<float*>(b.shared())),
        key_scale(reinterpret_cast<float*>(b.shared() + S::kShared) - S::kRows),
        warp(b.thread() / kWarpSize),
        lane(b.thread() % kWarpSize),
        group(lane / 4),
        member(lane % 4),
        warp_row(warp / S::kWarpCols),
        warp_col(warp % S::kWarpCols) {}

  SHF_BLOCK void load_chunk(Chunk* to, const T* row, int64_t col, bool valid) {
    if (args.aligned) {
      valid = valid && col < args.dim;
      block.copy_async(to, valid ? row + col : args.keys, valid);
      return;
    }
    constexpr int kElements = Chunk::kElements<T>;
    T x[kElements] = {};
    if (valid) {
#pragma unroll
      for (int i = 0; i < kElements; ++i)
        if (col + i < args.dim) x[i] = row[col + i];
    }
    *to = Chunk::of(x);
  }

  // Starts the loads of one step of the tile at (first_row, first_col).
  SHF_BLOCK void load_step(int step, int64_t first_row, int64_t first_col) {
    Chunk* stage = stages + step % S::kStages * S::kStageChunks;
    const int chunk = block.thread() % S::kStepChunks;
    const int64_t col = static_cast<int64_t>(step) * S::kStep + chunk * Chunk::kElements<T>;
    constexpr int kRowsAtOnce = S::kThreads / S::kStepChunks;
#pragma unroll
    for (int i = 0; i < S::kRows; i += kRowsAtOnce) {
      const int row = i + block.thread() / S::kStepChunks;
      const int64_t key = first_row + row;
      load_chunk(stage + row * S::kStepChunks + turned(row, chunk), args.keys + key * args.dim, col, key < args.n);
    }
    stage += S::kRows * S::kStepChunks;
#pragma unroll
    for (int i = 0; i < S::kCols; i += kRowsAtOnce) {
      const int row = i + block.thread() / S::kStepChunks;
      const int64_t query = first_col + row;
      if (S::kCols % kRowsAtOnce == 0 || row < S::kCols)
        load_chunk(stage + row * S::kStepChunks + turned(row, chunk), args.queries + query * args.dim, col,
                   query < args.m);
    }
  }

  // Raw dot products into `tile` and squared key norms into `key_scale`.
  SHF_BLOCK void multiply_tile(int64_t first_row, int64_t first_col) {
    constexpr int kNormTiles = (S::kRowTiles + S::kWarpCols - 1) / S::kWarpCols;  // warps in a row share the norms
    float acc[S::kRowTiles][S::kColTiles][4] = {};
    float squares[kNormTiles][2] = {};
    const int steps = static_cast<int>((args.dim + S::kStep - 1) / S::kStep);
#pragma unroll
    for (int s = 0; s < S::kStages - 1; ++s) {
      if (s < steps) load_step(s, first_row, first_col);
      block.commit();
    }
    for (int s = 0; s < steps; ++s) {
      block.template wait<S::kStages - 2>();
      block.sync();
      if (s + S::kStages - 1 < steps) load_step(s + S::kStages - 1, first_row, first_col);
      block.commit();
      const Chunk* keys = stages + s % S::kStages * S::kStageChunks;
      const Chunk* queries = keys + S::kRows * S::kStepChunks;
      keys += (warp_row * S::kRowTiles * 16 + group) * S::kStepChunks;
      queries += (warp_col * S::kColTiles * 8 + group) * S::kStepChunks;
#pragma unroll
      for (int half = 0; half < S::kStepChunks; half += 4) {
        const int chunk = turned(group, half + member);
        Chunk raw[S::kRowTiles][2];
#pragma unroll
        for (int i = 0; i < S::kRowTiles; ++i) {
          raw[i][0] = keys[i * 16 * S::kStepChunks + chunk];
          raw[i][1] = keys[(i * 16 + 8) * S::kStepChunks + chunk];
        }
#pragma unroll
        for (int i = 0; i < kNormTiles; ++i) {
          // tile i * kWarpCols + warp_col, chosen without indexing registers by a run-time number
#pragma unroll
          for (int w = 0; w < S::kWarpCols; ++w) {
            if (i * S::kWarpCols + w >= S::kRowTiles || w != warp_col) continue;
            squares[i][0] = add_squares<T>(squares[i][0], raw[i * S::kWarpCols + w][0]);
            squares[i][1] = add_squares<T>(squares[i][1], raw[i * S::kWarpCols + w][1]);
          }
        }
        multiply_half(acc, raw, queries + chunk);
      }
    }
    block.template wait<0>();
    block.sync();
    store_fragments(acc, squares);
    block.sync();
  }

  SHF_BLOCK void multiply_half(float (&acc)[S::kRowTiles][S::kColTiles][4], const Chunk (&raw)[S::kRowTiles][2],
                               const Chunk* queries) {
    // the split of the keys into operands is shared by all column tiles
    auto a = [&](int i, int h) { return Operand<T>(block, raw[i][h]); };
    if constexpr (S::kRowTiles == 1) {
      const Operand<T> a0 = a(0, 0), a8 = a(0, 1);
#pragma unroll
      for (int j = 0; j < S::kColTiles; ++j)
        multiply(block, acc[0][j], a0, a8, Operand<T>(block, queries[j * 8 * S::kStepChunks]));
    } else if constexpr (S::kRowTiles == 2) {
      const Operand<T> a00 = a(0, 0), a08 = a(0, 1), a10 = a(1, 0), a18 = a(1, 1);
#pragma unroll
      for (int j = 0; j < S::kColTiles; ++j) {
        const Operand<T> b(block, queries[j * 8 * S::kStepChunks]);
        multiply(block, acc[0][j], a00, a08, b);
        multiply(block, acc[1][j], a10, a18, b);
      }
    } else {
#pragma unroll
      for (int j = 0; j < S::kColTiles; ++j) {
        const Operand<T> b(block, queries[j * 8 * S::kStepChunks]);
#pragma unroll
        for (int i = 0; i < S::kRowTiles; ++i) multiply(block, acc[i][j], a(i, 0), a(i, 1), b);
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
          float* to = tile + row * S::kTileStride + (warp_col * S::kColTiles + j) * 8 + 2 * member;
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

  SHF_BLOCK void run() {
    const int64_t across = (args.m + S::kCols - 1) / S::kCols;
    const int64_t first_col = block.index() % across * S::kCols, row_block = block.index() / across;
    const int64_t cols_left = args.m - first_col;
    const int cols = cols_left < S::kCols ? static_cast<int>(cols_left) : S::kCols;
    const Strip strip(block.thread(), block.threads(), cols);
    const int64_t q = first_col + strip.col;
    const bool scored = args.mean != nullptr && args.output != Output::kCosine;
    const float scale = args.scale != nullptr ? args.scale[q] : 1.0f;
    const double shift = args.partial != nullptr ? args.shift[q] : 0.0f;
    const Column<float> column = scored ? make_column<float>(args.mean[q], args.std[q]) : Column<float>{};
    Sums sums{0, 0};
    for (int i = 0; i < args.tiles_per_block; ++i) {
      const int64_t first_row = (row_block * args.tiles_per_block + i) * S::kRows, rows_left = args.n - first_row;
      if (rows_left <= 0) break;
      const int rows = rows_left < S::kRows ? static_cast<int>(rows_left) : S::kRows;
      multiply_tile(first_row, first_col);
      if (block.thread() < rows) {
        float& s = key_scale[block.thread()];
        s = args.normalize ? unit_scale(s, args.keys + (first_row + block.thread()) * args.dim, args.dim) : 1.0f;
      }
      block.sync();
      if (!strip.idle) {
        float* out = args.out + first_row * args.m + q;
        for (int r = strip.row; r < rows; r += strip.step) {
          float psi = rounded_product(tile[r * S::kTileStride + strip.col] * key_scale[r], scale);
          if (key_scale[r] < 0 || scale < 0)
            psi = exact_cosine(args.keys + (first_row + r) * args.dim, args.queries + q * args.dim, args.dim);
          if (args.partial != nullptr) sums.add(static_cast<double>(psi) - shift);
          if (args.out != nullptr)
            out[r * args.m] = scored ? from_z(psi, standardize(psi, column), args.output) : psi;
        }
      }
      block.sync();
    }
    if (args.partial != nullptr)
      reduce_strips(block, strip, cols, sums, reinterpret_cast<Sums*>(block.shared()),
                    args.partial + row_block * args.m + first_col);
  }
};

}  // namespace surprise_hf
