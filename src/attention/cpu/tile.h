// What the SIMD code computes: the attention of a few query rows over one range of positions. Compiled once a
// SIMD target (tile.cc); verify_attn_cpu.cc cuts a problem into such tiles and runs them on all threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "attention/host_rows.h"
#include "attention/problem.h"
#include "core/scratch.h"
#include "core/status.h"

namespace kdtree {

// Query rows that share the tile's keys: all heads of consecutive nodes of one request.
// Row of (node, head): (node - node_begin) * heads + head.
struct RowTile {
  RequestView view;
  std::span<const int32_t> parents;  // of the request
  int64_t node_begin;
  int64_t node_end;
};

// Softmax of some of a row's keys, not yet divided by its denominator.
struct Partial {
  // The largest score of no key at all: finite, so that its difference to a score of -inf is no NaN.
  static constexpr float kNothing = std::numeric_limits<float>::lowest();

  float* max;  // [rows] largest score, kNothing before the first key
  float* sum;  // [rows] sum of exp(score - max)
  float* out;  // [rows, latent] sum of exp(score - max) * value, without kv_scale

  Partial(int64_t rows, int64_t latent_dim, Scratch& scratch)
      : max(scratch.take<float>(rows).data()),
        sum(scratch.take<float>(rows).data()),
        out(scratch.take<float>(saturating_mul(rows, latent_dim)).data()) {}
  Partial from_row(int64_t row, int64_t latent_dim) const {
    Partial part = *this;
    part.max += row;
    part.sum += row;
    part.out += row * latent_dim;
    return part;
  }
};

// Positions whose keys share one maximum and whose partial results are merged apart. Cut at multiples of
// itself whatever the prefix length, so that a row's bits follow from its own keys alone.
constexpr int64_t kBlock = 64;
static_assert(kBlock % 2 == 0, "bf16 products take positions in pairs");
// Positions of a node's own path that are handled at once.
constexpr int64_t kPathChunk = 16;

// Nodes of a full tile: enough rows that preparing a block of keys costs little beside using it.
inline int64_t nodes_per_tile(const VerifyProblem& p) {
  return std::max<int64_t>(1, 64 / p.heads);
}
// Rows of a full tile, rounded up to whole vectors.
inline int64_t tile_rows(const VerifyProblem& p) {
  return ceil_div(std::min(nodes_per_tile(p), max_nodes(p)) * p.heads, 16) * 16;
}
// Words from one row of a tile to the next: an odd number of cache lines at the usual widths, so that a
// column's rows spread over all sets of the cache.
inline int64_t tile_row_stride(const VerifyProblem& p) {
  return row_width(p) + 16;
}

// The working memory of one thread.
struct TileBuffers {
  int64_t rows;             // tile_rows: of the arrays below, and from one position's scores to the next
  std::span<int32_t> path;  // [max nodes] see VisibleKeys
  std::span<const std::byte*> kv_rows;  // [kBlock]
  std::span<const float*> keys;         // [kBlock + kPathChunk]
  std::span<const float*> values;       // [kBlock + kPathChunk] of each position, or of two
  std::span<const float*> query;        // [rows]
  std::span<float> converted;           // [rows, row stride] queries that are not f32
  std::span<float> tile;                // [kBlock + kPathChunk, row stride] keys and values
  std::span<float> scores;              // [kBlock, rows] scores, then exp(score - max)
  std::span<float> weights;             // [kBlock / 2, rows] pairs of weights in bf16
  Partial partial;
  std::span<float> unused_out;  // [latent] for the rows of a register tile that no head fills

  TileBuffers(const VerifyProblem& problem, Scratch& scratch);
};

// One SIMD target's code.
struct CpuTarget {
  const char* name;  // "avx2"
  bool supported;    // by this machine
  // The rows of `tile` over positions [begin, end) of one block; fills buffers.partial.
  void (*attend)(const VerifyProblem&, const RowTile& tile, int64_t begin, int64_t end, const TileBuffers&);
  // total = total merged with the later positions of `more`.
  void (*merge)(int64_t rows, int64_t latent_dim, const Partial& total, const Partial& more);
  // Writes out and LSE of the tile's rows.
  void (*store)(const VerifyProblem&, const RowTile& tile, const Partial& total);
};

// Best first, those compiled in.
std::span<const CpuTarget> cpu_targets();
std::string cpu_target_names();  // "avx2, sse4"
// The best that is supported, or that KDTREE_CPU_TARGET names. Errors: KDTREE_INVALID_ARGUMENT listing the
// names; KDTREE_BACKEND_UNAVAILABLE.
Result<const CpuTarget*> choose_cpu_target();

}  // namespace kdtree
