// What the cores of the flash kernels share. A core has 64 rows of an item (node * heads + head) over a run
// of key tiles, on mma.sync: FlashRoles where warps can hand registers to each other, FlashSlabs elsewhere.
// Shared memory of 99 KB is enough for both.
#pragma once

#include <type_traits>

#include <cuda_runtime.h>

#include "attention/split_plan.h"
#include "kernels/ptx/ptx.cuh"
#include "kernels/verify_attn.cuh"

namespace kdtree::cuda {

constexpr int kLatent = 512;
constexpr int kRope = 64;
constexpr int kWidth = kLatent + kRope;
constexpr int kRows = static_cast<int>(SplitPlan::kRowTile);
constexpr int kKeys = static_cast<int>(SplitPlan::kKeyTile);
constexpr float kLn2 = 0.693147181f;
// Finite: a difference of two of them is a number.
constexpr float kNoMaximum = -1e30f;
constexpr float kUnseen = -1e33f;

// A request as the kernels read it from the arrays.
struct RequestRows {
  int64_t first_row;
  int64_t prefix_begin;
  int64_t prefix;
  int64_t nodes;
};

__device__ inline RequestRows request_rows(const VerifyAttnArgs& args, int32_t request) {
  RequestRows r;
  r.first_row = args.qo_indptr[request];
  r.nodes = args.qo_indptr[request + 1] - r.first_row;
  r.prefix_begin = args.kv_indptr[request];
  r.prefix = args.kv_indptr[request + 1] - r.prefix_begin;
  return r;
}

__device__ inline void prefetch_index(const Indices& indices, int64_t i) {
  if (indices.base == nullptr) return;
  asm volatile(
      "prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(indices.base) + i * (indices.wide ? 8 : 4)));
}

// Node `node` of the request that begins at row `first_row` sees draft keys [first, first + 16), as bits.
// Keys before the draft (first < 0) are the prefix's, which all rows see.
__device__ inline uint32_t visible_keys(const VerifyAttnArgs& args, int64_t row, int64_t first) {
  const uint64_t* words = args.ancestor_bits + row * args.bits_stride;
  if (first < 0) {
    const int before = static_cast<int>(-first);
    return static_cast<uint32_t>(words[0] << before) | ((1u << before) - 1u);
  }
  const int64_t word = first / 64;
  const int shift = static_cast<int>(first % 64);
  if (word >= args.bits_stride) return 0;
  uint64_t bits = words[word] >> shift;
  if (shift > 64 - kKeys && word + 1 < args.bits_stride) bits |= words[word + 1] << (64 - shift);
  return static_cast<uint32_t>(bits);
}

// A padding row sees nothing, itself included.
__device__ inline bool is_padding(const VerifyAttnArgs& args, int64_t row, int64_t node) {
  return (args.ancestor_bits[row * args.bits_stride + node / 64] >> (node % 64) & 1) == 0;
}

// Two neighbouring elements of the output.
template <DType kType>
__device__ void store_pair(void* out, int64_t offset, float a, float b) {
  if constexpr (kType == DType::bf16) {
    *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(out) + offset) = ptx::pack<__nv_bfloat16>(a, b);
  } else if constexpr (kType == DType::f16) {
    *reinterpret_cast<uint32_t*>(static_cast<__half*>(out) + offset) = ptx::pack<__half>(a, b);
  } else {
    *reinterpret_cast<float2*>(static_cast<float*>(out) + offset) = make_float2(a, b);
  }
}

// Calls f with the type of the output as a constant: once around a loop of stores, as code that runs for the
// first time is slow.
template <class F>
__device__ void with_out_type(const VerifyAttnArgs& args, F f) {
  switch (args.out_dtype) {
    case DType::bf16:
      return f(std::integral_constant<DType, DType::bf16>{});
    case DType::f16:
      return f(std::integral_constant<DType, DType::f16>{});
    default:
      return f(std::integral_constant<DType, DType::f32>{});
  }
}

// Keys of tile `tile` that row `row` (of the request, or behind its last one) sees.
__device__ inline uint32_t visible_in_tile(const VerifyAttnArgs& args, const RequestRows& request, int row,
                                           int64_t tile) {
  const auto last = static_cast<int>(request.nodes) * args.heads - 1;
  return visible_keys(args, request.first_row + min(row, last) / args.heads, tile * kKeys - request.prefix);
}

// Where a key of the request lies, as an address; kNoSource where there is none: behind the draft, or a
// padding node's, which may hold anything.
constexpr unsigned long long kNoSource = 1;
template <class T>
__device__ unsigned long long key_source(const VerifyAttnArgs& args, const RequestRows& request,
                                         int64_t key) {
  const auto in_pool = [&](int64_t slot) {
    return reinterpret_cast<unsigned long long>(static_cast<const T*>(args.kv) + slot * args.kv_row_stride);
  };
  if (key < request.prefix) return in_pool(prefix_slot(args, request.prefix_begin + key));
  const int64_t node = key - request.prefix;
  const int64_t row = request.first_row + node;
  if (node >= request.nodes || is_padding(args, row, node)) return kNoSource;
  if (args.draft_slots.base != nullptr) return in_pool(args.draft_slots[row]);
  return reinterpret_cast<unsigned long long>(static_cast<const T*>(args.draft_kv) +
                                              row * args.draft_row_stride);
}

// The first of a row's words of `q`.
template <class T>
__device__ const uint32_t* query_row(const VerifyAttnArgs& args, const RequestRows& request, int row) {
  const int within =
      min(row, static_cast<int>(request.nodes) * args.heads - 1);  // rows behind the last one do as it does
  const int64_t token = request.first_row + within / args.heads;
  return reinterpret_cast<const uint32_t*>(static_cast<const T*>(args.q) + token * args.q_token_stride +
                                           within % args.heads * args.q_head_stride);
}

// A cap's tanh is 1 - 2 / (e^2x + 1), which is off by 1e-7 of the cap: tanhf() takes more registers than
// there are.
__device__ __forceinline__ float to_base_2(const VerifyAttnArgs& args, float s, bool capped) {
  if (!capped) return s * args.base_2_scale;
  const float e2x = ptx::exp2_approx(s * args.base_2_scale);
  return args.base_2_cap - __fdividef(2.0f * args.base_2_cap, e2x + 1.0f);
}

// A row's weights are 2^(score - level), at most 2^kTop; when one would be larger, the row's level moves to
// 2^kHeadroom below it. bf16 has fp32's exponents; f16's smallest ones would be lost without the difference.
template <class T>
constexpr float kTop = std::is_same_v<T, __half> ? 15.0f : 8.0f;
constexpr float kHeadroom = 8.0f;

// What a block works on, in shared memory: registers are all taken.
struct Work {
  RequestRows request;
  int64_t slot;
  int row_tile;
  int first;  // tiles of keys; none: there is no more work
  int end;
  bool whole;
  // Tiles are numbered over all pieces: rings of buffers go on where the last piece left them.
  uint32_t first_number;

  __device__ uint32_t end_number() const { return first_number + static_cast<uint32_t>(end - first); }
  // The first tile with keys that not all rows see.
  __device__ uint32_t masked_from() const {
    const int64_t unmasked = request.prefix / kKeys - first;
    return first_number + static_cast<uint32_t>(unmasked > 0 ? unmasked : 0);
  }
  __device__ int64_t tile(uint32_t number) const { return first + static_cast<int>(number - first_number); }
};

// A padding row, or none: its output is zero. Its query may be anything, a NaN too.
__device__ inline bool sees_nothing(const VerifyAttnArgs& args, const Work& work, int row_in_tile) {
  const int row = work.row_tile * kRows + row_in_tile;
  if (row >= static_cast<int>(work.request.nodes) * args.heads) return true;
  const int node = row / args.heads;
  return is_padding(args, work.request.first_row + node, node);
}

// The end of a row: 1 / sum, 0 for one that sees nothing; writes its LSE. A sum that is a NaN belongs to a
// row that saw one.
__device__ inline float finish_row(const VerifyAttnArgs& args, const Partials& partials, const Work& work,
                                   int row_in_tile, bool sees_nothing, float level, float sum) {
  const int row = work.row_tile * kRows + row_in_tile;
  if (row >= static_cast<int>(work.request.nodes) * args.heads) return 0.0f;
  const bool nothing = sees_nothing || sum == 0.0f;
  const float lse = level + log2f(sum);
  if (!work.whole) {
    partials.lse[work.slot * kRows + row_in_tile] = nothing ? kNoMaximum : lse;
  } else if (args.lse != nullptr) {
    args.lse[(work.request.first_row + row / args.heads) * args.lse_token_stride +
             row % args.heads * args.lse_head_stride] = nothing ? -INFINITY : lse * kLn2;
  }
  return nothing ? 0.0f : 1.0f / sum;
}

// Keys in shared memory: rows far enough apart that ldmatrix meets all banks.
constexpr uint32_t kRowBytes = kWidth * 2 + 16;
constexpr uint32_t kTileBytes = kKeys * kRowBytes;

// Of the warp's first lane. Tells the compiler, which then counts in uniform registers, that all lanes have
// it.
__device__ inline uint32_t uniform(uint32_t x) {
  return __shfl_sync(~0u, x, 0);
}

// A value that the compiler cannot work out anew in a loop, as it else does, twenty instructions long: it
// does not know that this is no other lane's.
__device__ inline uint32_t kept(uint32_t x) {
  return __shfl_sync(~0u, x, static_cast<int>(threadIdx.x % kWarp));
}

// Tiles at, at + 1 of d += a * b: two of 16 rows each, and b as ldmatrix has it.
template <class T, int kCount>
__device__ __forceinline__ void multiply(float (&d)[2][kCount][4], int at, const uint32_t (&a)[2][4],
                                         const uint32_t (&b)[4]) {
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    ptx::mma<T>(d[m][at], a[m], b[0], b[1]);
    ptx::mma<T>(d[m][at + 1], a[m], b[2], b[3]);
  }
}

// A key's row, half a warp's: 72 times 16 bytes of `from`, or zeros where `bytes` is 0. `barrier` counts all
// lanes when theirs are there.
__device__ inline void copy_key(uint32_t to, const unsigned char* from, uint32_t bytes, bool has_last,
                                uint32_t barrier) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    ptx::cp_async_16(to + i * 256, from + i * 256, bytes);
  ptx::cp_async_16_if(has_last, to + 1024, from + 1024, bytes);
  ptx::cp_async_arrive(barrier);
}

// Where lane `lane` finds a slab's weights, [32, 16], for ldmatrix, and where it puts those of row lane / 4
// of eight. The two halves of a row, 16 bytes each, change places every four rows: ldmatrix meets all banks.
__device__ inline uint32_t weights_from(uint32_t lane) {
  return lane % 16 * 32 + ((lane / 16) ^ (lane / 4 % 2)) * 16;
}
__device__ inline uint32_t weights_to(uint32_t lane) {
  return lane / 4 * 32 + lane / 16 * 16 + lane % 4 * 4;
}

// Over the four lanes of a row: moves its level if it has to. The factor of what was summed so far.
template <class T>
__device__ float raise(float& level, float high) {
  high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
  high = fmaxf(high, __shfl_xor_sync(~0u, high, 2));
  if (!(high - level > kTop<T>)) return 1.0f;
  const float to = high - (kTop<T> - kHeadroom);
  const float scale = ptx::exp2_approx(level - to);
  level = to;
  return scale;
}

// Scores of a row that does not see them. Lane l has keys 8 * i + 2 * (l % 4) and the next one, in
// s[i][first], s[i][first + 1].
__device__ inline void hide(float (&s)[2][4], int first, uint32_t visible) {
  const uint32_t seen = visible >> (ptx::thread_index() % 4 * 2);
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    if ((seen >> (8 * i) & 1) == 0) s[i][first] = kUnseen;
    if ((seen >> (8 * i + 1) & 1) == 0) s[i][first + 1] = kUnseen;
  }
}

// 32 rows and 128 columns of the output, as products have them: a warp's share in either core. Partial
// results stay as they are, four values a lane: [2 slabs, 4 columns of 128, 2 of 16 rows, 16 of 8 columns, 32
// lanes, 4].
constexpr int kBlockTiles = 16;  // of 8 columns
__device__ inline int64_t partial_offset(int64_t slot, int slab, int column, int half, int tile) {
  return ((((slot * 2 + slab) * 4 + column) * 2 + half) * kBlockTiles + tile) * (kWarp * 4);
}
__device__ inline void store_block(const VerifyAttnArgs& args, const Partials& partials, const Work& work,
                                   int slab, int column, float (&out)[2][kBlockTiles][4],
                                   const float* inverses) {
  const int lane = static_cast<int>(ptx::thread_index() % kWarp);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row_in_tile = slab * 32 + half * 16 + lane / 4;
    const float inverse[2] = {inverses[row_in_tile], inverses[row_in_tile + 8]};
    // Once, before what follows makes several copies of it: the kernel's loops lie the nearer to each other.
#pragma unroll
    for (int tile = 0; tile < kBlockTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        out[half][tile][i] = inverse[i / 2] == 0.0f ? 0.0f : out[half][tile][i] * inverse[i / 2];
    if (!work.whole) {
      float* to = partials.out + partial_offset(work.slot, slab, column, half, 0) + lane * 4;
#pragma unroll
      for (int tile = 0; tile < kBlockTiles; ++tile) {
        const auto& x = out[half][tile];
        *reinterpret_cast<float4*>(to + tile * (kWarp * 4)) = make_float4(x[0], x[1], x[2], x[3]);
      }
      continue;
    }
    with_out_type(args, [&](auto type) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = work.row_tile * kRows + row_in_tile + i * 8;
        if (row >= static_cast<int>(work.request.nodes) * args.heads) continue;
        const int64_t to = (work.request.first_row + row / args.heads) * args.out_token_stride +
                           row % args.heads * args.out_head_stride + column * (kLatent / 4) + lane % 4 * 2;
#pragma unroll
        for (int tile = 0; tile < kBlockTiles; ++tile)
          store_pair<type.value>(args.out, to + tile * 8, out[half][tile][2 * i], out[half][tile][2 * i + 1]);
      }
    });
  }
}

}  // namespace kdtree::cuda
