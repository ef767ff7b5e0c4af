// How host backends walk a verify problem: request by request, row by row, the keys of a row in position
// order.
#pragma once

#include <span>

#include "attention/backend.h"
#include "attention/problem.h"
#include "attention/tree_encoding.h"
#include "core/scratch.h"

namespace kdtree {

// The KV rows one query row sees: one a position, the prefix's and then those of its own path.
class VisibleKeys {
 public:
  VisibleKeys(const VerifyProblem& problem, const RequestView& view, std::span<int32_t> path)
      : view_(view),
        slots_(kv_indices(problem)),
        draft_slots_(draft_slots(problem)),
        pool_(static_cast<const std::byte*>(problem.kv)),
        draft_(static_cast<const std::byte*>(problem.draft_kv)),
        pool_row_bytes_(kv_row_stride(problem) * dtype_size(static_cast<DType>(problem.kv_dtype))),
        draft_row_bytes_(draft_row_stride(problem) * dtype_size(static_cast<DType>(problem.kv_dtype))),
        in_pool_(problem.draft_location == KDTREE_DRAFT_IN_POOL),
        path_(path) {}

  // Turns to the row of `node`. A padding row sees nothing.
  void select(std::span<const int32_t> parents, int64_t node) {
    depth_ = 0;
    prefix_ = 0;
    if (parents[static_cast<size_t>(node)] == KDTREE_PARENT_PADDING) return;
    prefix_ = view_.prefix_length;
    for (int64_t n = node; n >= 0; n = parents[static_cast<size_t>(n)])
      ++depth_;
    int64_t n = node;
    for (int64_t d = depth_; d-- > 0; n = parents[static_cast<size_t>(n)]) {
      path_[static_cast<size_t>(d)] = static_cast<int32_t>(n);
    }
  }

  int64_t count() const { return prefix_ + depth_; }

  // The KV row at `position` of the prefix, whatever row is selected.
  const std::byte* prefix_row(int64_t position) const {
    return pool_ + slots_[view_.prefix_begin + position] * pool_row_bytes_;
  }

  // The KV row at `position` of the sequence, 0 <= position < count().
  const std::byte* row(int64_t position) const {
    if (position < prefix_) return prefix_row(position);
    const int64_t t = view_.row_begin + path_[static_cast<size_t>(position - prefix_)];
    return in_pool_ ? pool_ + draft_slots_[t] * pool_row_bytes_ : draft_ + t * draft_row_bytes_;
  }

 private:
  RequestView view_;
  IndexArray slots_;
  IndexArray draft_slots_;
  const std::byte* pool_;
  const std::byte* draft_;
  int64_t pool_row_bytes_;
  int64_t draft_row_bytes_;
  bool in_pool_;
  std::span<int32_t> path_;  // nodes from the root to the row's own
  int64_t prefix_ = 0;
  int64_t depth_ = 0;
};

// Words that read_parents needs for the largest tree: only the bool mask is packed first.
inline int64_t mask_words(const VerifyProblem& problem) {
  if (problem.tree_encoding != KDTREE_TREE_BOOL_MASK) return 0;
  return saturating_mul(max_nodes(problem), ceil_div(max_nodes(problem), 64));
}

// What reading the trees takes from a workspace.
struct TreeBuffers {
  std::span<int32_t> parents;
  std::span<int32_t> path;
  std::span<uint64_t> bits;

  TreeBuffers(const VerifyProblem& problem, Scratch& scratch)
      : parents(scratch.take<int32_t>(max_nodes(problem))),
        path(scratch.take<int32_t>(max_nodes(problem))),
        bits(scratch.take<uint64_t>(mask_words(problem))) {}
};

// The most keys a row of the batch can see.
inline int64_t max_keys(const VerifyProblem& problem) {
  return max_prefix_length(problem) + max_nodes(problem);
}

// Calls compute(row t, keys) for every row of the batch until `progress` stops it.
template <class Compute>
Status for_each_row(const VerifyProblem& problem, const TreeBuffers& buffers, const Progress& progress,
                    const Compute& compute) {
  const int64_t total = total_rows(problem);
  for (int32_t r = 0; r < problem.batch; ++r) {
    const RequestView view = request_view(problem, r);
    const auto parents = buffers.parents.first(static_cast<size_t>(view.nodes));
    if (auto read = read_parents(problem, r, parents, buffers.bits); !read) {
      return with_context(std::move(read).error(), fmt::format("request {}: ", r));
    }
    VisibleKeys keys(problem, view, buffers.path);
    for (int64_t node = 0; node < view.nodes; ++node) {
      keys.select(parents, node);
      compute(view.row_begin + node, keys);
      if (progress && !progress(view.row_begin + node + 1, total)) return {};
    }
  }
  return {};
}

}  // namespace kdtree
