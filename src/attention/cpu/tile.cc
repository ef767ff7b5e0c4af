#include "attention/cpu/tile.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

#include "core/cpu_features.h"

// Compiled once a SIMD target.
#include "core/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/tile.cc"
// The first one includes this file again for each target.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
// clang-format on

#include "attention/cpu/products-inl.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace kdtree {
namespace HWY_NAMESPACE {
namespace {

// Rows of KV that are fetched before their turn.
constexpr int64_t kRowsAhead = 8;

constexpr float kNothing = Partial::kNothing;
// Keys that stay in the first-level cache while all rows pass.
constexpr int64_t kKeyGroup = 12;
static_assert(kKeyGroup % kDotKeys == 0);

// `count` elements, a multiple of 16, to floats.
void convert(const void* from, DType dtype, int64_t offset, int64_t count, float* to) {
  const Floats d;
  switch (dtype) {
    case DType::bf16: {
      const auto* bits = static_cast<const uint16_t*>(from) + offset;
      for (int64_t c = 0; c < count; c += kLanes)
        hn::StoreU(load_bf16(bits + c), d, to + c);
      return;
    }
#if HWY_TARGET != HWY_SSE4  // whose conversion makes infinities and NaN finite
    case DType::f16: {
      const hn::Rebind<hwy::float16_t, Floats> d16;
      const auto* halves = static_cast<const hwy::float16_t*>(from) + offset;
      for (int64_t c = 0; c < count; c += kLanes) {
        hn::StoreU(hn::PromoteTo(d, hn::LoadU(d16, halves + c)), d, to + c);
      }
      return;
    }
#endif
    case DType::f32:
      std::memcpy(to, static_cast<const float*>(from) + offset, static_cast<size_t>(count) * sizeof(float));
      return;
    default:
      for (int64_t c = 0; c < count; ++c)
        to[c] = static_cast<float>(load_element(from, dtype, offset + c));
  }
}

// Keys and values of a block as the products want them.
struct Block {
  const float* const* keys;    // of each position
  const float* const* values;  // of each word of positions
};

// One tile over one block of positions.
template <class Products>
class Attend {
  static constexpr int64_t kPerWord = Products::kPerWord;

 public:
  Attend(const VerifyProblem& p, const RowTile& tile, const TileBuffers& b)
      : p_(p),
        tile_(tile),
        b_(b),
        kv_dtype_(static_cast<DType>(p.kv_dtype)),
        heads_(p.heads),
        latent_(p.latent_dim),
        words_(row_width(p) / kPerWord),
        row_stride_(tile_row_stride(p)),
        rows_((tile.node_end - tile.node_begin) * heads_),
        rows_stride_(b.rows),
        prefix_(tile.view.prefix_length),
        keys_(p, tile.view, b.path) {}

  // Positions [begin, end).
  void run(int64_t begin, int64_t end) {
    int64_t deepest = 0;
    load_query();
    std::fill_n(b_.partial.max, rows_stride_, kNothing);
    std::fill_n(b_.partial.sum, rows_stride_, 0.0f);
    std::fill(b_.unused_out.begin(), b_.unused_out.end(), 0.0f);
    for (int64_t node = tile_.node_begin; node < tile_.node_end; ++node) {
      keys_.select(tile_.parents, node);
      deepest = std::max(deepest, keys_.count());
    }
    if (begin < deepest) run_block(begin, std::min(end, deepest) - begin);
  }

 private:
  void load_query() {
    const auto dtype = static_cast<DType>(p_.q_dtype);
    const bool in_place = kPerWord == 2 || dtype == DType::f32;
    for (int64_t r = 0; r < rows_stride_; ++r) {
      // Rows that fill the last register tile repeat the last row.
      const int64_t row = std::min(r, rows_ - 1);
      const int64_t t = tile_.view.row_begin + tile_.node_begin + row / heads_;
      const int64_t from = t * q_token_stride(p_) + row % heads_ * q_head_stride(p_);
      const float*& query = b_.query[static_cast<size_t>(r)];
      if (in_place) {
        const auto* bytes = static_cast<const std::byte*>(p_.q) + from * dtype_size(dtype);
        query = reinterpret_cast<const float*>(bytes);
      } else {
        float* to = &b_.converted[static_cast<size_t>(row * row_stride_)];
        if (r < rows_) convert(p_.q, dtype, from, row_width(p_), to);
        query = to;
      }
    }
  }

  // Positions [begin, begin + length) of all rows.
  void run_block(int64_t begin, int64_t length) {
    // Positions of the prefix, which all rows see; the rest is each node's own.
    const int64_t shared = std::clamp<int64_t>(prefix_ - begin, 0, length);
    // A word of values holds positions side by side, so the last one of an odd prefix belongs to the path.
    const int64_t shared_values = shared / kPerWord * kPerWord;
    Block block{};
    if (shared > 0) {
      for (int64_t i = 0; i < shared; ++i)
        b_.kv_rows[static_cast<size_t>(i)] = keys_.prefix_row(begin + i);
      block = prepare(b_.kv_rows.data(), shared, true);
      score(block, shared);
    }
    if (shared < length) {
      std::fill(b_.scores.begin() + shared * rows_stride_, b_.scores.begin() + length * rows_stride_,
                -std::numeric_limits<float>::infinity());
      for_each_path(begin, shared, length, [&](int64_t row, int64_t from, const Block& own, int64_t count) {
        score_rows(own, count, row, from);
      });
    }
    softmax(length);
    if (shared_values > 0) {
      accumulate(block, shared_values);
    } else {
      std::fill_n(b_.partial.out, rows_ * latent_, 0.0f);
    }
    if (shared < length) {
      for_each_path(begin, shared_values, length,
                    [&](int64_t row, int64_t from, const Block& own, int64_t count) {
                      accumulate_rows(own, count, row, from);
                    });
    }
  }

  // use(first row of a node, position in the block, keys, count) over positions [from, length) of the block
  // as far as the node sees them.
  template <class Use>
  void for_each_path(int64_t begin, int64_t from, int64_t length, const Use& use) {
    for (int64_t node = tile_.node_begin; node < tile_.node_end; ++node) {
      keys_.select(tile_.parents, node);
      const int64_t visible = std::min(keys_.count() - begin, length);
      for (int64_t i = from; i < visible; i += kPathChunk) {
        const int64_t count = std::min(kPathChunk, visible - i);
        for (int64_t k = 0; k < count; ++k)
          b_.kv_rows[static_cast<size_t>(k)] = keys_.row(begin + i + k);
        use((node - tile_.node_begin) * heads_, i, prepare(b_.kv_rows.data(), count, false), count);
      }
    }
  }

  // Slots are scattered, so the processor cannot foresee the next row.
  void prefetch(const std::byte* row) const {
    const int64_t bytes = row_width(p_) * dtype_size(kv_dtype_);
    for (int64_t b = 0; b < bytes; b += 64)
      __builtin_prefetch(row + b);
  }

  // The shared positions of a block and the chunks of paths have their own memory. What lies in the pool as
  // the products want it is used there.
  Block prepare(const std::byte* const* rows, int64_t count, bool shared) {
    const int64_t at = shared ? 0 : kBlock;
    float* tile = &b_.tile[static_cast<size_t>(at * row_stride_)];
    const float** keys = &b_.keys[static_cast<size_t>(at)];
    const float** values = &b_.values[static_cast<size_t>(at)];
    if (kPerWord == 2 || kv_dtype_ == DType::f32) {
      for (int64_t i = 0; i < count; ++i)
        keys[i] = reinterpret_cast<const float*>(rows[i]);
      if (kPerWord == 1) return {keys, keys};
      for (int64_t i = 0; i < count; i += 2) {
        for (int64_t next = i + kRowsAhead; next < std::min(i + kRowsAhead + 2, count); ++next)
          prefetch(rows[next]);
        const auto* even = reinterpret_cast<const uint16_t*>(rows[i]);
        const auto* odd = i + 1 < count ? reinterpret_cast<const uint16_t*>(rows[i + 1]) : nullptr;
        float* to = tile + i / 2 * row_stride_;
        interleave(even, odd, to);
        values[i / 2] = to;
      }
      return {keys, values};
    }
    for (int64_t i = 0; i < count; ++i) {
      if (i + kRowsAhead < count) prefetch(rows[i + kRowsAhead]);
      float* to = tile + i * row_stride_;
      convert(rows[i], kv_dtype_, 0, row_width(p_), to);
      keys[i] = to;
    }
    return {keys, keys};
  }

  void interleave(const uint16_t* even, const uint16_t* odd, float* to) {
    const Words d;
    const hn::Rebind<uint16_t, Words> d16;
    for (int64_t c = 0; c < latent_; c += kLanes) {
      auto words = hn::PromoteTo(d, hn::LoadU(d16, even + c));
      if (odd != nullptr) {
        words = hn::Or(words, hn::ShiftLeft<16>(hn::PromoteTo(d, hn::LoadU(d16, odd + c))));
      }
      hn::StoreU(hn::BitCast(Floats(), words), Floats(), to + c);
    }
  }

  // Scores of all rows.
  void score(const Block& block, int64_t count) {
    for (int64_t group = 0; group < count; group += kKeyGroup) {
      const int64_t group_end = std::min(group + kKeyGroup, count);
      for (int64_t next = group_end; next < std::min(group_end + kKeyGroup, count); ++next)
        prefetch(reinterpret_cast<const std::byte*>(block.keys[next]));
      for (int64_t row = 0; row < rows_; row += kDotRows) {
        for (int64_t k = group; k < group_end; k += kDotKeys) {
          dots(&b_.query[static_cast<size_t>(row)], block.keys + k, group_end - k,
               &b_.scores[static_cast<size_t>(k * rows_stride_ + row)], rows_stride_);
        }
      }
    }
  }

  // dot_tile for up to kDotKeys keys.
  void dots(const float* const* query, const float* const* keys, int64_t count, float* to, int64_t stride) {
    if (count >= kDotKeys) {
      dot_tile<Products>(query, keys, words_, to, stride);
      return;
    }
    const float* padded[kDotKeys];
    for (int64_t k = 0; k < kDotKeys; ++k)
      padded[k] = keys[std::min(k, count - 1)];
    float some[kDotKeys * kDotRows];
    dot_tile<Products>(query, padded, words_, some, kDotRows);
    for (int64_t k = 0; k < count; ++k)
      std::copy_n(some + k * kDotRows, kDotRows, to + k * stride);
  }

  // Scores of the rows of one node, whose first is `row`.
  void score_rows(const Block& own, int64_t count, int64_t row, int64_t position) {
    float some[kDotKeys * kDotRows];
    for (int64_t first = 0; first < heads_; first += kDotRows) {
      const int64_t used = std::min(kDotRows, heads_ - first);
      const float* query[kDotRows];
      for (int64_t r = 0; r < kDotRows; ++r) {
        query[r] = b_.query[static_cast<size_t>(row + first + std::min(r, used - 1))];
      }
      for (int64_t k = 0; k < count; k += kDotKeys) {
        const int64_t keys = std::min(kDotKeys, count - k);
        dots(query, own.keys + k, keys, some, kDotRows);
        for (int64_t i = 0; i < keys; ++i) {
          std::copy_n(some + i * kDotRows, used,
                      &b_.scores[static_cast<size_t>((position + k + i) * rows_stride_ + row + first)]);
        }
      }
    }
  }

  // Scores to weights exp(score - max) of all rows, one row a lane.
  void softmax(int64_t length) {
    const Floats d;
    const auto scale = hn::Set(d, p_.scale * kv_scale(p_));
    const auto cap = hn::Set(d, p_.logit_cap);
    for (int64_t row = 0; row < rows_; row += kLanes) {
      float* scores = &b_.scores[static_cast<size_t>(row)];
      Vector most = hn::Set(d, kNothing);
      // What a maximum with NaN is, and its exponential, differs between instruction sets.
      auto not_a_number = hn::IsNaN(most);
      for (int64_t i = 0; i < length; ++i) {
        Vector s = hn::Mul(hn::LoadU(d, scores + i * rows_stride_), scale);
        if (p_.logit_cap > 0.0f) {
          // -inf stands for a key that the row does not see.
          const auto seen = hn::Ge(s, hn::Set(d, kNothing));
          s = hn::IfThenElse(seen, hn::Mul(cap, hn::Tanh(d, hn::Div(s, cap))), s);
        }
        hn::StoreU(s, d, scores + i * rows_stride_);
        most = hn::IfThenElse(hn::Gt(s, most), s, most);
        not_a_number = hn::Or(not_a_number, hn::IsNaN(s));
      }
      Vector sum = hn::Zero(d);
      for (int64_t i = 0; i < length; ++i) {
        const Vector weight = hn::Exp(d, hn::Sub(hn::LoadU(d, scores + i * rows_stride_), most));
        sum = hn::Add(sum, weight);
        hn::StoreU(weight, d, scores + i * rows_stride_);
      }
      sum = hn::IfThenElse(not_a_number, hn::Set(d, std::numeric_limits<float>::quiet_NaN()), sum);
      hn::StoreU(most, d, b_.partial.max + row);
      hn::StoreU(sum, d, b_.partial.sum + row);
      if constexpr (kPerWord == 2) pack_weights(row, length);
    }
  }

  // Two positions a word, rounded to bf16.
  void pack_weights(int64_t row, int64_t length) {
    const Floats d;
    const float* from = &b_.scores[static_cast<size_t>(row)];
    float* to = &b_.weights[static_cast<size_t>(row)];
    for (int64_t i = 0; i < length; i += 2) {
      auto words = hn::ShiftRight<16>(round_to_bf16(hn::LoadU(d, from + i * rows_stride_)));
      if (i + 1 < length) {
        const auto odd = round_to_bf16(hn::LoadU(d, from + (i + 1) * rows_stride_));
        words = hn::Or(words, hn::ShiftLeft<16>(hn::ShiftRight<16>(odd)));
      }
      hn::StoreU(hn::BitCast(d, words), d, to + i / 2 * rows_stride_);
    }
  }

  const float* weights_at(int64_t position, int64_t row) const {
    const auto& weights = kPerWord == 1 ? b_.scores : b_.weights;
    return &weights[static_cast<size_t>(position / kPerWord * rows_stride_ + row)];
  }

  // The weighted values of all rows.
  void accumulate(const Block& block, int64_t count) {
    for_each_column([&](auto vectors, int64_t column) {
      for (int64_t row = 0; row < rows_; row += kSumRows) {
        float* out[kSumRows];
        for (int64_t r = 0; r < kSumRows; ++r)
          out[r] = b_.partial.out + (row + r) * latent_;
        accumulate_tile<Products, vectors, false>(weights_at(0, row), rows_stride_, block.values,
                                                  count / kPerWord, out, column);
      }
    });
  }

  // Adds to the rows of one node.
  void accumulate_rows(const Block& own, int64_t count, int64_t row, int64_t position) {
    for (int64_t first = 0; first < heads_; first += kSumRows) {
      const int64_t used = std::min(kSumRows, heads_ - first);
      for_each_column([&](auto vectors, int64_t column) {
        float* out[kSumRows];
        for (int64_t r = 0; r < used; ++r)
          out[r] = b_.partial.out + (row + first + r) * latent_;
        for (int64_t r = used; r < kSumRows; ++r)
          out[r] = b_.unused_out.data();
        accumulate_tile<Products, vectors, true>(weights_at(position, row + first), rows_stride_, own.values,
                                                 ceil_div(count, kPerWord), out, column);
      });
    }
  }

  // use(vectors, first column): register tiles of up to kSumVectors vectors over the columns of the output.
  template <class Use>
  void for_each_column(const Use& use) {
    int64_t column = 0;
    for (; column + kSumVectors * kLanes <= latent_; column += kSumVectors * kLanes)
      use(std::integral_constant<size_t, kSumVectors>{}, column);
    if (latent_ - column == 2 * kLanes) use(std::integral_constant<size_t, 2>{}, column);
    if (latent_ - column == kLanes) use(std::integral_constant<size_t, 1>{}, column);
  }

  const VerifyProblem& p_;
  const RowTile& tile_;
  const TileBuffers& b_;
  const DType kv_dtype_;
  const int64_t heads_;
  const int64_t latent_;
  const int64_t words_;       // of a KV row
  const int64_t row_stride_;  // words from one row of query or tile to the next
  const int64_t rows_;
  const int64_t rows_stride_;  // from one position's scores to the next
  const int64_t prefix_;
  VisibleKeys keys_;
};

void attend_f32(const VerifyProblem& p, const RowTile& tile, int64_t begin, int64_t end,
                const TileBuffers& buffers) {
  Attend<F32Products>(p, tile, buffers).run(begin, end);
}

// bf16 products where both sides are bf16; casting anything else down would lose bits.
void attend_bf16(const VerifyProblem& p, const RowTile& tile, int64_t begin, int64_t end,
                 const TileBuffers& buffers) {
  if (p.q_dtype != KDTREE_DTYPE_BF16 || p.kv_dtype != KDTREE_DTYPE_BF16) {
    attend_f32(p, tile, begin, end, buffers);
  } else {
    Attend<Bf16Products>(p, tile, buffers).run(begin, end);
  }
}

void merge(int64_t rows, int64_t latent_dim, const Partial& total, const Partial& more) {
  const Floats d;
  for (int64_t r = 0; r < rows; ++r) {
    if (more.max[r] == kNothing && more.sum[r] == 0.0f) continue;  // no keys
    const float most = std::max(total.max[r], more.max[r]);
    const float a = std::exp(total.max[r] - most);
    const float b = std::exp(more.max[r] - most);
    float* to = total.out + r * latent_dim;
    const float* from = more.out + r * latent_dim;
    if (total.max[r] == kNothing && total.sum[r] == 0.0f) {
      total.max[r] = more.max[r];
      total.sum[r] = more.sum[r];
      std::copy_n(from, latent_dim, to);
      continue;
    }
    total.max[r] = most;
    total.sum[r] = total.sum[r] * a + more.sum[r] * b;
    for (int64_t c = 0; c < latent_dim; c += kLanes) {
      const Vector scaled = hn::Mul(hn::LoadU(d, to + c), hn::Set(d, a));
      hn::StoreU(hn::MulAdd(hn::LoadU(d, from + c), hn::Set(d, b), scaled), d, to + c);
    }
  }
}

void store_row(const VerifyProblem& p, const float* row, float factor, int64_t offset) {
  const Floats d;
  const auto dtype = static_cast<DType>(p.out_dtype);
  const auto scale = hn::Set(d, factor);
  for (int64_t c = 0; c < p.latent_dim; c += kLanes) {
    const Vector v = hn::Mul(hn::LoadU(d, row + c), scale);
    if (dtype == DType::f32) {
      hn::StoreU(v, d, static_cast<float*>(p.out) + offset + c);
    } else if (dtype == DType::bf16) {
      store_bf16(v, static_cast<uint16_t*>(p.out) + offset + c);
    } else {
      float lanes[kLanes];
      hn::StoreU(v, d, lanes);
      for (int64_t i = 0; i < kLanes; ++i)
        store_element(p.out, dtype, offset + c + i, double{lanes[i]});
    }
  }
}

void store(const VerifyProblem& p, const RowTile& tile, const Partial& total) {
  for (int64_t node = tile.node_begin; node < tile.node_end; ++node) {
    const bool padding = tile.parents[static_cast<size_t>(node)] == KDTREE_PARENT_PADDING;
    const int64_t t = tile.view.row_begin + node;
    for (int64_t h = 0; h < p.heads; ++h) {
      const int64_t r = (node - tile.node_begin) * p.heads + h;
      float* out = total.out + r * p.latent_dim;
      if (padding || total.max[r] == kNothing) std::fill_n(out, p.latent_dim, 0.0f);
      store_row(p, out, padding ? 0.0f : kv_scale(p) / total.sum[r],
                t * out_token_stride(p) + h * out_head_stride(p));
      if (p.lse == nullptr) continue;
      const double lse = double{total.max[r]} + std::log(double{total.sum[r]});
      store_element(p.lse, lse_dtype(p), t * lse_token_stride(p) + h * lse_head_stride(p),
                    padding ? -std::numeric_limits<double>::infinity() : lse);
    }
  }
}

}  // namespace

// What the table below takes from this target; `name` may differ where one target serves two entries.
CpuTarget f32_target(const char* name) {
  return {name, (hwy::SupportedTargets() & HWY_TARGET) != 0, attend_f32, merge, store};
}
CpuTarget bf16_target(const char* name) {
  bool supported = (hwy::SupportedTargets() & HWY_TARGET) != 0;
#if HWY_TARGET == HWY_AVX3
  supported = supported && has_bf16_products();
#endif
  return {name, supported, attend_bf16, merge, store};
}

}  // namespace HWY_NAMESPACE
}  // namespace kdtree
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace kdtree {

TileBuffers::TileBuffers(const VerifyProblem& p, Scratch& scratch)
    : rows(tile_rows(p)),
      path(scratch.take<int32_t>(max_nodes(p))),
      kv_rows(scratch.take<const std::byte*>(kBlock)),
      keys(scratch.take<const float*>(kBlock + kPathChunk)),
      values(scratch.take<const float*>(kBlock + kPathChunk)),
      query(scratch.take<const float*>(rows)),
      converted(scratch.take<float>(saturating_mul(rows, tile_row_stride(p)))),
      tile(scratch.take<float>(saturating_mul(kBlock + kPathChunk, tile_row_stride(p)))),
      // A register tile that begins in a tile's last rows reads past the end of them.
      scores(scratch.take<float>(kBlock * rows + 16)),
      weights(scratch.take<float>(kBlock / 2 * rows + 16)),
      partial(rows, p.latent_dim, scratch),
      unused_out(scratch.take<float>(p.latent_dim)) {}

std::span<const CpuTarget> cpu_targets() {
  static const CpuTarget table[] = {
#if HWY_TARGETS & HWY_AVX3
    fast_bf16_products() ? N_AVX3::bf16_target("avx512-bf16") : N_AVX3::f32_target("avx512"),
    fast_bf16_products() ? N_AVX3::f32_target("avx512") : N_AVX3::bf16_target("avx512-bf16"),
#endif
#if HWY_TARGETS & HWY_AVX2
    N_AVX2::f32_target("avx2"),
#endif
#if HWY_TARGETS & HWY_SSE4
    N_SSE4::f32_target("sse4"),
#endif
#if HWY_TARGETS & HWY_NEON
    N_NEON::f32_target("neon"),
    N_NEON::bf16_target("emulated-bf16"),
#endif
#if HWY_TARGETS & HWY_AVX2
    N_AVX2::bf16_target("emulated-bf16"),
#endif
  };
  return table;
}

std::string cpu_target_names() {
  std::string names;
  for (const CpuTarget& target : cpu_targets())
    names += (names.empty() ? "" : ", ") + std::string(target.name);
  return names;
}

Result<const CpuTarget*> choose_cpu_target() {
  // Read at every call, so that a test or a debugger can change it.
  const char* forced = std::getenv("KDTREE_CPU_TARGET");
  const bool any = forced == nullptr || *forced == '\0';
  for (const CpuTarget& target : cpu_targets()) {
    if (any ? target.supported : std::strcmp(forced, target.name) == 0) {
      if (target.supported) return &target;
      return fail(KDTREE_BACKEND_UNAVAILABLE, "KDTREE_CPU_TARGET is {}, which this processor does not have",
                  target.name);
    }
  }
  if (any) {
    return fail(KDTREE_BACKEND_UNAVAILABLE, "the processor has none of the instruction sets required: {}",
                cpu_target_names());
  }
  return fail(KDTREE_INVALID_ARGUMENT, "KDTREE_CPU_TARGET is \"{}\", expected one of: {}", forced,
              cpu_target_names());
}

}  // namespace kdtree
#endif
