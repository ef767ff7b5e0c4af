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
constexpr double kFirstPause = 128.0;
constexpr double kLaterPause = 256.0;

// The first plain rounds behind others are slow, by a third and less and less: then the caches are theirs.
// What they take says nothing about plain decoding.
constexpr int64_t kColdRounds = 4;

// The plain rounds that come in any case may cost this share of the time; and the time between them is at
// least this, in plain rounds.
constexpr double kPlainShare = 0.005;
constexpr double kLeastWithoutPlain = 160.0;

struct Candidate {
  double weight;
  size_t tree;
  int32_t node;
  int32_t depth;
};

// All trees' nodes, the most probable first. A node never comes before its parent.
std::vector<Candidate> by_weight(std::span<const DraftTree> trees, const DraftCalibration& calibration) {
  std::vector<Candidate> candidates;
  for (size_t t = 0; t < trees.size(); ++t) {
    const std::vector<double> weights = calibration.weights(trees[t]);
    for (int32_t node = 1; node < trees[t].size(); ++node) {
      const auto n = static_cast<size_t>(node);
      candidates.push_back({weights[n], t, node, trees[t].depth[n]});
    }
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    if (a.weight != b.weight) return a.weight > b.weight;
    return a.tree != b.tree ? a.tree < b.tree : a.node < b.node;
  });
  return candidates;
}

struct Choice {
  size_t nodes = 0;  // besides the roots
  double tokens = 0.0;
  double us = 1.0;
  double rate() const { return tokens / us; }
};

}  // namespace

NodePolicy::NodePolicy(CostTable costs) : depth_(costs.depths), costs_(std::move(costs)) {}

int64_t NodePolicy::draft_depth() {
  return depth_.depths()[depth_.next()];
}

// What drafting saves is what plain rounds cost: the less it is, the sooner they are looked at again.
bool NodePolicy::plain_is_due() const {
  if (without_plain_ <= kLeastWithoutPlain) return false;
  return static_cast<double>(kPlainRounds) * saved_ / without_plain_ < kPlainShare * without_plain_;
}

bool NodePolicy::should_draft() {
  if (pause_ == 0 && plain_is_due()) pause_ = kPlainRounds;
  if (pause_ == 0) {
    plain_run_ = 0;
    return true;
  }
  ++plain_run_;
  without_plain_ = 0.0;
  saved_ = 0.0;
  explanation_ = fmt::format("plain, and {} more rounds before the next look", --pause_);
  return false;
}

void NodePolicy::account(double saved_rounds) {
  saved_ += saved_rounds;
  balance_ = std::min(balance_ + saved_rounds, kMostSaved);
  if (balance_ > kMostLost) paused_before_ = false;
  if (balance_ > -kMostLost) return;
  pause_ = std::llround(-balance_ * (paused_before_ ? kLaterPause : kFirstPause));
  paused_before_ = true;
  balance_ = 0.0;
}

std::vector<std::vector<int32_t>> NodePolicy::choose(std::span<const DraftTree> trees, double context,
                                                     int64_t depth) {
  const std::vector<Candidate> candidates = by_weight(trees, calibration_);
  std::vector<std::vector<int32_t>> keep(trees.size(), {0});
  if (candidates.empty()) return keep;

  const auto requests = static_cast<int64_t>(trees.size());
  const auto drafted =
      std::count_if(trees.begin(), trees.end(), [](const DraftTree& tree) { return tree.size() > 1; });
  std::vector<double> verify_us;  // of the roots and 1, 2, ... nodes
  for (size_t n = 1; n <= candidates.size(); ++n)
    verify_us.push_back(costs_.verify(requests + static_cast<int64_t>(n), context));
  // Of the nodes at depths up to `most_depth`, as if no more had been drafted.
  const auto best_within = [&](int64_t most_depth) {
    const double draft_us = costs_.draft(drafted, most_depth);
    Choice best;
    size_t nodes = 0;
    double tokens = static_cast<double>(requests);
    for (const Candidate& candidate : candidates) {
      if (candidate.depth > most_depth) continue;
      tokens += candidate.weight;
      const double us = draft_us + verify_us[nodes++];
      if (tokens * best.us > best.tokens * us) best = {nodes, tokens, us};
    }
    return best;
  };
  const Choice best = best_within(depth);
  std::vector<double> rates;
  for (const int64_t less : depth_.depths()) {
    if (less < depth) rates.push_back(best_within(less).rate());
  }
  rates.push_back(best.rate());
  depth_.observe(rates);

  for (size_t n = 0; n < best.nodes; ++n)
    keep[candidates[n].tree].push_back(candidates[n].node);
  for (std::vector<int32_t>& nodes : keep)
    std::sort(nodes.begin(), nodes.end());

  const double plain_us = costs_.verify(requests, context);
  explanation_ = fmt::format("{} nodes of {} positions: {:.2f} tokens in {:.0f} us (plain: {} in {:.0f} us)",
                             best.nodes, depth, best.tokens, best.us, requests, plain_us);
  without_plain_ += best.us / plain_us;
  account(best.tokens / static_cast<double>(requests) - (best.us + backlog_us_) / plain_us);
  return keep;
}

void NodePolicy::observe_acceptance(const DraftTree& tree, std::span<const int32_t> path) {
  if (tree.size() > 1) calibration_.observe(tree, path);
}

void NodePolicy::observe_draft(int64_t requests, int64_t depth, double microseconds, bool backlog) {
  backlog_us_ = backlog ? std::max(0.0, microseconds - costs_.draft(requests, depth)) : 0.0;
  if (!backlog) costs_.observe_draft(requests, depth, microseconds);
}

void NodePolicy::observe_verify(int64_t rows, double context, double microseconds) {
  const bool cold = plain_run_ > 0 && plain_run_ <= kColdRounds;
  if (!cold) costs_.observe_verify(rows, context, microseconds);
}

}  // namespace kdtree
