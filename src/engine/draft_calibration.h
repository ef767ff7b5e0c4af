// What a drafter's probabilities are worth: learnt from what was accepted.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "tree/draft_tree.h"

namespace kdtree {

// The drafter's log-odds of a node, given its parent, are shifted by as much as those of similar children of
// accepted parents were off, over the last hundred or so. Nodes on the path of each depth's likeliest
// token, their siblings, and all behind those have shifts of their own: greedy targets accept a likeliest
// token more often than promised and others less, and a block drafter did not have other parents in mind.
class DraftCalibration {
 public:
  // The chance of each node to be accepted: 1 for the root, never more than its parent's.
  std::vector<double> weights(const DraftTree& tree) const;
  // `path`: the accepted nodes of a verified tree, root first.
  void observe(const DraftTree& tree, std::span<const int32_t> path);

 private:
  // Children near a log-odds, straight between a point and the next.
  struct Point {
    double tried = 0.0;
    double promised = 0.0;
    double accepted = 0.0;
  };
  static constexpr int64_t kPoints = 15;                    // a step of log-odds apart
  static constexpr double kEvenOdds = (kPoints - 1) / 2.0;  // the index of even odds
  using Curve = std::array<Point, kPoints>;

  // use(index of a point, weight) for the two points beside a log-odds.
  template <class Use>
  static void near(double log_odds, const Use& use);
  static std::array<double, kPoints> shifts(const Curve& curve);

  std::array<Curve, 3> curves_;  // by kind of node
};

}  // namespace kdtree
