// A core of the flash kernels for parts whose warps can hand registers to each other (setmaxnreg): sm_90a,
// and sm_100 and sm_120 as architecture- or family-specific targets.
//
// Sixteen warps, a kind on each scheduler: one multiplies queries and keys, two weights and values, and one
// does all else.
//   4 score warps   32 rows x 256 latent columns of queries each, in registers; the two
//                   warps of 32 rows leave their halves of a tile's scores in shared memory
//   8 value warps   32 rows x 128 columns of output each; and load keys
//   4 weight warps  16 rows each: multiply the 64 rope columns, add the halves, mask, softmax,
//                   leave weights in shared memory; and look where keys are
// Every ldmatrix of the first two kinds feeds four products. Keys pass through a ring of tiles of 16, rows
// 1168 bytes apart, which spreads ldmatrix over all banks without a swizzle, and serve as keys and values
// both. The kinds of warps are as far apart as the buffers between them allow.
#pragma once

#include <cstddef>

#include "kernels/verify_attn_flash.cuh"
#include "kernels/work_line.cuh"

namespace kdtree::cuda {

// Buffers within 99 KB, and within 227.
struct SmallRings {
  static constexpr uint32_t kStages = 4;
  static constexpr uint32_t kAhead = 3;  // tiles that are loaded before they are multiplied
  static constexpr uint32_t kShares = 1;
  static constexpr uint32_t kWeights = 2;
};
struct LargeRings {
  static constexpr uint32_t kStages = 8;
  static constexpr uint32_t kAhead = 5;
  static constexpr uint32_t kShares = 2;
  static constexpr uint32_t kWeights = 4;
};

template <class T, bool kCapped, class Rings>
class FlashRoles {
 public:
  static constexpr int kThreads = 512;
  static constexpr uint32_t kStages = Rings::kStages;
  static constexpr int kSlabRows = 32;
  static constexpr int kSlabs = kRows / kSlabRows;
  static constexpr uint32_t kShareBytes = kSlabRows * kKeys * 4;  // of a score warp
  static constexpr uint32_t kSlabWeights = kSlabRows * kKeys * 2;
  static constexpr int kSteps = kLatent / 2 / 16;  // products along a score warp's columns
  static constexpr int kRopeSteps = kRope / 16;
  static constexpr int kValueSteps = kLatent / 4 / 16;
  // Registers of a thread; 128 at the start.
  static constexpr int kScoreRegisters = 168;
  static constexpr int kValueRegisters = 152;
  static constexpr int kWeightRegisters = 40;
  static constexpr uint32_t kSources = 8;  // tiles whose keys a weight warp looks for at once, four each

  struct __align__(128) Shared {
    unsigned char keys[kStages * kTileBytes];
    unsigned char shares[Rings::kShares][4][kShareBytes];  // [tile][score warp], fp32 as products have it
    unsigned char weights[Rings::kWeights][kSlabs][kSlabWeights];  // [tile][slab], [32, 16]
    unsigned long long sources[2 * kSources][kKeys];               // [tile], see key_source()
    // [weight warp], of the rope columns, as products expect them.
    unsigned char queries[4][kRopeSteps][kWarp * 16];
    uint64_t full[kStages];
    uint64_t empty[kStages];
    uint64_t shares_full[Rings::kShares][kSlabs];
    uint64_t shares_empty[Rings::kShares][kSlabs];
    uint64_t weights_full[Rings::kWeights][kSlabs];
    uint64_t weights_empty[Rings::kWeights][kSlabs];
    float scales[Rings::kWeights][kRows];  // what a move of a row's level makes of its sums so far
    // [tile][weight warp]: the last tile in which levels of its rows moved, and of any of a slab's.
    uint32_t moved[Rings::kWeights][4];
    uint32_t moves[Rings::kWeights][kSlabs];
    float inverse[kRows];  // 1 / sum
    Work work;             // a ring of one piece
    uint64_t work_full;
    uint64_t work_empty;
    uint64_t told;  // to the value warps, twice a piece: where its first keys are; the rows' sums
    Stretch stretch;
  };

  // Every piece of the block's stretch. The whole block.
  __device__ static void run(const VerifyAttnArgs& args, const Partials& partials, const SplitPlan& plan,
                             Shared& shared) {
    if (threadIdx.x == kThreads - 1) {
      init(shared.full, 8 * kWarp);
      init(shared.empty, 8 * ptx::kWarpArrivals);
      init(shared.shares_full[0], 2 * ptx::kWarpArrivals, Rings::kShares * kSlabs);
      init(shared.shares_empty[0], 2 * ptx::kWarpArrivals, Rings::kShares * kSlabs);
      init(shared.weights_full[0], 2 * ptx::kWarpArrivals, Rings::kWeights * kSlabs);
      init(shared.weights_empty[0], 4 * ptx::kWarpArrivals, Rings::kWeights * kSlabs);
      ptx::barrier_init(ptx::shared_address(&shared.work_full), 1);
      ptx::barrier_init(ptx::shared_address(&shared.work_empty), kThreads / kWarp * ptx::kWarpArrivals);
      ptx::barrier_init(ptx::shared_address(&shared.told), 4 * ptx::kWarpArrivals);
      for (uint32_t i = 0; i < Rings::kWeights; ++i) {
        for (int j = 0; j < 4; ++j)
          shared.moved[i][j] = ~0u;
        for (int j = 0; j < kSlabs; ++j)
          shared.moves[i][j] = ~0u;
      }
    }
    if (threadIdx.x < kWarp) shared.stretch.begin(args, partials, plan);
    ptx::wait_for_previous();  // the ancestor bits; lengths were there before
    __syncthreads();
    const auto warp = static_cast<int>(uniform(threadIdx.x / kWarp));
    if (warp < 4) {
      ptx::take_registers<kScoreRegisters>();
      each_piece(Scores(args, partials, shared, warp), [&](uint32_t i, uint32_t number) {
        if (warp == 0) ptx::barrier_wait(ptx::shared_address(&shared.work_empty), last_use<1>(i));
        if (threadIdx.x == 0) {
          shared.stretch.next(args, partials, plan, number, shared.work);
          ptx::barrier_arrive(ptx::shared_address(&shared.work_full));
        }
      });
    } else if (warp < 12) {
      ptx::take_registers<kValueRegisters>();
      each_piece(Values(args, partials, shared, warp - 4));
    } else {
      ptx::give_registers<kWeightRegisters>();
      each_piece(Weights(args, partials, shared, warp - 12));
    }
  }

 private:
  template <size_t kCount>
  __device__ static void init(uint64_t (&barriers)[kCount], uint32_t arrivals, uint32_t count = kCount) {
    for (uint32_t i = 0; i < count; ++i)
      ptx::barrier_init(ptx::shared_address(&barriers[0]) + i * 8, arrivals);
  }

  // What a kind of warps does with each piece.
  template <class Kind, class Prepare>
  __device__ static void each_piece(Kind kind, const Prepare& prepare) {
    uint32_t number = 0;
    for (uint32_t i = 0;; ++i) {
      prepare(i, number);
      ptx::barrier_wait(kind.base + offsetof(Shared, work_full), use<1>(i));
      if (uniform(kind.shared.work.first < kind.shared.work.end ? 1 : 0) == 0) return;
      // Said anew: after a wait ptxas no longer knows that lanes go together, and its loops get slower.
      kind.base = uniform(kind.base);
      number = kind.piece(number);
      ptx::barrier_arrive_warp(kind.base + offsetof(Shared, work_empty), Role::lane() == 0);
    }
  }
  template <class Kind>
  __device__ static void each_piece(Kind kind) {
    each_piece(kind, [](uint32_t, uint32_t) {});
  }

  // The parity of use `n / kCount` of buffer n % kCount, and of the one before it, which a barrier that was
  // never used is behind too.
  template <uint32_t kCount>
  __device__ static uint32_t use(uint32_t n) {
    return n / kCount & 1;
  }
  template <uint32_t kCount>
  __device__ static uint32_t last_use(uint32_t n) {
    return (n / kCount - 1) & 1;
  }

  // What all kinds of warps have. Registers are short: addresses are sums of what a lane keeps and offsets
  // that are constant.
  struct Role {
    __device__ Role(const VerifyAttnArgs& a, const Partials& p, Shared& s)
        : args(a), partials(p), shared(s), base(uniform(ptx::shared_address(&s))) {}
    __device__ static uint32_t lane() { return ptx::thread_index() % kWarp; }

    __device__ uint32_t full(uint32_t n) const { return base + offsetof(Shared, full) + n % kStages * 8; }
    __device__ uint32_t empty(uint32_t n) const { return base + offsetof(Shared, empty) + n % kStages * 8; }
    __device__ uint32_t shares_full(uint32_t n, uint32_t slab) const {
      return base + offsetof(Shared, shares_full) + (n % Rings::kShares * kSlabs + slab) * 8;
    }
    __device__ uint32_t shares_empty(uint32_t n, uint32_t slab) const {
      return base + offsetof(Shared, shares_empty) + (n % Rings::kShares * kSlabs + slab) * 8;
    }
    __device__ uint32_t weights_full(uint32_t n, uint32_t slab) const {
      return base + offsetof(Shared, weights_full) + (n % Rings::kWeights * kSlabs + slab) * 8;
    }
    __device__ uint32_t weights_empty(uint32_t n, uint32_t slab) const {
      return base + offsetof(Shared, weights_empty) + (n % Rings::kWeights * kSlabs + slab) * 8;
    }

    const VerifyAttnArgs& args;
    const Partials& partials;
    Shared& shared;
    uint32_t base;  // of `shared`
  };

  struct Scores : Role {
    using Role::args;
    using Role::base;
    using Role::shared;

    __device__ Scores(const VerifyAttnArgs& a, const Partials& p, Shared& s, int w)
        : Role(a, p, s), warp(w) {}

    __device__ uint32_t piece(uint32_t n) {
      uint32_t q[kSteps][2][4];
      load_queries(q);
      const uint32_t lane = Role::lane();
      const uint32_t end = uniform(shared.work.end_number());
      const uint32_t keys_from = kept(base + offsetof(Shared, keys) + (lane % 8 + lane / 16 * 8) * kRowBytes +
                                      lane / 8 % 2 * 16 + static_cast<uint32_t>(warp) % 2 * kLatent);
      const uint32_t mine = kept(base + warp * kShareBytes + lane * 16);  // in `shares`
      const uint32_t slab = static_cast<uint32_t>(warp) / 2;
      bool came = false;
#pragma unroll 1
      for (; n < end; ++n) {
        float s[2][2][4] = {};
        uint32_t keys[3][4];
        const uint32_t from = keys_from + n % kStages * kTileBytes;
        if (!__all_sync(~0u, came)) ptx::barrier_wait(this->full(n), use<kStages>(n));
        bool is_free = true;
        ptx::ldmatrix(keys[0], from);
        ptx::ldmatrix(keys[1], from + 32);
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          if (k + 2 < kSteps) ptx::ldmatrix(keys[(k + 2) % 3], from + (k + 2) * 32);
          multiply<T>(s, 0, q[k], keys[k % 3]);
          if (k == kSteps - 8) {
            is_free = ptx::barrier_test(this->shares_empty(n, slab), last_use<Rings::kShares>(n));
            came = ptx::barrier_test(this->full(n + 1), use<kStages>(n + 1));
          }
          if (k == kSteps - 2 && !__all_sync(~0u, is_free))
            ptx::barrier_wait(this->shares_empty(n, slab), last_use<Rings::kShares>(n));
        }
        const uint32_t to = mine + offsetof(Shared, shares) + n % Rings::kShares * (4 * kShareBytes);
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            ptx::store_shared(to + (m * 2 + i) * (kWarp * 16), s[m][i]);
        ptx::barrier_arrive_warp(this->shares_full(n, slab), Role::lane() == 0);
      }
      return n;
    }

    // Lanes read 16 bytes each; shared memory, two steps at a time, brings them to where products expect
    // them.
    __device__ void load_queries(uint32_t (&q)[kSteps][2][4]) const {
      const Work& work = shared.work;
      const uint32_t lane = Role::lane();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto* from = reinterpret_cast<const unsigned char*>(
            query_row<T>(args, work.request,
                         work.row_tile * kRows + warp / 2 * kSlabRows + i * 8 + static_cast<int>(lane) / 4) +
            warp % 2 * (kSteps * 8) + lane % 4 * 4);
#pragma unroll
        for (int k = 0; k < kSteps; k += 2)
          ptx::load_global(q[k + i / 2][i % 2], from + k * 32);
      }
      // 32 rows of 64 bytes, whose quarters change places every two rows: ldmatrix meets all banks.
      const uint32_t stage = base + offsetof(Shared, shares) + warp * kShareBytes;
      const uint32_t to = stage + lane / 4 * 64 + ((lane % 4) ^ (lane / 8)) * 16;
      const uint32_t from = stage + lane % 16 * 64 + ((lane / 16) ^ (lane / 2 % 4)) * 16;
#pragma unroll
      for (int k = 0; k < kSteps; k += 2) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          ptx::store_shared(to + i * (8 * 64), q[k + i / 2][i % 2]);
        __syncwarp();
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
          for (int m = 0; m < 2; ++m)
            ptx::ldmatrix(q[k + j][m], (from ^ j * 32) + m * (16 * 64));
        }
        __syncwarp();
      }
    }

    int warp;
  };

  struct Values : Role {
    using Role::args;
    using Role::base;
    using Role::partials;
    using Role::shared;

    __device__ Values(const VerifyAttnArgs& a, const Partials& p, Shared& s, int w)
        : Role(a, p, s), slab(w % kSlabs), column(w / kSlabs) {}

    __device__ uint32_t piece(uint32_t n) {
      float out[2][2 * kValueSteps][4];
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int c = 0; c < 2 * kValueSteps; ++c)
          out[m][c][0] = out[m][c][1] = out[m][c][2] = out[m][c][3] = 0.0f;
      const uint32_t end = uniform(shared.work.end_number());
      const uint32_t lane = Role::lane();
      const uint32_t values_from = kept(base + offsetof(Shared, keys) + lane % 16 * kRowBytes +
                                        lane / 16 * 16 + column * (kLatent / 2));
      const uint32_t weights =
          kept(base + offsetof(Shared, weights) + slab * kSlabWeights + weights_from(lane));
      ptx::barrier_wait(base + offsetof(Shared, told), 0);  // the first sources
      for (uint32_t i = n; i < n + Rings::kAhead && i < end; ++i)
        load(i);
#pragma unroll 1
      for (; n < end; ++n) {
        // Whoever made the weights of a tile had waited for its scores, and these for its keys.
        ptx::barrier_wait(this->weights_full(n, slab), use<Rings::kWeights>(n));
        const uint32_t buffer = n % Rings::kWeights;
        const uint32_t values = values_from + n % kStages * kTileBytes;
        uint32_t moves;
        uint32_t p[2][4];
        uint32_t v[2][4];
        ptx::load_shared(moves, base + offsetof(Shared, moves) + (buffer * kSlabs + slab) * 4);
        ptx::ldmatrix(p[0], weights + buffer * (kSlabs * kSlabWeights));
        ptx::ldmatrix_trans(v[0], values);
        ptx::ldmatrix(p[1], weights + buffer * (kSlabs * kSlabWeights) + 16 * 32);
        if (__any_sync(~0u, moves == n)) rescale(out, buffer, n);
#pragma unroll
        for (int c = 0; c < kValueSteps; ++c) {
          if (c + 1 < kValueSteps) ptx::ldmatrix_trans(v[(c + 1) % 2], values + (c + 1) * 32);
          multiply<T>(out, 2 * c, p, v[c % 2]);
        }
        ptx::barrier_arrive_warp(this->weights_empty(n, slab), Role::lane() == 0);
        ptx::barrier_arrive_warp(this->empty(n), Role::lane() == 0);
        if (n + Rings::kAhead < end) load(n + Rings::kAhead);
      }
      ptx::barrier_wait(base + offsetof(Shared, told), 1);  // the sums
      store_block(args, partials, shared.work, slab, column, out, shared.inverse);
      return n;
    }

    __device__ void rescale(float (&out)[2][2 * kValueSteps][4], uint32_t buffer, uint32_t n) const {
      float scale[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scale[i] = shared.moved[buffer][slab * 2 + i / 2] == n
                       ? shared.scales[buffer][slab * kSlabRows + i * 8 + static_cast<int>(Role::lane() / 4)]
                       : 1.0f;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int c = 0; c < 2 * kValueSteps; ++c) {
          out[i / 2][c][i % 2 * 2] *= scale[i];
          out[i / 2][c][i % 2 * 2 + 1] *= scale[i];
        }
      }
    }

    // Begins to copy this warp's two keys of tile `n` into its stage. Keys that are not there become zeros.
    __device__ void load(uint32_t n) const {
      const uint32_t lane = Role::lane();
      // Found by a weight warp of this slab, whose weights this warp has waited for.
      const uint32_t key = static_cast<uint32_t>(slab * (kKeys / kSlabs) + column * 2) + lane / 16;
      unsigned long long source;
      ptx::load_shared(source, base + offsetof(Shared, sources) + (n % (2 * kSources) * kKeys + key) * 8);
      const uint32_t bytes = (source & kNoSource) != 0 ? 0 : 16;
      const auto* from = reinterpret_cast<const unsigned char*>(source & ~kNoSource) + lane % 16 * 16;
      const uint32_t to =
          base + offsetof(Shared, keys) + n % kStages * kTileBytes + key * kRowBytes + lane % 16 * 16;
      ptx::barrier_wait(this->empty(n), last_use<kStages>(n));
      copy_key(to, from, bytes, lane % 16 < 8, this->full(n));
    }

    int slab;
    int column;
  };

  struct Weights : Role {
    using Role::args;
    using Role::base;
    using Role::partials;
    using Role::shared;

    __device__ Weights(const VerifyAttnArgs& a, const Partials& p, Shared& s, int w)
        : Role(a, p, s), warp(w) {}

    __device__ uint32_t piece(uint32_t n) {
      const uint32_t end = uniform(shared.work.end_number());
      const uint32_t masked_from = uniform(shared.work.masked_from());
      find_sources(n);
      if ((n + Rings::kAhead - 1) / kSources != n / kSources) find_sources(n + Rings::kAhead - 1);
      ptx::barrier_arrive_warp(base + offsetof(Shared, told), Role::lane() == 0);
      load_queries();
      level[0] = level[1] = kNoMaximum;
      sum[0] = sum[1] = 0.0f;
      const uint32_t lane = Role::lane();
      const bool nothing[2] = {sees_nothing(args, shared.work, warp * 16 + static_cast<int>(lane) / 4),
                               sees_nothing(args, shared.work, warp * 16 + 8 + static_cast<int>(lane) / 4)};
      const uint32_t slab = static_cast<uint32_t>(warp) / 2;
      const uint32_t half = static_cast<uint32_t>(warp) % 2;
      const uint32_t shares_from = kept(base + offsetof(Shared, shares) + slab * (2 * kShareBytes) +
                                        half * (2 * kWarp * 16) + lane * 16);
      const uint32_t weights =
          kept(base + offsetof(Shared, weights) + slab * kSlabWeights + half * (16 * 32) + weights_to(lane));
      const uint32_t keys_from = kept(base + offsetof(Shared, keys) + (lane % 8 + lane / 16 * 8) * kRowBytes +
                                      lane / 8 % 2 * 16 + kLatent * 2);
      const uint32_t queries_from =
          kept(base + offsetof(Shared, queries) + warp * (kRopeSteps * kWarp * 16) + lane * 16);
#pragma unroll 1
      for (; n < end; ++n) {
        // Whoever multiplied these halves had waited for the keys.
        ptx::barrier_wait(this->shares_full(n, slab), use<Rings::kShares>(n));
        float s[2][4] = {};
        uint32_t q[2][4];
        uint32_t keys[2][4];
        const uint32_t rope = keys_from + n % kStages * kTileBytes;
        ptx::load_shared(q[0], queries_from);
        ptx::ldmatrix(keys[0], rope);
        if ((n + Rings::kAhead) % kSources == 0 && n + Rings::kAhead < end) find_sources(n + Rings::kAhead);
#pragma unroll
        for (int k = 0; k < kRopeSteps; ++k) {
          if (k + 1 < kRopeSteps) {
            ptx::load_shared(q[(k + 1) % 2], queries_from + (k + 1) * (kWarp * 16));
            ptx::ldmatrix(keys[(k + 1) % 2], rope + (k + 1) * 32);
          }
          ptx::mma<T>(s[0], q[k % 2], keys[k % 2][0], keys[k % 2][1]);
          ptx::mma<T>(s[1], q[k % 2], keys[k % 2][2], keys[k % 2][3]);
        }
        float halves[2][2][4];
        const uint32_t from = shares_from + n % Rings::kShares * (4 * kShareBytes);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          ptx::load_shared(halves[0][i], from + i * (kWarp * 16));
          ptx::load_shared(halves[1][i], from + kShareBytes + i * (kWarp * 16));
        }
        const bool is_free = ptx::barrier_test(this->weights_empty(n, slab), last_use<Rings::kWeights>(n));
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j)
            s[i][j] = to_base_2(args, s[i][j] + (halves[0][i][j] + halves[1][i][j]), kCapped);
        ptx::barrier_arrive_warp(this->shares_empty(n, slab), Role::lane() == 0);
        if (n >= masked_from) mask(s, n);
        const float high[2] = {fmaxf(fmaxf(s[0][0], s[0][1]), fmaxf(s[1][0], s[1][1])),
                               fmaxf(fmaxf(s[0][2], s[0][3]), fmaxf(s[1][2], s[1][3]))};
        if (!__all_sync(~0u, is_free))
          ptx::barrier_wait(this->weights_empty(n, slab), last_use<Rings::kWeights>(n));
        if (__any_sync(~0u, high[0] - level[0] > kTop<T> || high[1] - level[1] > kTop<T>))
          move_levels(high, n);
        const uint32_t to = weights + n % Rings::kWeights * (kSlabs * kSlabWeights);
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
#pragma unroll
          for (uint32_t j = 0; j < 2; ++j) {
            const float p0 = ptx::exp2_approx(s[i][2 * j] - level[j]);
            const float p1 = ptx::exp2_approx(s[i][2 * j + 1] - level[j]);
            sum[j] += p0 + p1;
            ptx::store_shared((to ^ i * 16) + j * (8 * 32), ptx::pack<T>(p0, p1));
          }
        }
        ptx::barrier_arrive_warp(this->weights_full(n, slab), Role::lane() == 0);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
        sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
        const int row = warp * 16 + i * 8 + static_cast<int>(Role::lane()) / 4;
        if (Role::lane() % 4 == 0)
          shared.inverse[row] = finish_row(args, partials, shared.work, row, nothing[i], level[i], sum[i]);
      }
      ptx::barrier_arrive_warp(base + offsetof(Shared, told), Role::lane() == 0);
      return n;
    }

    __device__ void load_queries() const {
      const Work& work = shared.work;
      const uint32_t lane = Role::lane();
      const uint32_t* from[2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        from[i] = query_row<T>(args, work.request,
                               work.row_tile * kRows + warp * 16 + i * 8 + static_cast<int>(lane) / 4) +
                  kLatent / 2 + lane % 4;
#pragma unroll
      for (int k = 0; k < kRopeSteps; ++k) {
        const uint32_t q[4] = {from[0][k * 8], from[1][k * 8], from[0][k * 8 + 4], from[1][k * 8 + 4]};
        ptx::store_shared(
            base + offsetof(Shared, queries) + (warp * kRopeSteps + k) * (kWarp * 16) + lane * 16, q);
      }
      __syncwarp();
    }

    // Of the rows that have to.
    __device__ void move_levels(const float (&high)[2], uint32_t n) {
      const uint32_t lane = Role::lane();
      const uint32_t buffer = n % Rings::kWeights;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float scale = raise<T>(level[i], high[i]);
        sum[i] *= scale;
        if (lane % 4 == 0) shared.scales[buffer][warp * 16 + i * 8 + lane / 4] = scale;
      }
      if (lane == 0) {
        shared.moved[buffer][warp] = n;
        shared.moves[buffer][warp / 2] = n;
      }
    }

    // Row lane / 4 of the warp's, and the one 8 behind it.
    __device__ void mask(float (&s)[2][4], uint32_t n) const {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const Work& work = shared.work;
        const uint32_t lane = Role::lane();
        const int row = work.row_tile * kRows + warp * 16 + j * 8 + static_cast<int>(lane) / 4;
        hide(s, 2 * j, visible_in_tile(args, work.request, row, work.tile(n)));
      }
    }

    // Lane l looks for key 4 * warp + l % 4 of the tile whose number is l / 4 modulo kSources.
    __device__ void find_sources(uint32_t n) const {
      const Work& work = shared.work;
      const uint32_t lane = Role::lane();
      const uint32_t number = n / kSources * kSources + lane / 4;
      // Before the piece's first tile there may be none; nobody asks for it then.
      const int64_t tile = max(work.tile(number), static_cast<int64_t>(0));
      const int64_t key = tile * kKeys + warp * 4 + lane % 4;
      if (key + kSources * kKeys < work.request.prefix)
        prefetch_index(args.kv_indices, work.request.prefix_begin + key + kSources * kKeys);
      shared.sources[number % (2 * kSources)][warp * 4 + lane % 4] = key_source<T>(args, work.request, key);
    }

    int warp;
    float level[2];
    float sum[2];
  };
};

}  // namespace kdtree::cuda
