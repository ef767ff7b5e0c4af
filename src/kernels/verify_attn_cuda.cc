#include <limits>
#include <numbers>

#include "attention/cuda_backends.h"
#include "attention/split_plan.h"
#include "attention/validate.h"
#include "kernels/devices.h"

#ifdef KDTREE_CUDA
#include "kernels/verify_attn.cuh"
#endif

namespace kdtree {

#ifdef KDTREE_CUDA

namespace {

constexpr int kLeastComputeCapability = 80;

int64_t words(const VerifyProblem& p) {
  return ceil_div(int64_t{p.max_nodes}, int64_t{64});
}

int64_t address(const void* p) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(p));
}

Status check_bounds(const VerifyProblem& p) {
  const struct {
    const char* field;
    int64_t value;
    int64_t most;
  } bounds[] = {{"max_rows", p.max_rows, std::numeric_limits<int32_t>::max()},
                {"max_nodes", p.max_nodes, std::numeric_limits<int32_t>::max()},
                {"max_prefix", p.max_prefix, std::numeric_limits<int64_t>::max() / 2}};
  for (const auto& [field, value, most] : bounds) {
    if (value >= 0 && value <= most) continue;
    return fail(KDTREE_INVALID_ARGUMENT, "{} is {}, expected 0 .. {} with KDTREE_MEMORY_CUDA", field, value,
                most);
  }
  if (p.max_rows > 0 && p.max_nodes == 0) {
    return fail(KDTREE_INVALID_ARGUMENT, "max_nodes is 0, expected at least 1 with max_rows {}", p.max_rows);
  }
  // The stride of 0 is of the largest tree, which the host does not know here.
  if (p.tree_encoding == KDTREE_TREE_ANCESTOR_BITS && p.max_nodes > 64 && p.bits_stride < words(p)) {
    return fail(KDTREE_INVALID_ARGUMENT, "bits_stride is {}, expected {} words or more for max_nodes {}",
                p.bits_stride, words(p), p.max_nodes);
  }
  const bool has_keys = p.max_prefix > 0 || (p.max_rows > 0 && p.draft_location == KDTREE_DRAFT_IN_POOL);
  if (has_keys && p.kv == nullptr) {
    return fail(KDTREE_INVALID_ARGUMENT, "kv is NULL, expected an array with max_rows {} and max_prefix {}",
                p.max_rows, p.max_prefix);
  }
  return {};
}

// Ancestor bits of the batch, which only other encodings need memory for.
std::span<uint64_t> take_bits(const VerifyProblem& p, Scratch& scratch) {
  const bool given = p.tree_encoding == KDTREE_TREE_ANCESTOR_BITS;
  return scratch.take<uint64_t>(given ? 0 : saturating_mul(p.max_rows, words(p)));
}

cuda::Indices indices(const void* base, int32_t dtype) {
  return {base, static_cast<DType>(dtype) == DType::i64};
}

cuda::TreeArgs tree_args(const VerifyProblem& p, std::span<uint64_t> bits) {
  return {.batch = p.batch,
          .encoding = p.tree_encoding,
          .qo_indptr = indices(p.qo_indptr, p.indptr_dtype),
          .kv_indptr = indices(p.kv_indptr, p.indptr_dtype),
          .parents = p.parents,
          .mask = p.mask,
          .mask_indptr = p.mask_indptr,
          .mask_row_stride = p.mask_row_stride,
          .mask_column_offset = p.mask_column_offset,
          .bits = bits.data(),
          .bits_stride = words(p),
          .max_rows = p.max_rows};
}

cuda::VerifyAttnArgs verify_args(const VerifyProblem& p, std::span<uint64_t> bits) {
  const bool given = p.tree_encoding == KDTREE_TREE_ANCESTOR_BITS;
  const bool in_pool = p.draft_location == KDTREE_DRAFT_IN_POOL;
  constexpr auto kLog2E = std::numbers::log2e_v<float>;
  const float scale = p.scale * kv_scale(p);
  return {.batch = p.batch,
          .heads = p.heads,
          .latent_dim = p.latent_dim,
          .rope_dim = p.rope_dim,
          .scale = scale,
          .value_scale = kv_scale(p),
          .logit_cap = p.logit_cap,
          .base_2_scale = kLog2E * scale * (p.logit_cap > 0.0f ? 2.0f / p.logit_cap : 1.0f),
          .base_2_cap = kLog2E * p.logit_cap,
          .plan = p.plan,
          .q_dtype = static_cast<DType>(p.q_dtype),
          .kv_dtype = static_cast<DType>(p.kv_dtype),
          .out_dtype = static_cast<DType>(p.out_dtype),
          .q = p.q,
          .out = p.out,
          .lse = static_cast<float*>(p.lse),
          .q_token_stride = q_token_stride(p),
          .q_head_stride = q_head_stride(p),
          .out_token_stride = out_token_stride(p),
          .out_head_stride = out_head_stride(p),
          .lse_token_stride = lse_token_stride(p),
          .lse_head_stride = lse_head_stride(p),
          .qo_indptr = indices(p.qo_indptr, p.indptr_dtype),
          .kv_indptr = indices(p.kv_indptr, p.indptr_dtype),
          .kv_indices = indices(p.kv_indices, p.kv_indices_dtype),
          .draft_slots = indices(in_pool ? p.draft_slots : nullptr, p.kv_indices_dtype),
          .kv = p.kv,
          .draft_kv = p.draft_kv,
          .kv_row_stride = kv_row_stride(p),
          .draft_row_stride = draft_row_stride(p),
          .ancestor_bits = given ? p.ancestor_bits : bits.data(),
          .bits_stride = given && p.bits_stride != 0 ? p.bits_stride : words(p),
          .max_rows = p.max_rows};
}

// The current device; `multiprocessors`: as if it had as many, 0 = as it has.
Result<cuda::LaunchDevice> launch_device(int multiprocessors) {
  cuda::LaunchDevice result{};
  cudaError_t error = cudaGetDevice(&result.device);
  result.multiprocessors = multiprocessors;
  if (error == cudaSuccess && multiprocessors == 0)
    error = cudaDeviceGetAttribute(&result.multiprocessors, cudaDevAttrMultiProcessorCount, result.device);
  if (error != cudaSuccess) {
    return fail(KDTREE_CUDA_ERROR, "the current CUDA device: {} ({})", cudaGetErrorString(error),
                cudaGetErrorName(error));
  }
  return result;
}

cuda::Partials take_partials(const VerifyProblem& p, const cuda::LaunchDevice& device, Scratch& scratch) {
  const SplitPlan plan{p.heads, device.multiprocessors, p.plan};
  const int64_t rows =
      saturating_mul(plan.most_slots(p.batch, p.max_rows, p.max_prefix), SplitPlan::kRowTile);
  const int64_t merges = plan.most_merges(p.batch, p.max_rows);
  return {.out = scratch.take<float>(saturating_mul(rows, p.latent_dim)).data(),
          .lse = scratch.take<float>(rows).data(),
          .items = scratch.take<cuda::MergeItem>(merges).data(),
          .rows = scratch.take<int32_t>(merges).data(),
          .count = scratch.take<int32_t>(1).data()};
}

Status naive_supports(const VerifyProblem& p) {
  KDTREE_RETURN_IF_ERROR(check_no_f64(p, "a type that cuda-naive has"));
  const int64_t shared = 4 * (row_width(p) + 2 * p.latent_dim);
  if (shared > cuda::kLeastSharedMemory) {
    return fail(
        KDTREE_UNSUPPORTED,
        "latent_dim is {} and rope_dim {}, expected 3 * latent_dim + rope_dim of at most {} on cuda-naive",
        p.latent_dim, p.rope_dim, cuda::kLeastSharedMemory / 4);
  }
  return {};
}

Status flash_supports(const VerifyProblem& p, bool paged) {
  const char* name = paged ? "cuda-flash-paged" : "cuda-flash";
  if (paged && p.kv_indices == nullptr && p.max_prefix > 0) {
    return fail(KDTREE_UNSUPPORTED, "kv_indices is NULL, expected slots on {} (contiguous: cuda-flash)",
                name);
  }
  if (!paged && p.kv_indices != nullptr) {
    return fail(
        KDTREE_UNSUPPORTED,
        "kv_indices is an array, expected NULL for contiguous prefixes on {} (slots: cuda-flash-paged)",
        name);
  }
  if (p.latent_dim != 512 || p.rope_dim != 64) {
    return fail(KDTREE_UNSUPPORTED, "latent_dim is {} and rope_dim {}, expected 512 and 64 on {}",
                p.latent_dim, p.rope_dim, name);
  }
  if (p.kv_dtype != KDTREE_DTYPE_BF16 && p.kv_dtype != KDTREE_DTYPE_F16) {
    return fail(KDTREE_UNSUPPORTED, "kv_dtype is {}, expected bf16 or f16 on {}",
                dtype_name(static_cast<DType>(p.kv_dtype)), name);
  }
  const struct {
    const char* field;
    int32_t dtype;
    bool right;
    const char* expected;
  } types[] = {{"q_dtype", p.q_dtype, p.q_dtype == p.kv_dtype, "kv_dtype"},
               {"out_dtype", p.out_dtype, p.out_dtype != KDTREE_DTYPE_F64, "f32, f16 or bf16"},
               {"lse_dtype", p.lse_dtype, p.lse_dtype != KDTREE_DTYPE_F64, "f32"}};
  for (const auto& [field, dtype, right, expected] : types) {
    if (right) continue;
    return fail(KDTREE_UNSUPPORTED, "{} is {}, expected {} on {}", field,
                dtype_name(static_cast<DType>(dtype)), expected, name);
  }
  // Rows (node * heads + head) are counted in int.
  if (p.max_rows * p.heads > std::numeric_limits<int32_t>::max()) {
    return fail(KDTREE_UNSUPPORTED, "max_rows is {} and heads {}, expected a product below 2^31 on {}",
                p.max_rows, p.heads, name);
  }
  // Loads of 16 bytes, and stores of pairs of elements.
  const bool in_pool = p.draft_location == KDTREE_DRAFT_IN_POOL;
  const auto pair = static_cast<int64_t>(2 * dtype_size(static_cast<DType>(p.out_dtype)));
  const struct {
    const char* field;
    int64_t value;
    int64_t multiple;
  } strides[] = {{"kv_row_stride", kv_row_stride(p), 8},
                 {"draft_row_stride", in_pool ? 0 : draft_row_stride(p), 8},
                 {"q_token_stride", q_token_stride(p), 8},
                 {"q_head_stride", q_head_stride(p), 8},
                 {"out_token_stride", out_token_stride(p), 2},
                 {"out_head_stride", out_head_stride(p), 2},
                 {"kv (its address)", address(p.kv), 16},
                 {"draft_kv (its address)", in_pool ? 0 : address(p.draft_kv), 16},
                 {"q (its address)", address(p.q), 16},
                 {"out (its address)", address(p.out), pair}};
  for (const auto& [field, value, multiple] : strides) {
    if (value % multiple == 0) continue;
    return fail(KDTREE_UNSUPPORTED, "{} is {}, expected a multiple of {} on {}", field, value, multiple,
                name);
  }
  return {};
}

Status launched(const cuda::Launch& launch) {
  if (launch.error == cudaSuccess) return {};
  int device = -1;
  (void)cudaGetDevice(&device);
  const auto text = [](const dim3& size) { return fmt::format("{} x {} x {}", size.x, size.y, size.z); };
  return fail(KDTREE_CUDA_ERROR,
              "{}, grid {}, block {}, {} bytes of dynamic shared memory, on device {}: {} ({})",
              launch.kernel, text(launch.grid), text(launch.block), launch.shared_bytes, device,
              cudaGetErrorString(launch.error), cudaGetErrorName(launch.error));
}

}  // namespace

int current_cuda_device() {
  int device = -1;
  return cudaGetDevice(&device) == cudaSuccess ? device : -1;
}

Backend cuda_backend(int32_t id, const char* name) {
  const auto devices = cuda_devices();
  if (!devices) return {id, name, false, devices.error().message};
  const auto current = static_cast<size_t>(current_cuda_device());
  if (current >= devices->size()) {
    return {id, name, false,
            fmt::format("required: a CUDA device of sm_{} or later, present: none", kLeastComputeCapability)};
  }
  const CudaDevice& device = (*devices)[current];
  const std::string present = fmt::format("{}, sm_{}", device.name, device.compute_capability);
  if (device.compute_capability < kLeastComputeCapability) {
    return {id, name, false,
            fmt::format("required: sm_{} or later, present: {}", kLeastComputeCapability, present)};
  }
  const bool naive = id == KDTREE_BACKEND_CUDA_NAIVE;
  const cudaError_t error = naive ? cuda::naive_loads() : cuda::flash_loads();
  if (error != cudaSuccess) {
    (void)cudaGetLastError();  // the caller is told here
    return {id, name, false,
            fmt::format("required: its kernels on {}, present: {} ({})", present, cudaGetErrorString(error),
                        cudaGetErrorName(error))};
  }
  return {id, name, true,
          fmt::format("{}; {}", present,
                      naive                             ? "fp32, key by key"
                      : id == KDTREE_BACKEND_CUDA_FLASH ? "tensor cores, contiguous KV"
                                                        : "tensor cores, slots")};
}

Status cuda_supports(const VerifyProblem& p, int32_t backend) {
  KDTREE_RETURN_IF_ERROR(check_bounds(p));
  return backend == KDTREE_BACKEND_CUDA_NAIVE ? naive_supports(p)
                                              : flash_supports(p, backend == KDTREE_BACKEND_CUDA_FLASH_PAGED);
}

Status cuda_scratch(const VerifyProblem& problem, int32_t backend, Scratch& scratch, int multiprocessors) {
  const auto device = launch_device(multiprocessors);
  KDTREE_RETURN_IF_ERROR(device);
  (void)take_bits(problem, scratch);
  if (backend != KDTREE_BACKEND_CUDA_NAIVE) (void)take_partials(problem, *device, scratch);
  return {};
}

Status run_cuda(const VerifyProblem& problem, int32_t backend, Scratch& scratch, void* stream,
                int multiprocessors) {
  const auto device = launch_device(multiprocessors);
  KDTREE_RETURN_IF_ERROR(device);
  const bool flash = backend != KDTREE_BACKEND_CUDA_NAIVE;
  const std::span<uint64_t> bits = take_bits(problem, scratch);
  const cuda::Partials partials = flash ? take_partials(problem, *device, scratch) : cuda::Partials{};
  KDTREE_RETURN_IF_ERROR(scratch.check());
  if (problem.batch == 0 || problem.max_rows == 0) return {};
  auto* on = static_cast<cudaStream_t>(stream);
  const bool packs = problem.tree_encoding != KDTREE_TREE_ANCESTOR_BITS;
  if (packs) KDTREE_RETURN_IF_ERROR(launched(launch_tree_bits(tree_args(problem, bits), on)));
  const cuda::VerifyAttnArgs args = verify_args(problem, bits);
  if (!flash) return launched(launch_verify_attn_naive(args, on));
  return launched(launch_verify_attn_flash(args, partials, *device, packs, on));
}

#else

namespace {

Status no_cuda() {
  return fail(KDTREE_BACKEND_UNAVAILABLE, "this build has no CUDA");
}

}  // namespace

int current_cuda_device() {
  return -1;
}

Backend cuda_backend(int32_t id, const char* name) {
  return {id, name, false, cuda_devices().error().message};
}

Status cuda_supports(const VerifyProblem& /*problem*/, int32_t /*backend*/) {
  return no_cuda();
}

Status cuda_scratch(const VerifyProblem& /*problem*/, int32_t /*backend*/, Scratch& /*scratch*/,
                    int /*multiprocessors*/) {
  return no_cuda();
}

Status run_cuda(const VerifyProblem& /*problem*/, int32_t /*backend*/, Scratch& /*scratch*/, void* /*stream*/,
                int /*multiprocessors*/) {
  return no_cuda();
}

#endif

}  // namespace kdtree
