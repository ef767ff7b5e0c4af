// The baseline that is obviously right: one warp a row and head reads key after key, in position order, in
// fp32.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/verify_attn.cuh"

namespace kdtree::cuda {
namespace {

__device__ float load(const float* from) {
  return *from;
}
__device__ float load(const __half* from) {
  return __half2float(*from);
}
__device__ float load(const __nv_bfloat16* from) {
  return __bfloat162float(*from);
}
__device__ float load(const __nv_fp8_e4m3* from) {
  return static_cast<float>(*from);
}

__device__ void store(float* to, float value) {
  *to = value;
}
__device__ void store(__half* to, float value) {
  *to = __float2half_rn(value);
}
__device__ void store(__nv_bfloat16* to, float value) {
  *to = __float2bfloat16_rn(value);
}

__device__ float sum_over_warp(float x) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2)
    x += __shfl_xor_sync(~0u, x, lanes);
  return x;
}

// A row's softmax so far: the largest score, the sum of exponentials relative to it, and the weighted sum of
// values. Sums of kBlock keys are added up, as a million small numbers would drown in fp32 one by one.
template <class KV>
class Attention {
 public:
  // `values` and `totals`: latent_dim each.
  __device__ Attention(const VerifyAttnArgs& args, const float* q, float* values, float* totals)
      : args_(args), q_(q), values_(values), totals_(totals) {
    for (int c = threadIdx.x; c < args.latent_dim; c += kWarp)
      values_[c] = totals_[c] = 0.0f;
  }

  __device__ void add(const KV* key) {
    float dot = 0.0f;
    for (int c = threadIdx.x; c < args_.latent_dim + args_.rope_dim; c += kWarp)
      dot += q_[c] * load(key + c);
    float score = sum_over_warp(dot) * args_.scale;
    if (args_.logit_cap > 0.0f) score = args_.logit_cap * tanhf(score / args_.logit_cap);
    const float largest = fmaxf(largest_, score);
    const float before = expf(largest_ - largest);
    const float weight = expf(score - largest);
    if (before != 1.0f) total_ *= before;
    largest_ = largest;
    sum_ = sum_ * before + weight;
    for (int c = threadIdx.x; c < args_.latent_dim; c += kWarp) {
      if (before != 1.0f) totals_[c] *= before;
      values_[c] = values_[c] * before + weight * load(key + c);
    }
    if (++keys_ % kBlock == 0) end_block();
  }

  // Nothing was seen: 0 and -infinity.
  template <class Out>
  __device__ void finish(Out* out, float* lse) {
    end_block();
    const float inverse = total_ > 0.0f ? args_.value_scale / total_ : 0.0f;
    for (int c = threadIdx.x; c < args_.latent_dim; c += kWarp)
      store(out + c, totals_[c] * inverse);
    if (lse != nullptr && threadIdx.x == 0) *lse = total_ > 0.0f ? largest_ + logf(total_) : -INFINITY;
  }

 private:
  static constexpr int64_t kBlock = 1024;

  __device__ void end_block() {
    total_ += sum_;
    sum_ = 0.0f;
    for (int c = threadIdx.x; c < args_.latent_dim; c += kWarp) {
      totals_[c] += values_[c];
      values_[c] = 0.0f;
    }
  }

  const VerifyAttnArgs& args_;
  const float* q_;
  float* values_;  // each lane touches its own alone
  float* totals_;
  float largest_ = -1e30f;
  float sum_ = 0.0f;
  float total_ = 0.0f;
  int64_t keys_ = 0;
};

// Grid: [rows, heads]. Shared memory: the query, and two sums of values.
template <class Q, class KV, class Out>
__global__ void __launch_bounds__(kWarp) verify_attn_naive(const __grid_constant__ VerifyAttnArgs args) {
  extern __shared__ float shared[];
  const int64_t t = blockIdx.x;
  const int64_t head = blockIdx.y;
  if (t >= args.qo_indptr[args.batch]) return;
  const int32_t request = request_of(args.qo_indptr, args.batch, t);
  const int64_t first_row = args.qo_indptr[request];
  const int64_t prefix_begin = args.kv_indptr[request];
  const int64_t prefix_end = args.kv_indptr[request + 1];
  const uint64_t* bits = args.ancestor_bits + t * args.bits_stride;

  const int width = args.latent_dim + args.rope_dim;
  float* q = shared;
  const Q* from = static_cast<const Q*>(args.q) + t * args.q_token_stride + head * args.q_head_stride;
  for (int c = threadIdx.x; c < width; c += kWarp)
    q[c] = load(from + c);
  Attention<KV> attention(args, q, shared + width, shared + width + args.latent_dim);
  const KV* pool = static_cast<const KV*>(args.kv);
  const int64_t node = t - first_row;
  const bool padding = (bits[node / 64] >> (node % 64) & 1) == 0;
  if (!padding) {
    for (int64_t i = prefix_begin; i < prefix_end; ++i)
      attention.add(pool + prefix_slot(args, i) * args.kv_row_stride);
    for (int64_t i = 0; i <= node; ++i) {
      if ((bits[i / 64] >> (i % 64) & 1) == 0) continue;
      attention.add(args.draft_slots.base != nullptr
                        ? pool + args.draft_slots[first_row + i] * args.kv_row_stride
                        : static_cast<const KV*>(args.draft_kv) + (first_row + i) * args.draft_row_stride);
    }
  }
  Out* out = static_cast<Out*>(args.out) + t * args.out_token_stride + head * args.out_head_stride;
  float* lse =
      args.lse != nullptr ? args.lse + t * args.lse_token_stride + head * args.lse_head_stride : nullptr;
  attention.finish(out, lse);
}

// call(type) with a value of the element type that `dtype` names.
template <class Call>
Launch with_type(DType dtype, const Call& call) {
  switch (dtype) {
    case DType::f32:
      return call(float{});
    case DType::f16:
      return call(__half{});
    case DType::bf16:
      return call(__nv_bfloat16{});
    default:
      return {.kernel = "verify_attn_naive", .error = cudaErrorInvalidValue};
  }
}

}  // namespace

cudaError_t naive_loads() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, verify_attn_naive<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16>);
}

Launch launch_verify_attn_naive(const VerifyAttnArgs& args, cudaStream_t stream) {
  if (args.max_rows == 0) return {};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(args.max_rows), static_cast<unsigned>(args.heads));
  config.blockDim = kWarp;
  config.dynamicSmemBytes = sizeof(float) * static_cast<size_t>(3 * args.latent_dim + args.rope_dim);
  config.stream = stream;
  return with_type(args.q_dtype, [&](auto q) {
    return with_type(args.out_dtype, [&](auto out) {
      const auto launch = [&](auto kv) -> Launch {
        constexpr auto* kernel = verify_attn_naive<decltype(q), decltype(kv), decltype(out)>;
        if (config.dynamicSmemBytes > 48 * 1024) {
          const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                         static_cast<int>(config.dynamicSmemBytes));
          if (error != cudaSuccess)
            return {"verify_attn_naive", config.gridDim, config.blockDim, config.dynamicSmemBytes, error};
        }
        return launch_kernel("verify_attn_naive", config, kernel, args);
      };
      return args.kv_dtype == DType::e4m3 ? launch(__nv_fp8_e4m3{}) : with_type(args.kv_dtype, launch);
    });
  });
}

}  // namespace kdtree::cuda
