// The flash kernel over slots: blocks that share out the batch's work evenly, then the merge of what was
// split.
#include <array>
#include <mutex>

#include "kernels/verify_attn_flash_roles.cuh"
#include "kernels/verify_attn_flash_slabs.cuh"

namespace kdtree::cuda {
namespace {

// Which core a device runs, by the code that it loads: the host asks a kernel for its threads. Registers
// change hands in architecture- and family-specific code alone.
#if defined(__CUDA_ARCH_FAMILY_SPECIFIC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL) || \
    defined(__CUDA_ARCH_FEAT_SM100_ALL) || defined(__CUDA_ARCH_FEAT_SM120_ALL)
template <class T, bool kCapped>
using FlashCore = FlashRoles<T, kCapped, std::conditional_t<(__CUDA_ARCH__ >= 1200), SmallRings, LargeRings>>;
#else
template <class T, bool kCapped>
using FlashCore = FlashSlabs<T, kCapped>;
#endif

// One block a multiprocessor, each on its stretch of the line.
template <class T, bool kCapped>
__global__ void __launch_bounds__(FlashCore<T, kCapped>::kThreads, 1)
    verify_attn_flash(const __grid_constant__ VerifyAttnArgs args,
                      const __grid_constant__ Partials partials) {
  extern __shared__ __align__(128) unsigned char memory[];
  ptx::launch_dependents();
  FlashCore<T, kCapped>::run(args, partials, {args.heads, gridDim.x, args.plan},
                             *reinterpret_cast<typename FlashCore<T, kCapped>::Shared*>(memory));
}

// The sum of up to kMergeChunk pieces in a lane's two rows and four values of each tile of 8 columns. All
// sums are made of such sums, whoever makes them: a row's bits do not depend on what else there is to merge.
constexpr int kMergeChunk =
    10;  // eight warps see to the pieces of two items that all blocks of an H200 share
template <int kTiles>
struct MergeSum {
  float level[2] = {kNoMaximum, kNoMaximum};
  float weights[2] = {};
  float sum[kTiles][4] = {};

  __device__ void add(const MergeSum& other) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float high = fmaxf(level[r], other.level[r]);
      const float own = ptx::exp2_approx(level[r] - high);
      const float others = ptx::exp2_approx(other.level[r] - high);
      level[r] = high;
      weights[r] = weights[r] * own + other.weights[r] * others;
#pragma unroll
      for (int c = 0; c < kTiles; ++c) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i)
          sum[c][i] = sum[c][i] * own + other.sum[c][i] * others;
      }
    }
  }
};

// 16 rows and kTiles times 8 columns of an item.
struct MergePart {
  int slab;
  int column;
  int half;
  int tile;

  __device__ int row_in_tile() const {
    return slab * 32 + half * 16 + static_cast<int>(threadIdx.x) % kWarp / 4;
  }
};

template <int kTiles, int kInFlight>
__device__ MergeSum<kTiles> merge_chunk(const Partials& partials, const MergeItem& item,
                                        const MergePart& part, int first) {
  const int pieces = min(static_cast<int>(item.pieces) - first, kMergeChunk);
  const auto slot = [&](int i) {
    return first + i == 0 ? item.first_slot : item.next_slot + (first + i - 1) * item.slot_step;
  };
  const float* from = partials.out + partial_offset(0, part.slab, part.column, part.half, part.tile) +
                      threadIdx.x % kWarp * 4;
  MergeSum<kTiles> s;
  float lse[kMergeChunk][2];
#pragma unroll
  for (int i = 0; i < kMergeChunk; ++i) {
    const float* at = partials.lse + slot(i) * kRows + part.row_in_tile();
    lse[i][0] = i < pieces ? __ldcg(at) : kNoMaximum;
    lse[i][1] = i < pieces ? __ldcg(at + 8) : kNoMaximum;
  }
#pragma unroll
  for (int begin = 0; begin < kMergeChunk; begin += kInFlight) {
    if (begin >= pieces) continue;
    float4 values[kInFlight][kTiles];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
#pragma unroll
      for (int c = 0; c < kTiles; ++c) {
        values[i][c] = begin + i < pieces ? __ldcg(reinterpret_cast<const float4*>(
                                                from + slot(begin + i) * (kRows * kLatent) + c * (kWarp * 4)))
                                          : float4{};
      }
    }
    if (begin == 0) {
#pragma unroll
      for (int i = 0; i < kMergeChunk; ++i) {
        s.level[0] = fmaxf(s.level[0], lse[i][0]);
        s.level[1] = fmaxf(s.level[1], lse[i][1]);
      }
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (begin + i >= pieces) continue;
      const float w0 = ptx::exp2_approx(lse[begin + i][0] - s.level[0]);
      const float w1 = ptx::exp2_approx(lse[begin + i][1] - s.level[1]);
      s.weights[0] += w0;
      s.weights[1] += w1;
#pragma unroll
      for (int c = 0; c < kTiles; ++c) {
        s.sum[c][0] += w0 * values[i][c].x;
        s.sum[c][1] += w0 * values[i][c].y;
        s.sum[c][2] += w1 * values[i][c].z;
        s.sum[c][3] += w1 * values[i][c].w;
      }
    }
  }
  return s;
}

template <int kTiles>
__device__ void store_merged(const VerifyAttnArgs& args, const MergeItem& item, int rows,
                             const MergePart& part, const MergeSum<kTiles>& s) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row_in_tile = part.row_in_tile() + 8 * r;
    if (row_in_tile >= rows) continue;
    const bool nothing = s.level[r] <= kNoMaximum;
    const float inverse = nothing ? 0.0f : 1.0f / s.weights[r];
    const int row = static_cast<int>(item.row_tile) * kRows + row_in_tile;
    const int64_t token = item.first_row + row / args.heads;
    const int64_t head = row % args.heads;
    const int64_t to = token * args.out_token_stride + head * args.out_head_stride +
                       part.column * (kLatent / 4) + part.tile * 8 + lane % 4 * 2;
    with_out_type(args, [&](auto type) {
#pragma unroll
      for (int c = 0; c < kTiles; ++c)
        store_pair<type.value>(args.out, to + c * 8, s.sum[c][2 * r] * inverse,
                               s.sum[c][2 * r + 1] * inverse);
    });
    if (part.column == 0 && part.tile == 0 && lane % 4 == 0 && args.lse != nullptr) {
      args.lse[token * args.lse_token_stride + head * args.lse_head_stride] =
          nothing ? -INFINITY : (s.level[r] + log2f(s.weights[r])) * kLn2;
    }
  }
}

// Adds up the partial results of split items. Where there are few, the warps of a block take a chunk each of
// one part of an item; where there are many, a part each.
__global__ void __launch_bounds__(kMergeThreads, kMergeBlocks)
    merge_partials(const __grid_constant__ VerifyAttnArgs args, const __grid_constant__ Partials partials,
                   int32_t most) {
  constexpr int kWarps = kMergeThreads / kWarp;
  constexpr int kParts = kRows / 16 * 4 * kBlockTiles;  // of an item, of one tile of columns
  constexpr int kWide = 2;                              // tiles
  __shared__ MergeItem items[kMergeThreads];
  __shared__ int32_t rows[kMergeThreads];
  __shared__ int32_t warp_items[kWarps];
  __shared__ MergeSum<1> sums[kWarps][kWarp];
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  ptx::wait_for_previous();
  const int32_t count = args.plan == KDTREE_PLAN_INVARIANT ? *partials.count : most;
  for (int32_t first = 0; first < count; first += kMergeThreads) {
    const int32_t at = first + static_cast<int32_t>(threadIdx.x);
    const int32_t own = at < count ? partials.rows[at] : 0;
    MergeItem item{};
    if (at < count) item = partials.items[at];  // what it holds if nothing is split is not looked at
    const unsigned split = __ballot_sync(~0u, own > 0);
    if (lane == 0) warp_items[warp] = __popc(split);
    __syncthreads();
    int32_t before = 0;
    int32_t all = 0;
    for (int i = 0; i < kWarps; ++i) {
      if (i < warp) before += warp_items[i];
      all += warp_items[i];
    }
    if (own > 0) {
      const int32_t to = before + __popc(split & ((1u << lane) - 1));
      items[to] = item;
      rows[to] = own;
    }
    __syncthreads();
    const auto part_of = [](int32_t job) {
      return MergePart{job / (2 * kBlockTiles) % 2, job / (4 * kBlockTiles) % 4, job / kBlockTiles % 2,
                       job % kBlockTiles};
    };
    const auto blocks = static_cast<int32_t>(gridDim.x);
    if (all * kParts <= 4 * blocks) {
      for (int32_t job = blockIdx.x; job < all * kParts; job += blocks) {
        const MergeItem& item = items[job / kParts];
        const MergePart part = part_of(job);
        if (part.slab * 32 + part.half * 16 >= rows[job / kParts]) continue;
        MergeSum<1> s;
        for (int from = 0; from < item.pieces; from += kWarps * kMergeChunk) {
          if (from + warp * kMergeChunk < item.pieces)
            sums[warp][lane] = merge_chunk<1, kMergeChunk>(partials, item, part, from + warp * kMergeChunk);
          __syncthreads();
          for (int i = 0; warp == 0 && i < kWarps && from + i * kMergeChunk < item.pieces; ++i)
            s.add(sums[i][lane]);
          __syncthreads();
        }
        if (warp == 0) store_merged(args, item, rows[job / kParts], part, s);
      }
    } else {
      for (int32_t job = blockIdx.x + warp * blocks; job < all * (kParts / kWide); job += blocks * kWarps) {
        const int32_t i = job / (kParts / kWide);
        const MergeItem& item = items[i];
        const MergePart part = part_of(job * kWide);
        if (part.slab * 32 + part.half * 16 >= rows[i]) continue;
        MergeSum<kWide> s;
        for (int from = 0; from < item.pieces; from += kMergeChunk)
          s.add(merge_chunk<kWide, 5>(partials, item, part, from));
        store_merged(args, item, rows[i], part, s);
      }
    }
    __syncthreads();
  }
}

static_assert(sizeof(FlashRoles<__nv_bfloat16, false, SmallRings>::Shared) <= kLeastSharedMemory);

// Of the core that `attributes` are of, as its threads tell.
template <class T, bool kCapped>
size_t shared_bytes(const cudaFuncAttributes& attributes) {
  if (attributes.maxThreadsPerBlock == FlashSlabs<T, kCapped>::kThreads)
    return sizeof(typename FlashSlabs<T, kCapped>::Shared);
  return attributes.binaryVersion >= 120 ? sizeof(typename FlashRoles<T, kCapped, SmallRings>::Shared)
                                         : sizeof(typename FlashRoles<T, kCapped, LargeRings>::Shared);
}

// What the current device runs of a kernel, which is loaded by asking and given the shared memory that it
// needs.
struct Loaded {
  cudaError_t error = cudaErrorInvalidDevice;
  int threads = 0;
  size_t shared = 0;
  // Kernels of ours may begin while the one before them ends: they wait for it themselves. The instruction
  // that waits is there from sm_90 on: in the code that this device runs, not only in the device.
  bool may_be_early = false;
};

template <class T, bool kCapped>
Loaded load() {
  auto* kernel = verify_attn_flash<T, kCapped>;
  cudaFuncAttributes attributes{};
  Loaded loaded;
  loaded.error = cudaFuncGetAttributes(&attributes, kernel);
  if (loaded.error != cudaSuccess) return loaded;
  loaded.threads = attributes.maxThreadsPerBlock;
  loaded.shared = shared_bytes<T, kCapped>(attributes);
  loaded.may_be_early = attributes.ptxVersion >= 90;
  loaded.error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(loaded.shared));
  return loaded;
}

// Asked once a device: a launch neither asks again nor touches an error of the caller's.
template <class T, bool kCapped>
const Loaded& loaded_on(int device) {
  constexpr int kDevices = 64;
  static std::array<std::once_flag, kDevices> once;
  static std::array<Loaded, kDevices> all;
  static const Loaded none;
  if (device < 0 || device >= kDevices) return none;
  const auto at = static_cast<size_t>(device);
  std::call_once(once[at], [at] { all[at] = load<T, kCapped>(); });
  return all[at];
}

template <class T, bool kCapped>
Launch launch(const VerifyAttnArgs& args, const Partials& partials, const LaunchDevice& device,
              bool behind_tree_bits, cudaStream_t stream) {
  const Loaded& loaded = loaded_on<T, kCapped>(device.device);
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(device.multiprocessors);
  config.blockDim = static_cast<unsigned>(loaded.threads);
  config.dynamicSmemBytes = loaded.shared;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = behind_tree_bits && loaded.may_be_early ? 1 : 0;
  if (loaded.error != cudaSuccess)
    return {"verify_attn_flash", config.gridDim, config.blockDim, config.dynamicSmemBytes, loaded.error};
  const Launch main =
      launch_kernel("verify_attn_flash", config, verify_attn_flash<T, kCapped>, args, partials);
  if (main.error != cudaSuccess) return main;
  config.gridDim = static_cast<unsigned>(kMergeBlocks * device.multiprocessors);
  config.blockDim = kMergeThreads;
  config.dynamicSmemBytes = 0;
  config.numAttrs = loaded.may_be_early ? 1 : 0;
  return launch_kernel("merge_partials", config, merge_partials, args, partials,
                       static_cast<int32_t>(device.multiprocessors));
}

}  // namespace

Launch launch_verify_attn_flash(const VerifyAttnArgs& args, const Partials& partials,
                                const LaunchDevice& device, bool behind_tree_bits, cudaStream_t stream) {
  if (args.max_rows == 0) return {};
  const auto run = args.kv_dtype == DType::bf16
                       ? args.logit_cap > 0.0f ? launch<__nv_bfloat16, true> : launch<__nv_bfloat16, false>
                   : args.logit_cap > 0.0f ? launch<__half, true>
                                           : launch<__half, false>;
  return run(args, partials, device, behind_tree_bits, stream);
}

cudaError_t flash_loads() {
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  for (const auto loaded : {loaded_on<__nv_bfloat16, false>, loaded_on<__nv_bfloat16, true>,
                            loaded_on<__half, false>, loaded_on<__half, true>}) {
    if (loaded(device).error != cudaSuccess) return loaded(device).error;
  }
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, merge_partials);
}

}  // namespace kdtree::cuda
