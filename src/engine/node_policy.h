// How many nodes of each draft tree to verify, so that most tokens a second come out (after CaDDTree, arXiv
// 2606.01813): expected tokens over the cost of the round.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/draft_calibration.h"
#include "engine/draft_depth.h"
#include "engine/round_costs.h"
#include "tree/draft_tree.h"

namespace kdtree {

class NodePolicy {
 public:
  // `costs`: those of the drafter too.
  explicit NodePolicy(CostTable costs);

  // Whether this round should draft at all. Where trees have lost the time of some plain rounds, plain rounds
  // follow, so many that looking again costs less than half a percent of the time. A few come in any case, so
  // that their cost is known.
  bool should_draft();

  // Positions to draft in this round: one of the cost table's depths.
  int64_t draft_depth();

  // The nodes to verify of each tree, ascending, the root and all ancestors among them. Never only roots
  // where there is a choice: what was drafted is paid for, and only what is verified teaches something.
  // `context` is the mean prefix length, `depth` what was drafted.
  std::vector<std::vector<int32_t>> choose(std::span<const DraftTree> trees, double context, int64_t depth);

  // What a round turned out to be. `tree` is what was verified, `path` the accepted nodes, root first.
  void observe_acceptance(const DraftTree& tree, std::span<const int32_t> path);
  // `backlog`: requests did not draft in the last round, so that the drafter had more than a round's tokens
  // to take in. Before choose().
  void observe_draft(int64_t requests, int64_t depth, double microseconds, bool backlog);
  void observe_verify(int64_t rows, double context, double microseconds);

  // The last choice, for people: "12 nodes of 7 positions: 3.41 tokens in 2310 us
  // (plain: 1 in 1100 us)".
  const std::string& explanation() const { return explanation_; }

 private:
  static constexpr int64_t kPlainRounds = 16;  // that come in any case

  bool plain_is_due() const;
  void account(double saved_rounds);

  DraftDepth depth_;
  RoundCosts costs_;
  DraftCalibration calibration_;
  double balance_ = 0.0;          // what drafting has saved of late, in plain rounds
  int64_t pause_ = kPlainRounds;  // plain rounds before the next look
  double without_plain_ = 0.0;    // time since the last plain round, in plain rounds
  double saved_ = 0.0;            // in that time, in plain rounds
  int64_t plain_run_ = 0;         // plain rounds since the last draft
  bool paused_before_ = false;    // and drafting has not paid since
  double backlog_us_ = 0.0;       // of this round's draft
  std::string explanation_;
};

}  // namespace kdtree
