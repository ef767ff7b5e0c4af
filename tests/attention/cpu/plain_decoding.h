// Plain decoding of one row of a verify case: its path moved into the prefix, one query.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "attention/backend.h"
#include "attention/host_rows.h"
#include "cases/verify_case.h"
#include "tests/attention/run.h"

namespace kdtree::testing {

class PlainDecoding {
 public:
  explicit PlainDecoding(VerifyCase& c) : p_(c.problem.params()) {
    // A separate tensor of draft rows joins the pool, so that any row can be in a prefix.
    const auto element = static_cast<size_t>(dtype_size(static_cast<DType>(p_.kv_dtype)));
    width_ = static_cast<size_t>(row_width(p_)) * element;
    const auto row = [&](const void* base, int64_t index, int64_t stride) {
      return static_cast<const std::byte*>(base) + static_cast<size_t>(index * stride) * element;
    };
    for (int64_t s = 0; s < p_.kv_slots; ++s)
      append(row(p_.kv, s, kv_row_stride(p_)));
    for (int64_t t = 0; p_.draft_kv != nullptr && t < total_rows(p_); ++t)
      append(row(p_.draft_kv, t, draft_row_stride(p_)));
  }

  struct Row {
    std::vector<std::byte> out;  // [H, latent]
    std::vector<std::byte> lse;  // [H]
  };

  // `parents` of the request's tree.
  Row decode(int64_t request, int64_t node, const std::vector<int32_t>& parents) const {
    const RequestView view = request_view(p_, request);
    std::vector<int64_t> slots;
    for (int64_t n = node; n >= 0; n = parents[static_cast<size_t>(n)])
      slots.insert(slots.begin(), draft_slot(view.row_begin + n));
    std::vector<int64_t> prefix;
    for (int64_t i = 0; i < view.prefix_length; ++i)
      prefix.push_back(kv_indices(p_)[view.prefix_begin + i]);
    prefix.insert(prefix.end(), slots.begin(), slots.end() - 1);
    const std::vector<int64_t> rows = {0, 1};
    const std::vector<int64_t> prefixes = {0, static_cast<int64_t>(prefix.size())};

    VerifyProblem p = p_;
    p.batch = 1;
    p.indptr_dtype = p.kv_indices_dtype = KDTREE_DTYPE_I64;
    p.qo_indptr = rows.data();
    p.kv_indptr = prefixes.data();
    p.kv_indices = prefix.data();
    p.kv = pool_.data();
    p.kv_slots = static_cast<int64_t>(pool_.size() / width_);
    p.kv_row_stride = 0;
    p.draft_location = KDTREE_DRAFT_IN_POOL;
    p.draft_slots = &slots.back();
    p.draft_kv = nullptr;
    p.draft_row_stride = 0;
    p.tree_encoding = KDTREE_TREE_CHAIN;
    p.parents = nullptr;
    p.ancestor_bits = nullptr;
    p.bits_stride = 0;
    p.mask = nullptr;
    p.mask_indptr = nullptr;
    p.mask_row_stride = p.mask_column_offset = p.mask_skip_prefix = 0;
    p.q = static_cast<const std::byte*>(p_.q) +
          (view.row_begin + node) * q_token_stride(p_) * dtype_size(static_cast<DType>(p_.q_dtype));
    Row row;
    row.out.resize(
        static_cast<size_t>(p_.heads * p_.latent_dim * dtype_size(static_cast<DType>(p_.out_dtype))));
    row.lse.resize(p_.lse != nullptr ? static_cast<size_t>(p_.heads * dtype_size(lse_dtype(p_))) : 0);
    p.out = row.out.data();
    p.lse = p_.lse != nullptr ? row.lse.data() : nullptr;
    p.out_token_stride = p.out_head_stride = p.lse_token_stride = p.lse_head_stride = 0;
    p.backend = KDTREE_BACKEND_CPU;
    const Status status = run_problem(p);
    EXPECT_TRUE(status) << status.error().message;
    return row;
  }

  // The same row as the last run of the case left it.
  Row row_of_tree(int64_t request, int64_t node) const {
    const int64_t t = request_view(p_, request).row_begin + node;
    Row row;
    for (int64_t h = 0; h < p_.heads; ++h) {
      const auto out_size = static_cast<size_t>(dtype_size(static_cast<DType>(p_.out_dtype)));
      const auto* out = static_cast<const std::byte*>(p_.out) +
                        static_cast<size_t>(t * out_token_stride(p_) + h * out_head_stride(p_)) * out_size;
      row.out.insert(row.out.end(), out, out + static_cast<size_t>(p_.latent_dim) * out_size);
      if (p_.lse == nullptr) continue;
      const auto lse_size = static_cast<size_t>(dtype_size(lse_dtype(p_)));
      const auto* lse = static_cast<const std::byte*>(p_.lse) +
                        static_cast<size_t>(t * lse_token_stride(p_) + h * lse_head_stride(p_)) * lse_size;
      row.lse.insert(row.lse.end(), lse, lse + lse_size);
    }
    return row;
  }

 private:
  void append(const std::byte* row) { pool_.insert(pool_.end(), row, row + width_); }
  int64_t draft_slot(int64_t t) const {
    return p_.draft_kv != nullptr ? p_.kv_slots + t : draft_slots(p_)[t];
  }

  VerifyProblem p_;
  size_t width_;
  std::vector<std::byte> pool_;
};

}  // namespace kdtree::testing
