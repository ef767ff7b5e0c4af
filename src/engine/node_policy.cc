#include "engine/node_policy.h"

#include <algorithm>
#include <cmath>

namespace kdtree {
namespace {

// In plain rounds: what drafting may lose before it pauses, and how much of what it saved before is set
// against that.
constexpr double kMostLost = 8.0;
constexpr double kMostSaved = 64.0;
// Rounds of a pause for each that was lost: at first, and after looks that were no better.
constexpr double kFirstPause = 64.0;
constexpr double kLaterPause = 128.0;

// Plain rounds that come in any case, so many that the caches are theirs, and the time between them in plain
// rounds.
constexpr double kWithoutPlain = 1600.0;

struct Candidate {
  double weight;
  size_t tree;
  int32_t node;
};

// All trees' nodes, the most probable first. A node never comes before its parent.
std::vector<Candidate> by_weight(std::span<const DraftTree> trees, const DraftCalibration& calibration) {
  std::vector<Candidate> candidates;
  for (size_t t = 0; t < trees.size(); ++t) {
    const std::vector<double> weights = calibration.weights(trees[t]);
    for (int32_t node = 1; node < trees[t].size(); ++node)
      candidates.push_back({weights[static_cast<size_t>(node)], t, node});
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    if (a.weight != b.weight) return a.weight > b.weight;
    return a.tree != b.tree ? a.tree < b.tree : a.node < b.node;
  });
  return candidates;
}

}  // namespace

NodePolicy::NodePolicy(CostTable costs) : costs_(std::move(costs)) {}

bool NodePolicy::should_draft() {
  if (pause_ == 0 && without_plain_ > kWithoutPlain) pause_ = kPlainRounds;
  if (pause_ == 0) return true;
  without_plain_ = 0.0;
  explanation_ = fmt::format("plain, and {} more rounds before the next look", --pause_);
  return false;
}

void NodePolicy::account(double saved_rounds) {
  balance_ = std::min(balance_ + saved_rounds, kMostSaved);
  if (balance_ > kMostLost) paused_before_ = false;
  if (balance_ > -kMostLost) return;
  pause_ = std::llround(-balance_ * (paused_before_ ? kLaterPause : kFirstPause));
  paused_before_ = true;
  balance_ = 0.0;
}

std::vector<std::vector<int32_t>> NodePolicy::choose(std::span<const DraftTree> trees, double context) {
  const std::vector<Candidate> candidates = by_weight(trees, calibration_);
  std::vector<std::vector<int32_t>> keep(trees.size(), {0});
  if (candidates.empty()) return keep;

  const auto requests = static_cast<int64_t>(trees.size());
  const auto drafted =
      std::count_if(trees.begin(), trees.end(), [](const DraftTree& tree) { return tree.size() > 1; });
  const double draft_us = costs_.draft(drafted);
  double expected = static_cast<double>(requests);
  double best_tokens = 0.0;
  double best_us = 1.0;
  size_t best = 0;
  for (size_t n = 1; n <= candidates.size(); ++n) {
    expected += candidates[n - 1].weight;
    const double us = draft_us + costs_.verify(requests + static_cast<int64_t>(n), context);
    if (expected * best_us <= best_tokens * us) continue;
    best_tokens = expected;
    best_us = us;
    best = n;
  }
  for (size_t n = 0; n < best; ++n)
    keep[candidates[n].tree].push_back(candidates[n].node);
  for (std::vector<int32_t>& nodes : keep)
    std::sort(nodes.begin(), nodes.end());

  const double plain_us = costs_.verify(requests, context);
  explanation_ = fmt::format("{} nodes: {:.2f} tokens in {:.0f} us (plain: {} in {:.0f} us)", best,
                             best_tokens, best_us, requests, plain_us);
  without_plain_ += best_us / plain_us;
  account(best_tokens / static_cast<double>(requests) - (best_us + backlog_us_) / plain_us);
  return keep;
}

void NodePolicy::observe_acceptance(const DraftTree& tree, std::span<const int32_t> path) {
  if (tree.size() > 1) calibration_.observe(tree, path);
}

void NodePolicy::observe_draft(int64_t requests, double microseconds, bool backlog) {
  backlog_us_ = backlog ? std::max(0.0, microseconds - costs_.draft(requests)) : 0.0;
  if (!backlog) costs_.observe_draft(requests, microseconds);
}

void NodePolicy::observe_verify(int64_t rows, double context, double microseconds) {
  costs_.observe_verify(rows, context, microseconds);
}

}  // namespace kdtree
