#include "cli/tree_report.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/memory.h"
#include "cli/progress.h"
#include "core/scratch.h"
#include "tree/accept.h"
#include "tree/best_first.h"
#include "tree/top_k.h"

namespace kdtree::cli {

double TreeReport::path_probability(int64_t node) const {
  return std::exp(tree.log_weight[static_cast<size_t>(node)]);
}

double TreeReport::probability(int64_t node) const {
  const auto i = static_cast<size_t>(node);
  if (node == 0) return 1.0;
  return std::exp(tree.log_weight[i] - tree.log_weight[static_cast<size_t>(tree.parent[i])]);
}

double TreeReport::expected_accept_length() const {
  double length = 1.0;
  for (int64_t node = 1; node < tree.size(); ++node)
    length += path_probability(node);
  return length;
}

int32_t TreeReport::depth() const {
  return *std::max_element(tree.depth.begin(), tree.depth.end());
}

std::vector<bool> TreeReport::accepted() const {
  std::vector<bool> marks(tree.token.size(), false);
  for (const int32_t node : path)
    marks[static_cast<size_t>(node)] = true;
  return marks;
}

std::vector<std::vector<int32_t>> TreeReport::children() const {
  // Nodes are numbered by decreasing weight, so ascending order is the most probable first.
  std::vector<std::vector<int32_t>> lists(tree.parent.size());
  for (size_t node = 1; node < tree.parent.size(); ++node)
    lists[static_cast<size_t>(tree.parent[node])].push_back(static_cast<int32_t>(node));
  return lists;
}

std::string TreeReport::summary() const {
  std::string text =
      fmt::format("{} node{} and the root, depth {}, expected accept length {:.2f}", tree.size() - 1,
                  tree.size() == 2 ? "" : "s", depth(), expected_accept_length());
  if (!path.empty()) text += fmt::format(", accept length {}", path.size());
  return text;
}

Result<DraftTree> build_tree(const Tensor& logits, int32_t top_k, int32_t root_token, int32_t budget) {
  const int64_t positions = logits.shape[0];
  const int64_t vocab = logits.shape[1];
  const auto k = static_cast<size_t>(top_k);
  Scratch sizes;
  top_k_scratch(top_k, sizes);
  const auto workspace = Workspace::allocate(static_cast<size_t>(sizes.used()));
  KDTREE_RETURN_IF_ERROR(workspace);
  std::vector<int32_t> tokens(static_cast<size_t>(positions) * k);
  // Where the work is stopped early: no candidates.
  std::vector<float> log_probs(tokens.size(), -std::numeric_limits<float>::infinity());
  ProgressLine progress("top-k");
  for (int64_t position = 0; position < positions && progress.update(position, positions); ++position) {
    Scratch scratch(workspace->data(), workspace->size());
    const size_t first = static_cast<size_t>(position) * k;
    const Status status =
        top_k_row(logits.bytes.data() + position * vocab * dtype_size(logits.dtype), logits.dtype,
                  static_cast<int32_t>(vocab), std::span(tokens).subspan(first, k),
                  std::span(log_probs).subspan(first, k), scratch);
    if (!status) return with_context(status.error(), fmt::format("position {}: ", position));
  }
  const CandidateView candidates{tokens.data(), log_probs.data(), static_cast<int32_t>(positions), top_k};
  return build_best_first(candidates, root_token, budget);
}

Status accept(TreeReport& report) {
  std::vector<int32_t> path(report.tree.token.size());
  std::vector<int32_t> emitted(path.size());
  const auto acceptance =
      accept_path(report.tree.parent, report.tree.token, report.target_tokens, {}, path, emitted);
  KDTREE_RETURN_IF_ERROR(acceptance);
  const auto count = static_cast<size_t>(acceptance->count);
  path.resize(count);
  emitted.resize(count);
  report.path = std::move(path);
  report.emitted = std::move(emitted);
  return {};
}

}  // namespace kdtree::cli
