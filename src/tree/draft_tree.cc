#include "tree/draft_tree.h"

#include <algorithm>

namespace kdtree {
namespace {

// First node, in node order, whose token equals that of an earlier sibling; -1 for none. Children of one
// parent are grouped by sorting node numbers by (parent, token, node).
int64_t duplicate_sibling(std::span<const int32_t> parents, std::span<const int32_t> tokens) {
  std::vector<int32_t> order(parents.size() - 1);
  for (size_t i = 0; i < order.size(); ++i)
    order[i] = static_cast<int32_t>(i) + 1;
  const auto key_less = [&](int32_t a, int32_t b) {
    const auto i = static_cast<size_t>(a);
    const auto j = static_cast<size_t>(b);
    if (parents[i] != parents[j]) return parents[i] < parents[j];
    return tokens[i] != tokens[j] ? tokens[i] < tokens[j] : a < b;
  };
  std::sort(order.begin(), order.end(), key_less);
  int64_t first = -1;
  for (size_t n = 1; n < order.size(); ++n) {
    const auto a = static_cast<size_t>(order[n - 1]);
    const auto b = static_cast<size_t>(order[n]);
    if (parents[a] != parents[b] || tokens[a] != tokens[b]) continue;
    if (first < 0 || order[n] < first) first = order[n];
  }
  return first;
}

}  // namespace

Status validate_tree(const TreeView& tree) {
  const int64_t nodes = tree.size();
  if (nodes == 0) return fail(KDTREE_INVALID_TREE, "tree has 0 nodes, expected at least the root");
  const auto length_ok = [&](size_t length) { return length == 0 || length == tree.parent.size(); };
  if (!length_ok(tree.depth.size()) || !length_ok(tree.token.size()) || !length_ok(tree.log_weight.size())) {
    return fail(KDTREE_INVALID_ARGUMENT,
                "tree arrays have {} parents, {} depths, {} tokens, {} log-weights, expected equal lengths",
                nodes, tree.depth.size(), tree.token.size(), tree.log_weight.size());
  }
  if (tree.parent[0] != -1) {
    return fail(KDTREE_INVALID_TREE, "node 0: parent is {}, expected -1 (node 0 is the root)",
                tree.parent[0]);
  }
  for (int64_t i = 1; i < nodes; ++i) {
    const int32_t parent = tree.parent[static_cast<size_t>(i)];
    if (parent < 0 || parent >= i) {
      return fail(KDTREE_INVALID_TREE, "node {}: parent is {}, expected 0 .. {} (parents come first)", i,
                  parent, i - 1);
    }
  }
  if (!tree.depth.empty()) {
    for (int64_t i = 0; i < nodes; ++i) {
      const auto node = static_cast<size_t>(i);
      const int32_t expected = i == 0 ? 0 : tree.depth[static_cast<size_t>(tree.parent[node])] + 1;
      if (tree.depth[node] != expected) {
        return fail(KDTREE_INVALID_TREE, "node {}: depth is {}, expected {}", i, tree.depth[node], expected);
      }
    }
  }
  if (!tree.token.empty()) {
    if (const int64_t node = duplicate_sibling(tree.parent, tree.token); node >= 0) {
      const auto i = static_cast<size_t>(node);
      return fail(KDTREE_INVALID_TREE,
                  "node {}: token {} already belongs to another child of node {}, expected distinct siblings",
                  node, tree.token[i], tree.parent[i]);
    }
  }
  return {};
}

void depths_from_parents(std::span<const int32_t> parents, std::span<int32_t> depths) {
  for (size_t i = 0; i < parents.size(); ++i) {
    depths[i] = parents[i] < 0 ? 0 : depths[static_cast<size_t>(parents[i])] + 1;
  }
}

Result<DraftTree> DraftTree::from_parents(std::span<const int32_t> tokens, std::span<const int32_t> parents,
                                          std::span<const double> log_weights) {
  if (tokens.size() != parents.size()) {
    return fail(KDTREE_INVALID_ARGUMENT, "tree has {} tokens and {} parents, expected equal lengths",
                tokens.size(), parents.size());
  }
  KDTREE_RETURN_IF_ERROR(validate_tree({parents, {}, tokens, log_weights}));
  DraftTree tree;
  tree.token.assign(tokens.begin(), tokens.end());
  tree.parent.assign(parents.begin(), parents.end());
  tree.log_weight.assign(log_weights.begin(), log_weights.end());
  tree.log_weight.resize(parents.size(), 0.0);
  tree.depth.resize(parents.size());
  depths_from_parents(tree.parent, tree.depth);
  return tree;
}

Result<DraftTree> DraftTree::chain(std::span<const int32_t> tokens, std::span<const double> log_weights) {
  std::vector<int32_t> parents(tokens.size());
  for (size_t i = 0; i < parents.size(); ++i)
    parents[i] = static_cast<int32_t>(i) - 1;
  return from_parents(tokens, parents, log_weights);
}

DraftTree part_of(const DraftTree& tree, std::span<const int32_t> nodes) {
  DraftTree part;
  std::vector<int32_t> number(tree.parent.size(), -1);
  for (const int32_t node : nodes) {
    const auto i = static_cast<size_t>(node);
    number[i] = static_cast<int32_t>(part.parent.size());
    part.token.push_back(tree.token[i]);
    part.parent.push_back(node == 0 ? -1 : number[static_cast<size_t>(tree.parent[i])]);
    part.depth.push_back(tree.depth[i]);
    part.log_weight.push_back(tree.log_weight[i]);
  }
  return part;
}

}  // namespace kdtree
