// A draft tree: struct of arrays, topological (parent < child), node 0 the root.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/status.h"

namespace kdtree {

// A tree somebody else stores. Empty depth, token or log_weight = not given.
struct TreeView {
  std::span<const int32_t> parent;     // [N] -1 for the root
  std::span<const int32_t> depth;      // [N] 0 for the root
  std::span<const int32_t> token;      // [N]
  std::span<const double> log_weight;  // [N] 0 for the root
  int64_t size() const { return static_cast<int64_t>(parent.size()); }
};

// parent[0] == -1 and 0 <= parent[i] < i; depths one more than the parent's; tokens distinct among
// siblings. A forward parent covers cycles: a cycle needs one. Errors: KDTREE_INVALID_TREE naming the node.
Status validate_tree(const TreeView& tree);

struct DraftTree {
  std::vector<int32_t> token;
  std::vector<int32_t> parent;
  std::vector<int32_t> depth;
  std::vector<double> log_weight;

  int64_t size() const { return static_cast<int64_t>(parent.size()); }
  TreeView view() const { return {parent, depth, token, log_weight}; }

  // Errors: KDTREE_INVALID_TREE; KDTREE_INVALID_ARGUMENT for arrays of different lengths or no node.
  // `log_weights` may be empty: all 0.
  static Result<DraftTree> from_parents(std::span<const int32_t> tokens, std::span<const int32_t> parents,
                                        std::span<const double> log_weights = {});
  // tokens[0] is the root's.
  static Result<DraftTree> chain(std::span<const int32_t> tokens, std::span<const double> log_weights = {});
};

// The part of `tree` that is `nodes`: ascending, the root and each node's parent among them.
DraftTree part_of(const DraftTree& tree, std::span<const int32_t> nodes);

// Writes depth[i] from parents that are already valid.
void depths_from_parents(std::span<const int32_t> parents, std::span<int32_t> depths);

}  // namespace kdtree
