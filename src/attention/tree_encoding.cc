#include "attention/tree_encoding.h"

#include <algorithm>

#include "tree/ancestor_bits.h"
#include "tree/draft_tree.h"

namespace kdtree {
namespace {

// A parent array in which padding rows may stand anywhere; nothing descends from one.
Status check_parents(std::span<const int32_t> parents) {
  for (size_t i = 0; i < parents.size(); ++i) {
    const int32_t parent = parents[i];
    if (parent == KDTREE_PARENT_PADDING) continue;
    if (i == 0 ? parent != -1 : parent < 0 || static_cast<size_t>(parent) >= i) {
      return fail(KDTREE_INVALID_TREE, "parents: node {} has parent {}, expected {}", i, parent,
                  i == 0 ? "-1 (the root)" : fmt::format("0 .. {} (parents come first)", i - 1));
    }
    if (i > 0 && parents[static_cast<size_t>(parent)] == KDTREE_PARENT_PADDING) {
      return fail(KDTREE_INVALID_TREE, "parents: node {} descends from padding row {}", i, parent);
    }
  }
  return {};
}

Status bits_from_mask(const VerifyProblem& p, int64_t request, const RequestView& view,
                      std::span<uint64_t> bits, int64_t words) {
  const bool sglang_layout = p.mask_row_stride == 0;
  const int64_t row_stride = sglang_layout ? view.prefix_length + view.nodes : p.mask_row_stride;
  const int64_t first_column =
      sglang_layout || p.mask_column_offset == -1 ? view.prefix_length : p.mask_column_offset;
  const uint8_t* base = p.mask + p.mask_indptr[request];
  std::fill(bits.begin(), bits.end(), uint64_t{0});
  for (int64_t i = 0; i < view.nodes; ++i) {
    const uint8_t* row = base + i * row_stride;
    bool any = false;
    for (int64_t j = 0; j < view.nodes; ++j) {
      if (row[first_column + j] == 0) continue;
      bits[static_cast<size_t>(i * words + j / 64)] |= uint64_t{1} << (j % 64);
      any = true;
    }
    if (p.mask_skip_prefix != 0 || !any) continue;
    for (int64_t j = 0; j < view.prefix_length; ++j) {
      if (row[first_column - view.prefix_length + j] != 0) continue;
      return fail(KDTREE_UNSUPPORTED,
                  "mask: node {} has prefix column {} unset, expected every node to see the whole prefix", i,
                  j);
    }
  }
  return {};
}

}  // namespace

Status read_parents(const VerifyProblem& p, int64_t request, std::span<int32_t> parents,
                    std::span<uint64_t> bits) {
  const RequestView view = request_view(p, request);
  const auto nodes = static_cast<size_t>(view.nodes);
  switch (p.tree_encoding) {
    case KDTREE_TREE_CHAIN:
      for (size_t i = 0; i < nodes; ++i)
        parents[i] = static_cast<int32_t>(i) - 1;
      return {};
    case KDTREE_TREE_PARENTS:
      std::copy_n(p.parents + view.row_begin, nodes, parents.begin());
      return check_parents(parents);
    case KDTREE_TREE_ANCESTOR_BITS: {
      const int64_t stride = bits_stride(p);
      const std::span<const uint64_t> rows(p.ancestor_bits + view.row_begin * stride,
                                           nodes * static_cast<size_t>(stride));
      return parents_from_ancestor_bits(rows, stride, parents);
    }
    default: {
      const int64_t words = ceil_div(view.nodes, 64);
      const auto rows = bits.first(nodes * static_cast<size_t>(words));
      KDTREE_RETURN_IF_ERROR(bits_from_mask(p, request, view, rows, words));
      return parents_from_ancestor_bits(rows, words, parents);
    }
  }
}

Result<std::vector<int32_t>> read_parents(const VerifyProblem& p, int64_t request) {
  const int64_t nodes = request_view(p, request).nodes;
  std::vector<int32_t> parents(static_cast<size_t>(nodes));
  std::vector<uint64_t> bits(static_cast<size_t>(nodes * ceil_div(nodes, 64)));
  KDTREE_RETURN_IF_ERROR(read_parents(p, request, parents, bits));
  return parents;
}

}  // namespace kdtree
