// Running a case on a backend.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "attention/backend.h"
#include "cases/verify_case.h"
#include "core/scratch.h"

namespace kdtree::testing {

inline VerifyCase make(const CaseSpec& spec) {
  auto made = make_verify_case(spec);
  EXPECT_TRUE(made) << made.error().message;
  return std::move(*made);
}

// Workspace as the library asks for it, poisoned, so that reading it before writing shows.
inline Status run_problem(const VerifyProblem& p) {
  const auto bytes = verify_workspace_size(p);
  if (!bytes) return tl::unexpected<Error>(bytes.error());
  std::vector<std::byte> memory(*bytes + Scratch::kAlignment, std::byte{0xff});
  auto base = reinterpret_cast<uintptr_t>(memory.data());
  base = (base + Scratch::kAlignment - 1) / Scratch::kAlignment * Scratch::kAlignment;
  return run_verify(p, reinterpret_cast<void*>(base), *bytes, nullptr);
}

inline Status run_case(OwnedProblem& problem, int32_t backend) {
  VerifyProblem p = problem.params();
  p.backend = backend;
  return run_problem(p);
}

// Replaces the outputs by fp64 ones full of NaN.
inline void want_f64(OwnedProblem& problem) {
  VerifyProblem& s = problem.scalars;
  s.out_dtype = KDTREE_DTYPE_F64;
  s.lse_dtype = KDTREE_DTYPE_F64;
  problem.out = Tensor(DType::f64, problem.out.shape);
  if (problem.lse.present()) problem.lse = Tensor(DType::f64, problem.lse.shape);
  for (Tensor* tensor : {&problem.out, &problem.lse}) {
    for (double& x : tensor->as<double>())
      x = std::numeric_limits<double>::quiet_NaN();
  }
}

// [T, H, latent] and [T, H], strides taken out.
inline std::vector<double> outputs(const OwnedProblem& problem) {
  const VerifyProblem& p = problem.scalars;
  std::vector<double> values;
  for (int64_t t = 0; t < problem.out.shape[0]; ++t) {
    for (int64_t h = 0; h < p.heads; ++h) {
      for (int64_t c = 0; c < p.latent_dim; ++c) {
        values.push_back(problem.out.value(t * out_token_stride(p) + h * out_head_stride(p) + c));
      }
    }
  }
  return values;
}

inline std::vector<double> lses(const OwnedProblem& problem) {
  const VerifyProblem& p = problem.scalars;
  std::vector<double> values;
  for (int64_t t = 0; problem.lse.present() && t < problem.lse.shape[0]; ++t) {
    for (int64_t h = 0; h < p.heads; ++h) {
      values.push_back(problem.lse.value(t * lse_token_stride(p) + h * lse_head_stride(p)));
    }
  }
  return values;
}

// |a - b| / |b| over all elements; NaN if anything is NaN.
inline double relative_frobenius(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm > 0.0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

// The largest error, where equal infinities agree.
inline double max_error(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    const double error = std::fabs(a[i] - b[i]);
    if (!(error <= most)) most = error;
  }
  return most;
}

}  // namespace kdtree::testing
