// The verify problem: one POD struct for every backend, which is the C ABI's own parameter block, and the
// views that host code reads it through.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/checked.h"
#include "core/dtype.h"
#include "core/status.h"

namespace kdtree {

using VerifyProblem = kdtree_verify_attn_params;

inline int64_t row_width(const VerifyProblem& p) {
  return int64_t{p.latent_dim} + p.rope_dim;
}

// The strides with their defaults filled in. Elements (mask: bytes).
inline int64_t q_head_stride(const VerifyProblem& p) {
  return p.q_head_stride != 0 ? p.q_head_stride : row_width(p);
}
inline int64_t q_token_stride(const VerifyProblem& p) {
  return p.q_token_stride != 0 ? p.q_token_stride : p.heads * row_width(p);
}
inline int64_t out_head_stride(const VerifyProblem& p) {
  return p.out_head_stride != 0 ? p.out_head_stride : p.latent_dim;
}
inline int64_t out_token_stride(const VerifyProblem& p) {
  return p.out_token_stride != 0 ? p.out_token_stride : int64_t{p.heads} * p.latent_dim;
}
inline int64_t lse_head_stride(const VerifyProblem& p) {
  return p.lse_head_stride != 0 ? p.lse_head_stride : 1;
}
inline int64_t lse_token_stride(const VerifyProblem& p) {
  return p.lse_token_stride != 0 ? p.lse_token_stride : p.heads;
}
inline DType lse_dtype(const VerifyProblem& p) {
  return p.lse_dtype != 0 ? static_cast<DType>(p.lse_dtype) : DType::f32;
}
inline int64_t kv_row_stride(const VerifyProblem& p) {
  return p.kv_row_stride != 0 ? p.kv_row_stride : row_width(p);
}
inline int64_t draft_row_stride(const VerifyProblem& p) {
  return p.draft_row_stride != 0 ? p.draft_row_stride : row_width(p);
}
inline float kv_scale(const VerifyProblem& p) {
  return p.kv_scale != 0.0f ? p.kv_scale : 1.0f;
}

inline IndexArray qo_indptr(const VerifyProblem& p) {
  return {p.qo_indptr, static_cast<DType>(p.indptr_dtype)};
}
inline IndexArray kv_indptr(const VerifyProblem& p) {
  return {p.kv_indptr, static_cast<DType>(p.indptr_dtype)};
}
inline IndexArray kv_indices(const VerifyProblem& p) {
  return {p.kv_indices, static_cast<DType>(p.kv_indices_dtype)};
}
inline IndexArray draft_slots(const VerifyProblem& p) {
  return {p.draft_slots, static_cast<DType>(p.kv_indices_dtype)};
}

// One request's share of the batch. Host-readable indptr arrays only.
struct RequestView {
  int64_t row_begin = 0;     // first of its rows in the [T, ...] arrays
  int64_t nodes = 0;         // N
  int64_t prefix_begin = 0;  // first of its entries in kv_indices
  int64_t prefix_length = 0;
};

inline RequestView request_view(const VerifyProblem& p, int64_t request) {
  const IndexArray rows = qo_indptr(p);
  const IndexArray prefix = kv_indptr(p);
  return {rows[request], rows[request + 1] - rows[request], prefix[request],
          prefix[request + 1] - prefix[request]};
}

inline int64_t total_rows(const VerifyProblem& p) {
  return p.batch > 0 ? qo_indptr(p)[p.batch] : 0;
}

inline int64_t max_nodes(const VerifyProblem& p) {
  int64_t most = 0;
  for (int32_t r = 0; r < p.batch; ++r)
    most = std::max(most, request_view(p, r).nodes);
  return most;
}

inline int64_t max_prefix_length(const VerifyProblem& p) {
  int64_t most = 0;
  for (int32_t r = 0; r < p.batch; ++r)
    most = std::max(most, request_view(p, r).prefix_length);
  return most;
}

inline int64_t bits_stride(const VerifyProblem& p) {
  return p.bits_stride != 0 ? p.bits_stride : ceil_div(max_nodes(p), 64);
}

}  // namespace kdtree
