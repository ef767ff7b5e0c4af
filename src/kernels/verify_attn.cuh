// What the kernels know of a verify problem: device pointers and strides with their defaults filled in. And
// their launchers, which neither allocate nor synchronise.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "core/dtype.h"
#include "kdtree/kdtree.h"

namespace kdtree::cuda {

// Shared memory of a block on the parts that have least of it (sm_86, 89, 120); a kernel that asks for more
// does not run there.
constexpr int kLeastSharedMemory = 99 * 1024;

constexpr int kWarp = 32;
constexpr int kTreeBitsThreads = 128;
constexpr int kMergeThreads = 256;
constexpr int kMergeBlocks = 2;  // a multiprocessor

// int32 or int64 in device memory.
struct Indices {
  const void* base;
  bool wide;
  __device__ int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(base)[i] : static_cast<const int32_t*>(base)[i];
  }
};

struct VerifyAttnArgs {
  int32_t batch;
  int32_t heads;
  int32_t latent_dim;
  int32_t rope_dim;
  float scale;        // of scores, kv_scale included
  float value_scale;  // kv_scale
  float logit_cap;    // 0 = none
  // The flash kernels', whose exponents are of 2: what a score is multiplied by, twice over the cap if there
  // is one, and the cap. Worked out on the host, as registers are short.
  float base_2_scale;
  float base_2_cap;
  int32_t plan;  // KDTREE_PLAN_*

  DType q_dtype;
  DType kv_dtype;
  DType out_dtype;
  const void* q;
  void* out;
  float* lse;  // or null
  int64_t q_token_stride, q_head_stride;
  int64_t out_token_stride, out_head_stride;
  int64_t lse_token_stride, lse_head_stride;

  Indices qo_indptr;
  Indices kv_indptr;
  Indices kv_indices;   // base null: contiguous
  Indices draft_slots;  // base null: draft_kv
  const void* kv;
  const void* draft_kv;
  int64_t kv_row_stride;
  int64_t draft_row_stride;

  const uint64_t* ancestor_bits;  // [T, bits_stride]
  int64_t bits_stride;
  int64_t max_rows;  // T or more: rows from qo_indptr[batch] on are left alone
};

// The trees of a batch, in whichever encoding, as ancestor bits.
struct TreeArgs {
  int32_t batch;
  int32_t encoding;  // KDTREE_TREE_*, not KDTREE_TREE_ANCESTOR_BITS
  Indices qo_indptr;
  Indices kv_indptr;
  const int32_t* parents;
  const uint8_t* mask;
  const int64_t* mask_indptr;
  int64_t mask_row_stride;
  int64_t mask_column_offset;
  uint64_t* bits;  // [max_rows, bits_stride]
  int64_t bits_stride;
  int64_t max_rows;
};

// What was launched last: the kernel that failed, where one did.
struct Launch {
  const char* kernel = "none";
  dim3 grid{0};
  dim3 block{0};
  size_t shared_bytes = 0;  // dynamic
  cudaError_t error = cudaSuccess;
};

// A row whose parent is not before it, or less than -1, becomes a padding row.
Launch launch_tree_bits(const TreeArgs& args, cudaStream_t stream);

// One warp a row and head, fp32, key by key.
Launch launch_verify_attn_naive(const VerifyAttnArgs& args, cudaStream_t stream);

// Whether the current device runs a backend's kernels, which are loaded by asking: before a capture then, as
// the size query comes first.
cudaError_t naive_loads();
cudaError_t flash_loads();

// What launchers ask of the device.
struct LaunchDevice {
  int device;  // the current one
  int multiprocessors;
};

// A row tile whose keys are in several pieces, which the merge adds up.
struct MergeItem {
  int64_t first_row;  // of the request
  int64_t row_tile;
  int64_t pieces;
  // Of the first piece, of the second one, and on from there.
  int64_t first_slot;
  int64_t next_slot;
  int64_t slot_step;
};

// Scratch: partial results for SplitPlan::most_slots(), and what becomes of them.
struct Partials {
  float* out;        // [slots, 64 * 512], as products have them
  float* lse;        // [slots, 64], base 2; kNoMaximum where a row saw nothing
  MergeItem* items;  // [SplitPlan::most_merges()]
  int32_t* rows;     // of each item; 0: nothing to merge
  int32_t* count;    // [1], of items with the invariant plan; else a block each
};

// Tensor cores, split-KV, any slots. latent_dim 512, rope_dim 64; q and KV both bf16 or both f16; KV rows and
// q aligned to 16 bytes, out to a pair of its elements. A block a multiprocessor. `behind_tree_bits`:
// launch_tree_bits() is what the stream has just before.
Launch launch_verify_attn_flash(const VerifyAttnArgs& args, const Partials& partials,
                                const LaunchDevice& device, bool behind_tree_bits, cudaStream_t stream);

#ifdef __CUDACC__
// Of entry `i` of the prefixes.
__device__ inline int64_t prefix_slot(const VerifyAttnArgs& args, int64_t i) {
  return args.kv_indices.base == nullptr ? i : args.kv_indices[i];
}

// Gives this launch's own error: one of the caller's, from before, is neither given nor cleared.
template <class... Params>
Launch launch_kernel(const char* name, const cudaLaunchConfig_t& config, void (*kernel)(Params...),
                     const Params&... params) {
  return {name, config.gridDim, config.blockDim, config.dynamicSmemBytes,
          cudaLaunchKernelEx(&config, kernel, params...)};
}

// The request that row `t` belongs to: the last one that begins at or before it. `t` < indptr[batch].
__device__ inline int32_t request_of(const Indices& indptr, int32_t batch, int64_t t) {
  int32_t low = 0;
  int32_t high = batch - 1;
  while (low < high) {
    const int32_t middle = low + (high - low + 1) / 2;
    if (indptr[middle] <= t) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}
#endif

}  // namespace kdtree::cuda
