#include "kernels/device_problem.h"

#ifdef KDTREE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace kdtree {

#ifdef KDTREE_CUDA

namespace {

Status check(cudaError_t error, const char* call, size_t bytes) {
  if (error == cudaSuccess) return {};
  return fail(KDTREE_CUDA_ERROR, "{} of {} bytes: {} ({})", call, bytes, cudaGetErrorString(error),
              cudaGetErrorName(error));
}

}  // namespace

Result<DeviceMemory> DeviceMemory::create(size_t bytes) {
  void* memory = nullptr;
  // An empty array has an address too.
  KDTREE_RETURN_IF_ERROR(check(cudaMalloc(&memory, bytes > 0 ? bytes : 1), "cudaMalloc", bytes));
  DeviceMemory result;
  result.memory_.reset(memory);
  result.bytes_ = bytes;
  return result;
}

void DeviceMemory::Free::operator()(void* memory) const {
  (void)cudaFree(memory);
}

Status DeviceMemory::copy_from_host(const void* from) {
  return check(cudaMemcpy(data(), from, bytes_, cudaMemcpyHostToDevice), "cudaMemcpy", bytes_);
}

Status DeviceMemory::copy_to_host(void* to) const {
  return check(cudaMemcpy(to, data(), bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy", bytes_);
}

Status DeviceMemory::fill(int byte) {
  return check(cudaMemset(data(), byte, bytes_), "cudaMemset", bytes_);
}

Status wait_for_device() {
  const cudaError_t error = cudaDeviceSynchronize();
  if (error == cudaSuccess) return {};
  return fail(KDTREE_CUDA_ERROR, "a kernel failed: {} ({})", cudaGetErrorString(error),
              cudaGetErrorName(error));
}

#else

Result<DeviceMemory> DeviceMemory::create(size_t /*bytes*/) {
  return fail(KDTREE_UNSUPPORTED, "this build has no CUDA (required: nvcc at build time, the cuda preset)");
}

void DeviceMemory::Free::operator()(void* /*memory*/) const {}

Status DeviceMemory::copy_from_host(const void* /*from*/) {
  return {};
}

Status DeviceMemory::copy_to_host(void* /*to*/) const {
  return {};
}

Status DeviceMemory::fill(int /*byte*/) {
  return {};
}

Status wait_for_device() {
  return {};
}

#endif

namespace {

// Absent tensors stay absent.
Status copy(const Tensor& tensor, DeviceMemory& to) {
  if (!tensor.present()) return {};
  auto memory = DeviceMemory::create(tensor.bytes.size());
  KDTREE_RETURN_IF_ERROR(memory);
  to = *std::move(memory);
  return to.copy_from_host(tensor.bytes.data());
}

}  // namespace

Result<DeviceProblem> DeviceProblem::create(const OwnedProblem& problem, const VerifyProblem& params,
                                            const Tensor& out, const Tensor& lse) {
  DeviceProblem device;
  VerifyProblem& p = device.params_;
  p = params;
  p.memory = KDTREE_MEMORY_CUDA;
  p.max_rows = total_rows(params);
  p.max_nodes = static_cast<int32_t>(max_nodes(params));
  p.max_prefix = max_prefix_length(params);
  if (p.bits_stride == 0)
    p.bits_stride = ceil_div(int64_t{p.max_nodes}, int64_t{64});  // what 0 says on the host
  const Tensor* tensors[kArrays] = {&problem.q,
                                    &problem.qo_indptr,
                                    &problem.kv_indptr,
                                    &problem.kv,
                                    &problem.kv_indices,
                                    &problem.draft_slots,
                                    &problem.draft_kv,
                                    &problem.parents,
                                    &problem.ancestor_bits,
                                    &problem.mask,
                                    &problem.mask_indptr,
                                    &out,
                                    &lse};
  void* data[kArrays];
  for (size_t i = 0; i < kArrays; ++i) {
    KDTREE_RETURN_IF_ERROR(copy(*tensors[i], device.arrays_[i]));
    data[i] = device.arrays_[i].data();
  }
  p.q = data[0];
  p.qo_indptr = data[1];
  p.kv_indptr = data[2];
  p.kv = data[3];
  p.kv_indices = data[4];
  p.draft_slots = data[5];
  p.draft_kv = data[6];
  p.parents = static_cast<const int32_t*>(data[7]);
  p.ancestor_bits = static_cast<const uint64_t*>(data[8]);
  p.mask = static_cast<const uint8_t*>(data[9]);
  p.mask_indptr = static_cast<const int64_t*>(data[10]);
  p.out = data[kOut];
  p.lse = data[kLse];
  return device;
}

Status DeviceProblem::read_outputs(Tensor& out, Tensor& lse) const {
  KDTREE_RETURN_IF_ERROR(arrays_[kOut].copy_to_host(out.bytes.data()));
  if (!lse.present()) return {};
  return arrays_[kLse].copy_to_host(lse.bytes.data());
}

}  // namespace kdtree
