#include "tree/retrieve.h"

#include <algorithm>

namespace kdtree {

void retrieve_from_parents(std::span<const int32_t> parents, std::span<int64_t> next_token,
                           std::span<int64_t> next_sibling) {
  std::fill(next_token.begin(), next_token.end(), int64_t{-1});
  std::fill(next_sibling.begin(), next_sibling.end(), int64_t{-1});
  // From the last node back: each becomes its parent's first child, before those already there.
  for (size_t i = parents.size(); i-- > 1;) {
    const auto parent = static_cast<size_t>(parents[i]);
    next_sibling[i] = next_token[parent];
    next_token[parent] = static_cast<int64_t>(i);
  }
}

Status parents_from_retrieve(std::span<const int64_t> next_token, std::span<const int64_t> next_sibling,
                             std::span<int32_t> parents) {
  constexpr int32_t kNotReached = -2;
  const auto nodes = static_cast<int64_t>(parents.size());
  if (parents.empty()) return fail(KDTREE_INVALID_TREE, "tree has 0 nodes, expected at least the root");
  std::fill(parents.begin(), parents.end(), kNotReached);
  parents[0] = -1;
  if (next_sibling[0] != -1) {
    return fail(KDTREE_INVALID_TREE, "retrieve_next_sibling[0] is {}, expected -1 (the root has no sibling)",
                next_sibling[0]);
  }
  // Ascending node order: a node's parent is known before its children are visited.
  for (int64_t node = 0; node < nodes; ++node) {
    if (parents[static_cast<size_t>(node)] == kNotReached) {
      return fail(KDTREE_INVALID_TREE,
                  "node {} is not reached from any earlier node, expected a parent before its child", node);
    }
    int64_t child = next_token[static_cast<size_t>(node)];
    const char* link = "retrieve_next_token";
    int64_t from = node;
    while (child != -1) {
      if (child <= node || child >= nodes) {
        return fail(KDTREE_INVALID_TREE, "{}[{}] is {}, expected -1 or a node after {} and below {}", link,
                    from, child, node, nodes);
      }
      int32_t& parent = parents[static_cast<size_t>(child)];
      if (parent != kNotReached) {
        return fail(KDTREE_INVALID_TREE, "{}[{}] is {}, which already is a child of node {}", link, from,
                    child, parent);
      }
      parent = static_cast<int32_t>(node);
      link = "retrieve_next_sibling";
      from = child;
      child = next_sibling[static_cast<size_t>(child)];
    }
  }
  return {};
}

}  // namespace kdtree
