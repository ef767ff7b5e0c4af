#include "engine/node_policy.h"

#include <algorithm>
#include <cmath>

namespace kdtree {
namespace {

constexpr int64_t kLongestPause = 512;
// Rounds that the calibration remembers, and how fast measured times replace the table's.
constexpr double kMemory = 50.0;
constexpr double kBlend = 0.1;

void blend(double& value, double seen) {
  value += kBlend * (std::clamp(seen, 0.25, 4.0) - value);
}

}  // namespace

NodePolicy::NodePolicy(CostTable costs, int64_t depth, int32_t most_nodes)
    : costs_(std::move(costs)),
      most_nodes_(most_nodes),
      promised_(static_cast<size_t>(depth), 1.0),
      seen_(static_cast<size_t>(depth), 1.0),
      corrections_(costs_.rows.size(), 1.0) {}

bool NodePolicy::should_draft() {
  if (pause_ == 0) return true;
  explanation_ = fmt::format("plain, and {} more rounds before the next look", --pause_);
  return false;
}

size_t NodePolicy::bucket(int64_t rows) const {
  const auto after = std::lower_bound(costs_.rows.begin(), costs_.rows.end(), rows);
  return std::min(static_cast<size_t>(after - costs_.rows.begin()), corrections_.size() - 1);
}

double NodePolicy::verify_us(int64_t rows, double context) const {
  return costs_.verify(rows, context) * corrections_[bucket(rows)];
}

std::vector<int32_t> NodePolicy::choose(std::span<const DraftTree> trees, double context) {
  // All trees' nodes, the most probable first. A node never comes before its parent: weights fall along a
  // path, and the calibration is made to fall with depth.
  struct Candidate {
    double weight;
    int32_t tree;
    int32_t node;
  };
  std::vector<double> scale(promised_.size());
  for (size_t d = 0; d < scale.size(); ++d) {
    scale[d] = seen_[d] / promised_[d];
    if (d > 0) scale[d] = std::min(scale[d], scale[d - 1]);
  }
  std::vector<Candidate> candidates;
  for (size_t t = 0; t < trees.size(); ++t) {
    for (int64_t n = 1; n < trees[t].size(); ++n) {
      const auto node = static_cast<size_t>(n);
      const auto depth = static_cast<size_t>(trees[t].depth[node]) - 1;
      candidates.push_back({std::exp(trees[t].log_weight[node]) * scale[depth], static_cast<int32_t>(t),
                            static_cast<int32_t>(n)});
    }
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    if (a.weight != b.weight) return a.weight > b.weight;
    return a.tree != b.tree ? a.tree < b.tree : a.node < b.node;
  });

  const auto requests = static_cast<int64_t>(trees.size());
  const double draft = costs_.draft(requests) * draft_correction_;
  const double plain = static_cast<double>(requests) / verify_us(requests, context);
  double expected = static_cast<double>(requests);
  double best_rate = 0.0;
  double best_expected = 0.0;
  size_t best = 0;
  for (size_t n = 0; n <= candidates.size(); ++n) {
    const int64_t rows = requests + static_cast<int64_t>(n);
    const double rate = expected / (draft + verify_us(rows, context));
    if (rate > best_rate) {
      best_rate = rate;
      best_expected = expected;
      best = n;
    }
    if (n < candidates.size()) expected += candidates[n].weight;
  }
  // Best first means a tree's kept nodes are its first ones, but the calibration may reorder across depths:
  // keep every node up to the last one chosen.
  std::vector<int32_t> keep(trees.size(), 0);
  for (size_t n = 0; n < best; ++n) {
    auto& last = keep[static_cast<size_t>(candidates[n].tree)];
    last = std::max(last, candidates[n].node);
  }
  explanation_ =
      fmt::format("{} nodes: {:.2f} tokens in {:.0f} us (plain: {} in {:.0f} us)", best, best_expected,
                  best_expected / best_rate, requests, static_cast<double>(requests) / plain);
  if (best_rate > plain) {
    next_pause_ = kFirstPause;
  } else {
    pause_ = next_pause_;
    next_pause_ = std::min(2 * next_pause_, kLongestPause);
  }
  return keep;
}

void NodePolicy::observe_acceptance(const DraftTree& tree, int64_t accept_length) {
  std::vector<double> promised(promised_.size(), 0.0);
  for (size_t n = 1; n < tree.depth.size(); ++n)
    promised[static_cast<size_t>(tree.depth[n]) - 1] += std::exp(tree.log_weight[n]);
  for (size_t d = 0; d < promised.size(); ++d) {
    if (promised[d] == 0.0) continue;
    promised_[d] += promised[d] - promised_[d] / kMemory;
    seen_[d] += (static_cast<int64_t>(d) + 1 < accept_length ? 1.0 : 0.0) - seen_[d] / kMemory;
  }
}

void NodePolicy::observe_draft(int64_t requests, double microseconds) {
  const double table = costs_.draft(requests);
  if (table > 0.0) blend(draft_correction_, microseconds / table);
}

void NodePolicy::observe_verify(int64_t rows, double context, double microseconds) {
  blend(corrections_[bucket(rows)], microseconds / costs_.verify(rows, context));
}

}  // namespace kdtree
