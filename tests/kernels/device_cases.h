// Cases on a device: what the tests of the CUDA backends share.
#pragma once

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "attention/backend.h"
#include "attention/cuda_backends.h"
#include "kernels/device_problem.h"
#include "tests/attention/reference.h"
#include "tests/attention/run.h"
#include "tests/cases/case_table.h"

namespace kdtree::testing {

constexpr int kPoison = 0xff;  // NaN in every floating type
constexpr int32_t kPlans[] = {KDTREE_PLAN_BALANCED, KDTREE_PLAN_INVARIANT};

// A failure ends the test with its message.
inline void require(const Status& status) {
  if (!status) throw std::runtime_error(status.error().message);
}
inline void require(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}
template <class T>
T require(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return *std::move(result);
}

// Available here or not.
inline std::vector<Backend> cuda_backends() {
  std::vector<Backend> list;
  for (const Backend& backend : backends()) {
    if (backend.id >= KDTREE_BACKEND_CUDA_NAIVE) list.push_back(backend);
  }
  return list;
}

inline std::string backend_name(const ::testing::TestParamInfo<Backend>& test) {
  std::string name = test.param.name;
  std::ranges::replace(name, '-', '_');
  return name;
}

inline bool is_flash(const Backend& backend) {
  return backend.id != KDTREE_BACKEND_CUDA_NAIVE;
}

// The case with the sizes and types that the backend has.
inline CaseSpec fitted(CaseSpec spec, const Backend& backend) {
  if (!is_flash(backend)) return spec;
  spec.contiguous = backend.id == KDTREE_BACKEND_CUDA_FLASH;
  spec.latent_dim = 512;
  spec.rope_dim = 64;
  if (spec.kv_dtype != DType::f16) spec.kv_dtype = DType::bf16;
  spec.q_dtype = spec.kv_dtype;
  spec.stride_padding = (spec.stride_padding + 7) / 8 * 8;
  return spec;
}

// Prefixes that are cut into many pieces, beside short ones; more nodes than a word of ancestor bits has.
inline CaseSpec long_spec() {
  CaseSpec spec;
  spec.name = "long";
  spec.heads = 2;
  spec.requests = {{2500, 20, TreeShape::random},
                   {0, 3, TreeShape::chain},
                   {0, 0, TreeShape::chain},
                   {277, 70, TreeShape::random, 3},
                   {6000, 3, TreeShape::star}};
  return spec;
}

// What rounding the output once allows, and the weights of the values where tensor cores multiply them.
inline double tolerance(const CaseSpec& spec, const Backend& backend) {
  const auto of = [](DType type) { return type == DType::bf16 ? 6e-3 : type == DType::f16 ? 7e-4 : 1e-5; };
  return is_flash(backend) ? std::max(of(spec.out_dtype), of(spec.kv_dtype)) : of(spec.out_dtype);
}

// The outputs of `problem`, a case of `spec`, against the reference.
inline void expect_close(const OwnedProblem& problem, const CaseSpec& spec, const Backend& backend,
                         const Reference& expected) {
  EXPECT_LE(relative_frobenius(outputs(problem), expected.out), tolerance(spec, backend));
  if (!spec.want_lse) return;
  // fp32 sums: an absolute error for scores of common sizes, a relative one for huge ones.
  double most = 1000.0;
  for (const double lse : expected.lse)
    if (std::isfinite(lse)) most = std::max(most, std::fabs(lse));
  EXPECT_LE(max_error(lses(problem), expected.lse), 1e-6 * most);
}

// Its arrays on the device, the outputs poisoned.
inline DeviceProblem to_device(OwnedProblem& problem) {
  for (Tensor* tensor : {&problem.out, &problem.lse})
    std::fill(tensor->bytes.begin(), tensor->bytes.end(), std::byte{kPoison});
  return require(DeviceProblem::create(problem, problem.params(), problem.out, problem.lse));
}

inline size_t workspace_bytes(const VerifyProblem& p, int multiprocessors = 0) {
  if (multiprocessors == 0) return require(verify_workspace_size(p));
  Scratch scratch;
  require(cuda_scratch(p, p.backend, scratch, multiprocessors));
  return require(scratch.measured());
}

inline DeviceMemory poisoned(size_t bytes) {
  DeviceMemory memory = require(DeviceMemory::create(bytes));
  require(memory.fill(kPoison));
  return memory;
}

// On as many multiprocessors as the device has, or as on a device that has another number.
inline void enqueue(const VerifyProblem& p, const DeviceMemory& workspace, cudaStream_t stream = nullptr,
                    int multiprocessors = 0) {
  if (multiprocessors == 0) return require(run_verify(p, workspace.data(), workspace.size(), stream));
  Scratch scratch(workspace.data(), workspace.size());
  require(run_cuda(p, p.backend, scratch, stream, multiprocessors));
}

// On the device, its outputs and workspace poisoned, and back.
inline void run_on_device(OwnedProblem& problem, const Backend& backend, int multiprocessors = 0) {
  const DeviceProblem device = to_device(problem);
  VerifyProblem p = device.params();
  p.backend = backend.id;
  const DeviceMemory workspace = poisoned(workspace_bytes(p, multiprocessors));
  enqueue(p, workspace, nullptr, multiprocessors);
  require(device.read_outputs(problem.out, problem.lse));
}

// Arrays of one row (or entry) a node get `rows` of them: poison behind those that are there, or fewer.
inline void set_rows(OwnedProblem& problem, int64_t rows) {
  for (Tensor* tensor : {&problem.q, &problem.out, &problem.lse, &problem.parents, &problem.ancestor_bits,
                         &problem.draft_slots, &problem.draft_kv}) {
    if (!tensor->present()) continue;
    tensor->shape[0] = rows;
    tensor->bytes.resize(static_cast<size_t>(tensor->size() * dtype_size(tensor->dtype)), std::byte{kPoison});
  }
}

// Outputs from row `rows` on.
inline bool poisoned_from(const OwnedProblem& problem, int64_t rows) {
  return std::ranges::all_of(std::vector{&problem.out, &problem.lse}, [&](const Tensor* tensor) {
    if (!tensor->present()) return true;
    const int64_t row = tensor->size() / tensor->shape[0] * dtype_size(tensor->dtype);
    return std::all_of(tensor->bytes.begin() + rows * row, tensor->bytes.end(),
                       [](std::byte byte) { return byte == std::byte{kPoison}; });
  });
}

// Bytes of a tensor's rows [begin, end), strides' padding left out by poison being equal.
inline std::vector<std::byte> rows_of(const Tensor& tensor, int64_t begin, int64_t end) {
  const int64_t row = tensor.size() / std::max<int64_t>(1, tensor.shape[0]) * dtype_size(tensor.dtype);
  return {tensor.bytes.begin() + begin * row, tensor.bytes.begin() + end * row};
}

class CudaBackends : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!GetParam().available) GTEST_SKIP() << GetParam().name << ": " << GetParam().reason;
  }

  CaseSpec fit(const CaseSpec& spec) const { return fitted(spec, GetParam()); }

  VerifyCase fitted_case(const CaseSpec& spec, int32_t plan = KDTREE_PLAN_BALANCED) const {
    VerifyCase c = make(fit(spec));
    c.problem.scalars.plan = plan;
    return c;
  }

  void run(VerifyCase& c, int multiprocessors = 0) const {
    run_on_device(c.problem, GetParam(), multiprocessors);
  }

  void expect_right(const VerifyCase& c, const Reference& expected) const {
    SCOPED_TRACE(c.spec.name + " on " + GetParam().name + ", plan " + std::to_string(c.problem.scalars.plan));
    expect_close(c.problem, c.spec, GetParam(), expected);
  }

  // With each of these plans.
  void expect_right(const CaseSpec& spec,
                    std::initializer_list<int32_t> plans = {KDTREE_PLAN_BALANCED}) const {
    VerifyCase c = fitted_case(spec);
    const Reference expected = reference_attention(c);
    for (const int32_t plan : plans) {
      c.problem.scalars.plan = plan;
      run(c);
      expect_right(c, expected);
    }
  }
};

}  // namespace kdtree::testing
