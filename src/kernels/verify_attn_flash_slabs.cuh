// The core of the flash kernels: one item's rows over a run of key tiles, on mma.sync, within 99 KB of shared
// memory.
//
// Eight warps in two slabs of 32 of the 64 rows. The four warps of a slab split the columns: each multiplies
// 144 of the 576 columns of scores and 128 of the 512 columns of output, so that queries (72 registers) and
// output (128) stay in registers, all of shared memory is left to keys, and each ldmatrix feeds four
// products. A warp owns eight rows of its slab: the others send it their share of these rows' scores, it adds
// them up, does the softmax and puts the weights where all four read them. While the shares of a tile travel,
// a warp multiplies the values of the tile before; while weights do, the keys of the tile behind. Keys pass
// through a ring of four tiles of 16; rows lie 1168 bytes apart there, which spreads ldmatrix over all banks,
// and serve as keys and values both.
#pragma once

#include "kernels/verify_attn_flash.cuh"
#include "kernels/work_line.cuh"

namespace kdtree::cuda {

// Registers are what the loop is short of: with a few less, ptxas stops loading the keys of the next product
// ahead, which costs a third of the speed. So the loop keeps addresses instead of what they are made of,
// anything seldom needed is worked out anew from the thread's index and shared memory, and tiles are counted
// once.
template <class T, bool kCapped>
class FlashSlabs {
 public:
  static constexpr int kThreads = 256;
  static constexpr int kSlabRows = 32;
  static constexpr int kSlabWarps = 4;
  static constexpr int kOwnedRows = kSlabRows / kSlabWarps;
  static constexpr int kScoreSteps = kWidth / kSlabWarps / 16;   // products along a warp's columns of scores
  static constexpr int kValueSteps = kLatent / kSlabWarps / 16;  // and of its columns of output, 16 each
  static constexpr uint32_t kStages = 4;
  static constexpr uint32_t kAhead = kStages - 1;  // tiles that are on their way or waiting for their turn
  static constexpr uint32_t kShareBytes = kOwnedRows * kKeys * 4;
  static constexpr uint32_t kSlabShares = (kSlabWarps - 1) * kSlabWarps * kShareBytes;
  static constexpr uint32_t kSharesAlign = kSlabWarps * kShareBytes;
  static constexpr uint32_t kSlabWeights = kSlabRows * kKeys * 2;
  static constexpr uint32_t kSources = kWarp / 2;  // tiles whose keys a warp looks for at once

  struct __align__(128) Shared {
    // [slab][sender ^ owner - 1][owner], fp32 [2][lane][2] as products have it, from the first multiple of
    // kSharesAlign on.
    unsigned char shares[2 * kSlabShares + kSharesAlign];
    unsigned char weights[2][kSlabWeights];  // [slab], [32, 16]
    unsigned char keys[kStages * kTileBytes];
    uint64_t full[kStages];
    uint64_t empty[kStages];  // behind `full`
    float scales[2][kRows];   // [tile % 2]: what a move of a row's level makes of its sums so far
    uint32_t moved[2]
                  [kRows / kOwnedRows];  // [tile % 2][warp]: the last tile in which levels of its rows moved
    uint32_t moves[2];                   // [slab]: of any of its warps
    float inverse[kRows];                // 1 / sum
    Work work;
    Stretch stretch;
  };
  static_assert(sizeof(Shared) <=
                kLeastSharedMemory - 1024);  // 1 KB is the driver's, and a block's place on the line

  // Every piece of the block's stretch. The whole block.
  __device__ static void run(const VerifyAttnArgs& args, const Partials& partials, const SplitPlan& plan,
                             Shared& shared) {
    if (threadIdx.x < kWarp) shared.stretch.begin(args, partials, plan);
    FlashSlabs core(args, shared);
    ptx::wait_for_previous();  // the ancestor bits; lengths were there before
    for (;;) {
      if (threadIdx.x == 0) shared.stretch.next(args, partials, plan, core.done_, shared.work);
      __syncthreads();
      if (uniform(shared.work.first < shared.work.end ? 1 : 0) == 0) return;
      core.piece(partials);
      __syncthreads();
    }
  }

 private:
  __device__ FlashSlabs(const VerifyAttnArgs& args, Shared& shared) : args_(args), shared_(shared) {
    if (threadIdx.x == 0) {
      for (uint32_t i = 0; i < kStages; ++i) {
        ptx::barrier_init(ptx::shared_address(&shared.full[i]), kThreads);
        ptx::barrier_init(ptx::shared_address(&shared.empty[i]), kThreads / kWarp * ptx::kWarpArrivals);
      }
    }
    if (threadIdx.x < 2) shared.moves[threadIdx.x] = ~0u;
    if (threadIdx.x < 2 * kRows / kOwnedRows) shared.moved[0][threadIdx.x] = ~0u;
    __syncthreads();
  }

  // The piece that shared.work describes.
  __device__ void piece(const Partials& partials) {
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t slab = threadIdx.x / kWarp / kSlabWarps;
    const uint32_t warp = threadIdx.x / kWarp % kSlabWarps;
    const uint32_t keys = ptx::shared_address(shared_.keys);
    const uint32_t weights = ptx::shared_address(shared_.weights[slab]);
    const uint32_t shares =
        (ptx::shared_address(shared_.shares) + kSharesAlign - 1) / kSharesAlign * kSharesAlign;
    scores_from_ =
        kept(keys + (lane % 8 + lane / 16 * 8) * kRowBytes + lane / 8 % 2 * 16 + warp * (kWidth / 2));
    values_from_ = kept(keys + lane % 16 * kRowBytes + lane / 16 * 16 + warp * (kLatent / 2));
    copy_to_ = kept(keys + (threadIdx.x / kWarp * 2 + lane / 16) * kRowBytes + lane % 16 * 16);
    shares_ = kept(shares + slab * kSlabShares + warp * kShareBytes + lane * 8);
    weights_from_ = kept(weights + weights_from(lane));
    weights_to_ = kept(weights + warp * (kOwnedRows * 32) + weights_to(lane));
    slab_ = uniform(slab);

    const uint32_t end = uniform(shared_.work.end_number());
    const uint32_t masked_from = uniform(shared_.work.masked_from());
    find_sources(done_);
    for (uint32_t n = done_; n < done_ + kAhead && n < end; ++n) {
      if (n > done_ && n % kSources == 0) find_sources(n);
      load(n);
    }

    uint32_t q[kScoreSteps][2][4];
    load_queries(q);
    float out[2][2 * kValueSteps][4];
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int n = 0; n < 2 * kValueSteps; ++n)
        out[m][n][0] = out[m][n][1] = out[m][n][2] = out[m][n][3] = 0.0f;
    level_ = kNoMaximum;
    sum_ = 0.0f;

    if (done_ >= masked_from) {
      step<kFirst, true>(out, q, end);
    } else {
      step<kFirst, false>(out, q, end);
    }
    // Turns whose scores need no mask, and that have a tile to begin to load.
    const uint32_t common = min(masked_from - min(masked_from, 1u), end - min(end, kAhead));
    while (done_ < common) {
      if ((done_ + kAhead) % kSources == 0) find_sources(done_ + kAhead);
      const uint32_t stop = min(common, (done_ + kAhead) / kSources * kSources + kSources - kAhead);
#pragma unroll 1
      do {
        step<kCommon, false>(out, q, end);
      } while (done_ < stop);
    }
#pragma unroll 1
    while (done_ + 1 < end)
      step<kCommon, true>(out, q, end);
    step<kLast, false>(out, q, end);
    store(out, partials);
  }

  __device__ uint32_t full(uint32_t stage) const {
    return ptx::shared_address(shared_.full) + stage * 8;
  }
  __device__ uint32_t empty(uint32_t stage) const {
    return ptx::shared_address(shared_.empty) + stage * 8;
  }
  // Parities of the phases in which tile `n` comes, and in which its stage has been freed for it.
  __device__ static uint32_t came(uint32_t n) {
    return n / kStages & 1;
  }
  __device__ static uint32_t freed(uint32_t n) {
    return (n / kStages - 1) & 1;
  }

  // This lane, out of an address that is there anyway.
  __device__ uint32_t lane() const {
    return shares_ / 8 % kWarp;
  }

  // A row that this lane's warp owns, as it stands in the tile of rows.
  __device__ static int owned_row() {
    return static_cast<int>(ptx::thread_index()) / 4;
  }

  // A warp multiplies the rows of its slab in an order of its own: first those that it owns, then those of
  // the warps whose numbers differ from its by 1, 2, 3 (exclusive or).
  __device__ void load_queries(uint32_t (&q)[kScoreSteps][2][4]) const {
    const int warp = static_cast<int>(threadIdx.x / kWarp);
    const uint32_t* from[kSlabWarps];
    for (int i = 0; i < kSlabWarps; ++i) {
      const int in_tile = (warp ^ i) * kOwnedRows + static_cast<int>(threadIdx.x % kWarp / 4);
      from[i] = query_row<T>(args_, shared_.work.request, shared_.work.row_tile * kRows + in_tile) +
                warp % kSlabWarps * (kScoreSteps * 8) + threadIdx.x % 4;
    }
#pragma unroll
    for (int k = 0; k < kScoreSteps; ++k) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        q[k][m][0] = from[2 * m][k * 8];
        q[k][m][1] = from[2 * m + 1][k * 8];
        q[k][m][2] = from[2 * m][k * 8 + 4];
        q[k][m][3] = from[2 * m + 1][k * 8 + 4];
      }
    }
  }

  // A warp loads two keys of each tile. Its lanes look for those of kSources tiles at once: lane l for key l
  // % 2 of the tile whose number is l / 2 modulo kSources. The indices of as many tiles behind them are
  // called into the cache.
  __device__ void find_sources(uint32_t n) {
    const uint32_t thread = ptx::thread_index();
    const Work& work = shared_.work;
    // Before the piece's first tile there may be none; nobody asks for it then.
    const int64_t tile =
        max(work.tile(n / kSources * kSources + thread % kWarp / 2), static_cast<int64_t>(0));
    const int64_t key = tile * kKeys + thread / kWarp * 2 + thread % 2;
    if (key + kSources * kKeys < work.request.prefix)
      prefetch_index(args_.kv_indices, work.request.prefix_begin + key + kSources * kKeys);
    source_ = key_source<T>(args_, work.request, key);
  }

  // The copy of this warp's two keys of tile `n` into its stage. Keys that are not there become zeros.
  struct Copy {
    uint32_t to;
    uint32_t bytes;
    const unsigned char* from;
    bool has_last;
    uint32_t barrier;
  };
  __device__ Copy copy_of(uint32_t n) const {
    const unsigned long long source =
        __shfl_sync(~0u, source_, static_cast<int>(n % kSources * 2 + lane() / 16));
    return {copy_to_ + n % kStages * kTileBytes, (source & kNoSource) != 0 ? 0u : 16u,
            reinterpret_cast<const unsigned char*>(source & ~kNoSource) + lane() % 16 * 16, lane() % 16 < 8,
            uniform(full(n % kStages))};
  }
  __device__ static void begin(const Copy& copy) {
    copy_key(copy.to, copy.from, copy.bytes, copy.has_last, copy.barrier);
  }

  __device__ void load(uint32_t n) const {
    if (n >= kStages) ptx::barrier_wait(empty(n % kStages), freed(n));
    begin(copy_of(n));
  }

  // One turn of the loop: the scores of tile `next` and the values of the one before. The rest goes between
  // these products, while they run, and nothing is waited for soon after it was asked for:
  //   scores, first part        ... the weights that the others left at the end of the last turn
  //   scores, the rest; send    ... the shares of the slab's other warps
  //   values, first part
  //   receive; values; weigh; values; load into the stage that the tile before these values had
  // The first turn has no values yet, the last one no scores.
  enum Turn { kFirst, kCommon, kLast };
  template <Turn kTurn, bool kMasked>
  __device__ void step(float (&out)[2][2 * kValueSteps][4], const uint32_t (&q)[kScoreSteps][2][4],
                       uint32_t end) {
    constexpr bool kScores = kTurn != kLast;
    constexpr bool kValues = kTurn != kFirst;
    constexpr bool kLoads = kTurn == kCommon && !kMasked;
    const uint32_t n = done_;
    const uint32_t next = kValues ? n + 1 : n;
    const uint32_t values = values_from_ + n % kStages * kTileBytes;
    float s[2][2][4] = {};
    if constexpr (kScores) {
      ptx::barrier_wait(full(next % kStages), came(next));
      uint32_t keys[2][4];
      const uint32_t from = scores_from_ + next % kStages * kTileBytes;
      ptx::ldmatrix(keys[0], from);
      multiply_scores<0, kFirstScores>(s, q, keys, from);
      if constexpr (kValues) slab_sync();
      multiply_scores<kFirstScores, kScoreSteps>(s, q, keys, from);
    } else {
      slab_sync();
    }
    uint32_t p[2][4];
    uint32_t v[2][4];
    uint32_t moves = 0;
    if constexpr (kValues) {
      ptx::load_shared(moves, ptx::shared_address(shared_.moves) + slab_ * 4);
      ptx::ldmatrix(p[0], weights_from_);
      ptx::ldmatrix(p[1], weights_from_ + 16 * 32);
      ptx::ldmatrix_trans(v[0], values);
    }
    if constexpr (kScores) send_shares(s);
    bool is_free = true;
    if constexpr (kValues) {
      if (__any_sync(~0u, moves == n)) rescale(out, n);
      if (kLoads && n + kAhead >= kStages)
        is_free = ptx::barrier_test(empty((n + kAhead) % kStages), freed(n + kAhead));
      multiply_values<0, 3>(out, p, v, values);
    }
    if constexpr (kScores) {
      slab_sync();
      add_shares(s[0]);
      if constexpr (kValues) multiply_values<3, 6>(out, p, v, values);
      settle_level<kMasked>(s[0], next);
      Copy copy;
      if constexpr (kLoads) {
        if (!__all_sync(~0u, is_free)) ptx::barrier_wait(empty((n + kAhead) % kStages), freed(n + kAhead));
        copy = copy_of(n + kAhead);
      }
      if constexpr (kValues) multiply_values<6, 7>(out, p, v, values);
      weigh(s[0]);
      if constexpr (kLoads) begin(copy);
      if constexpr (kValues) multiply_values<7, kValueSteps>(out, p, v, values);
    } else {
      multiply_values<3, kValueSteps>(out, p, v, values);
    }
    if constexpr (kValues) {
      ptx::barrier_arrive_warp(empty(n % kStages), lane() == 0);
      if (kMasked && n + kAhead < end) {
        if ((n + kAhead) % kSources == 0) find_sources(n + kAhead);
        load(n + kAhead);
      }
      done_ = n + 1;
    }
  }

  __device__ void slab_sync() const {
    ptx::named_barrier_sync(1 + static_cast<int>(slab_), kSlabWarps * kWarp);
  }

  static constexpr int kFirstScores = 6;

  // Steps [kFrom, kTo) of this warp's share of the scores of a tile: s[m][n] has rows of owners (warp ^ 2m),
  // (warp ^ 2m + 1). The keys of step kFrom are there, and those of kTo will be.
  template <int kFrom, int kTo>
  __device__ static void multiply_scores(float (&s)[2][2][4], const uint32_t (&q)[kScoreSteps][2][4],
                                         uint32_t (&keys)[2][4], uint32_t from) {
#pragma unroll
    for (int k = kFrom; k < kTo; ++k) {
      if (k + 1 < kScoreSteps) ptx::ldmatrix(keys[(k + 1) % 2], from + (k + 1) * 32);
      multiply<T>(s, 0, q[k], keys[k % 2]);
    }
  }

  // To each of the slab's other warps what this one has of its rows.
  __device__ void send_shares(const float (&s)[2][2][4]) const {
#pragma unroll
    for (uint32_t i = 1; i < kSlabWarps; ++i) {
      const int m = static_cast<int>(i / 2);
      const int e = static_cast<int>(i % 2 * 2);
      const uint32_t to = (shares_ ^ i * kShareBytes) + (i - 1) * (kSlabWarps * kShareBytes);
      ptx::store_shared(to, s[m][0][e], s[m][0][e + 1]);
      ptx::store_shared(to + kShareBytes / 2, s[m][1][e], s[m][1][e + 1]);
    }
  }

  // What the others sent of the rows that this warp owns, added to its own share.
  __device__ void add_shares(float (&own)[2][4]) const {
#pragma unroll
    for (uint32_t i = 1; i < kSlabWarps; ++i) {
#pragma unroll
      for (uint32_t n = 0; n < 2; ++n) {
        const float2 share =
            ptx::load_shared(shares_ + (i - 1) * (kSlabWarps * kShareBytes) + n * (kShareBytes / 2));
        own[n][0] += share.x;
        own[n][1] += share.y;
      }
    }
  }

  // Scores in base 2, and the level of their row, if one is too far above it. Other rows' bits stay as they
  // are.
  template <bool kMasked>
  __device__ void settle_level(float (&s)[2][4], uint32_t n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      s[i][0] = to_base_2(args_, s[i][0], kCapped);
      s[i][1] = to_base_2(args_, s[i][1], kCapped);
    }
    if constexpr (kMasked) mask(s, n);
    const float high = fmaxf(fmaxf(s[0][0], s[0][1]), fmaxf(s[1][0], s[1][1]));
    if (!__any_sync(~0u, high - level_ > kTop<T>)) return;
    const float scale = raise<T>(level_, high);
    sum_ *= scale;
    const uint32_t thread = ptx::thread_index();
    if (thread % 4 == 0) shared_.scales[n % 2][thread / 4] = scale;
    if (thread % kWarp == 0) {
      shared_.moved[n % 2][thread / kWarp] = n;
      shared_.moves[thread / kWarp / kSlabWarps] = n;
    }
  }

  // The weights of a tile in the rows that this warp owns.
  __device__ void weigh(const float (&s)[2][4]) {
#pragma unroll
    for (uint32_t n = 0; n < 2; ++n) {
      const float p0 = ptx::exp2_approx(s[n][0] - level_);
      const float p1 = ptx::exp2_approx(s[n][1] - level_);
      sum_ += p0 + p1;
      ptx::store_shared(weights_to_ ^ n * 16, ptx::pack<T>(p0, p1));
    }
  }

  // Columns [16 * kFrom, 16 * kTo) of this warp's of the output; the values of kFrom are there, and those of
  // kTo will be.
  template <int kFrom, int kTo>
  __device__ static void multiply_values(float (&out)[2][2 * kValueSteps][4], const uint32_t (&p)[2][4],
                                         uint32_t (&v)[2][4], uint32_t values) {
#pragma unroll
    for (int c = kFrom; c < kTo; ++c) {
      if (c + 1 < kValueSteps) ptx::ldmatrix_trans(v[(c + 1) % 2], values + (c + 1) * 32);
      multiply<T>(out, 2 * c, p, v[c % 2]);
    }
  }

  // Levels of rows of this slab moved in tile `n`.
  __device__ void rescale(float (&out)[2][2 * kValueSteps][4], uint32_t n) const {
    const uint32_t thread = ptx::thread_index();
    const uint32_t slab = thread / (kSlabWarps * kWarp);
    float scale[kSlabWarps];
#pragma unroll
    for (uint32_t i = 0; i < kSlabWarps; ++i) {
      const uint32_t owner = slab * kSlabWarps + i;
      scale[i] = shared_.moved[n % 2][owner] == n
                     ? shared_.scales[n % 2][owner * kOwnedRows + thread % kWarp / 4]
                     : 1.0f;
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int c = 0; c < 2 * kValueSteps; ++c) {
        out[m][c][0] *= scale[2 * m];
        out[m][c][1] *= scale[2 * m];
        out[m][c][2] *= scale[2 * m + 1];
        out[m][c][3] *= scale[2 * m + 1];
      }
    }
  }

  // Hides keys of tile `n` that this lane's owned row does not see.
  __device__ void mask(float (&s)[2][4], uint32_t n) const {
    const Work& work = shared_.work;
    hide(s, 0, visible_in_tile(args_, work.request, work.row_tile * kRows + owned_row(), work.tile(n)));
  }

  __device__ void store(float (&out)[2][2 * kValueSteps][4], const Partials& partials) {
    const Work& work = shared_.work;
    sum_ += __shfl_xor_sync(~0u, sum_, 1);
    sum_ += __shfl_xor_sync(~0u, sum_, 2);
    const auto thread = static_cast<int>(threadIdx.x);
    if (thread % 4 == 0)
      shared_.inverse[owned_row()] = finish_row(args_, partials, work, owned_row(),
                                                sees_nothing(args_, work, owned_row()), level_, sum_);
    slab_sync();
    store_block(args_, partials, work, thread / (kSlabWarps * kWarp), thread / kWarp % kSlabWarps, out,
                shared_.inverse);
  }

  const VerifyAttnArgs& args_;
  Shared& shared_;
  // Of this lane, in the ring's first stage, the shares that this warp receives and the first buffer of
  // weights.
  uint32_t scores_from_;
  uint32_t values_from_;
  uint32_t copy_to_;
  uint32_t shares_;
  uint32_t weights_from_;
  uint32_t weights_to_;
  uint32_t slab_;
  // Tiles are numbered over all pieces: the ring goes on where the last piece left it. This is the first
  // number whose values have not been added.
  uint32_t done_ = 0;
  unsigned long long source_;  // the key that this lane found, or kNoSource
  // Of the owned row of this lane, over its four keys of each tile.
  float level_;
  float sum_;
};

}  // namespace kdtree::cuda
