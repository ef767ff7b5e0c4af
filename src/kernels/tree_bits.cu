#include "kernels/ptx/ptx.cuh"
#include "kernels/verify_attn.cuh"

namespace kdtree::cuda {
namespace {

__device__ void set_bit(uint64_t* words, int64_t i) {
  words[i / 64] |= uint64_t{1} << (i % 64);
}

// One thread a row.
__global__ void __launch_bounds__(kTreeBitsThreads) tree_bits(TreeArgs args) {
  ptx::launch_dependents();
  const int64_t t = int64_t{blockIdx.x} * kTreeBitsThreads + threadIdx.x;
  if (t >= args.qo_indptr[args.batch]) return;
  const int32_t request = request_of(args.qo_indptr, args.batch, t);
  const int64_t begin = args.qo_indptr[request];
  const int64_t nodes = args.qo_indptr[request + 1] - begin;
  const int64_t node = t - begin;
  uint64_t* words = args.bits + t * args.bits_stride;
  for (int64_t w = 0; w < args.bits_stride; ++w)
    words[w] = 0;
  if (args.encoding == KDTREE_TREE_CHAIN) {
    for (int64_t i = 0; i <= node; ++i)
      set_bit(words, i);
  } else if (args.encoding == KDTREE_TREE_PARENTS) {
    const int32_t* parents = args.parents + begin;
    // Parents come before their children, so this ends; what breaks the rule sees nothing.
    for (int64_t i = node; i >= 0;) {
      const int32_t parent = parents[i];
      if (parent >= i || parent < -1) {
        for (int64_t w = 0; w < args.bits_stride; ++w)
          words[w] = 0;
        return;
      }
      set_bit(words, i);
      i = parent;
    }
  } else {
    const int64_t prefix = args.kv_indptr[request + 1] - args.kv_indptr[request];
    const int64_t stride = args.mask_row_stride != 0 ? args.mask_row_stride : prefix + nodes;
    const bool behind_prefix = args.mask_row_stride == 0 || args.mask_column_offset < 0;
    const int64_t column = behind_prefix ? prefix : args.mask_column_offset;
    const uint8_t* row = args.mask + args.mask_indptr[request] + node * stride + column;
    for (int64_t i = 0; i <= node; ++i)
      if (row[i] != 0) set_bit(words, i);
  }
}

}  // namespace

Launch launch_tree_bits(const TreeArgs& args, cudaStream_t stream) {
  if (args.max_rows == 0) return {};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>((args.max_rows + kTreeBitsThreads - 1) / kTreeBitsThreads);
  config.blockDim = kTreeBitsThreads;
  config.stream = stream;
  return launch_kernel("tree_bits", config, tree_bits, args);
}

}  // namespace kdtree::cuda
