// A draft tree and what is shown of it: the common input of the text, JSON and SVG forms.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "tree/draft_tree.h"

namespace kdtree::cli {

struct TreeReport {
  std::string source;  // "random, seed 1"
  int64_t positions = 0;
  int64_t vocab = 0;
  int32_t top_k = 1;
  int32_t budget = 0;
  int64_t start = 0;  // position of the root
  DraftTree tree;
  std::vector<int32_t> target_tokens;  // [N]; empty = no target, nothing accepted
  std::vector<int32_t> path;           // accepted nodes, root first
  std::vector<int32_t> emitted;        // as many

  double path_probability(int64_t node) const;
  // Given the parent; 1 for the root.
  double probability(int64_t node) const;
  // 1 + the sum of the path probabilities: what the drafter itself expects, the bonus token included.
  double expected_accept_length() const;
  int32_t depth() const;
  std::vector<bool> accepted() const;                  // [N]
  std::vector<std::vector<int32_t>> children() const;  // [N], most probable first
  // "16 nodes, depth 6, expected accept length 3.42, accept length 4"
  std::string summary() const;
};

// The tree of logits [L, V]. Errors: KDTREE_NOT_A_NUMBER naming position and token.
Result<DraftTree> build_tree(const Tensor& logits, int32_t top_k, int32_t root_token, int32_t budget);

// Walks the acceptance of report.target_tokens.
Status accept(TreeReport& report);

}  // namespace kdtree::cli
