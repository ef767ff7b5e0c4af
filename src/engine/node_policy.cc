#include "engine/node_policy.h"

#include <algorithm>
#include <cmath>

namespace kdtree {
namespace {

// A look that finds no gain: so many rounds, for one alone teaches too little, unless they have lost the time
// of so many plain rounds.
constexpr int64_t kLook = 4;
constexpr double kDearLook = 4.0;
// What looks may cost, over the time of the plain rounds between them; and how rare they may become.
constexpr double kLookShare = 0.01;
constexpr double kLongestPause = 8192;
// Rounds that the calibration remembers, and how fast measured times replace the table's.
constexpr double kMemory = 50.0;
constexpr double kBlend = 0.1;

void blend(double& value, double seen) {
  value += kBlend * (std::clamp(seen, 0.25, 4.0) - value);
}

}  // namespace

NodePolicy::NodePolicy(CostTable costs, int64_t depth)
    : costs_(std::move(costs)),
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
  return costs_.verify(rows, context) * speed_ * corrections_[bucket(rows)];
}

std::vector<std::vector<int32_t>> NodePolicy::choose(std::span<const DraftTree> trees, double context) {
  // All trees' nodes, the most probable first. A node never comes before its parent: weights fall along a
  // path, and the calibration is made to fall with depth.
  struct Candidate {
    double weight;
    size_t tree;
    int32_t node;
  };
  std::vector<double> scale(promised_.size());
  for (size_t d = 0; d < scale.size(); ++d) {
    scale[d] = seen_[d] / promised_[d];
    if (d > 0) scale[d] = std::min(scale[d], scale[d - 1]);
  }
  std::vector<Candidate> candidates;
  for (size_t t = 0; t < trees.size(); ++t) {
    for (int32_t node = 1; node < trees[t].size(); ++node) {
      const auto i = static_cast<size_t>(node);
      const auto depth = static_cast<size_t>(trees[t].depth[i]) - 1;
      candidates.push_back({std::exp(trees[t].log_weight[i]) * scale[depth], t, node});
    }
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    if (a.weight != b.weight) return a.weight > b.weight;
    return a.tree != b.tree ? a.tree < b.tree : a.node < b.node;
  });

  const auto requests = static_cast<int64_t>(trees.size());
  const auto drafted =
      std::count_if(trees.begin(), trees.end(), [](const DraftTree& tree) { return tree.size() > 1; });
  const double draft = costs_.draft(drafted) * draft_correction_;
  const double plain_us = verify_us(requests, context);  // of one token a request
  double expected = static_cast<double>(requests);
  double best_rate = 0.0;
  double best_expected = expected;
  size_t best = 0;
  for (size_t n = 1; n <= candidates.size(); ++n) {
    expected += candidates[n - 1].weight;
    const double rate = expected / (draft + verify_us(requests + static_cast<int64_t>(n), context));
    if (rate > best_rate) {
      best_rate = rate;
      best_expected = expected;
      best = n;
    }
  }
  std::vector<std::vector<int32_t>> keep(trees.size(), {0});
  for (size_t n = 0; n < best; ++n)
    keep[candidates[n].tree].push_back(candidates[n].node);
  for (std::vector<int32_t>& nodes : keep)
    std::sort(nodes.begin(), nodes.end());
  if (candidates.empty()) return keep;

  const double round_us = best_expected / best_rate;
  explanation_ = fmt::format("{} nodes: {:.2f} tokens in {:.0f} us (plain: {} in {:.0f} us)", best,
                             best_expected, round_us, requests, plain_us);
  const double loss = round_us - best_expected * plain_us / static_cast<double>(requests);
  poor_ = loss < 0.0 ? 0 : poor_ + 1;
  lost_us_ = loss < 0.0 ? 0.0 : lost_us_ + loss;
  if (poor_ == kLook || lost_us_ > kDearLook * plain_us) {
    pause_ = static_cast<int64_t>(std::clamp(lost_us_ / (kLookShare * plain_us), 1.0, kLongestPause));
    poor_ = 0;
    lost_us_ = 0.0;
  }
  return keep;
}

void NodePolicy::observe_acceptance(const DraftTree& tree, int64_t accept_length) {
  if (tree.size() == 1) return;
  std::vector<double> promised(promised_.size(), 0.0);
  for (size_t n = 1; n < tree.depth.size(); ++n)
    promised[static_cast<size_t>(tree.depth[n]) - 1] += std::exp(tree.log_weight[n]);
  for (size_t d = 0; d < promised.size(); ++d) {
    const bool accepted = static_cast<int64_t>(d) + 1 < accept_length;
    // A depth that was not verified is forgotten: kept at what it once was, it would never be tried again.
    const bool tried = promised[d] > 0.0;
    promised_[d] += (tried ? promised[d] : 1.0 / kMemory) - promised_[d] / kMemory;
    seen_[d] += (tried ? (accepted ? 1.0 : 0.0) : 1.0 / kMemory) - seen_[d] / kMemory;
  }
}

void NodePolicy::observe_draft(int64_t requests, double microseconds) {
  const double table = costs_.draft(requests);
  if (table > 0.0) blend(draft_correction_, microseconds / table);
}

void NodePolicy::observe_verify(int64_t rows, double context, double microseconds) {
  const double ratio = microseconds / costs_.verify(rows, context);
  blend(speed_, ratio);
  blend(corrections_[bucket(rows)], ratio / speed_);
}

}  // namespace kdtree
