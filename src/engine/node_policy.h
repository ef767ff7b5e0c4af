// How many nodes of each draft tree to verify, so that most tokens a second come out (after CaDDTree, arXiv
// 2606.01813): expected tokens over the cost of the round.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/cost_table.h"
#include "tree/draft_tree.h"

namespace kdtree {

class NodePolicy {
 public:
  // `depth`: of the deepest tree.
  NodePolicy(CostTable costs, int64_t depth);

  // Whether this round should draft at all. Where trees do not pay for some rounds, plain rounds follow
  // before a few look again: so many that looking costs a hundredth of the time.
  bool should_draft();

  // The nodes to verify of each tree, ascending, the root and all ancestors among them. Never only roots
  // where there is a choice: what was drafted is paid for, and only what is verified teaches something.
  // `context` is the mean prefix length.
  std::vector<std::vector<int32_t>> choose(std::span<const DraftTree> trees, double context);

  // What a round turned out to be. `tree` is what was verified, `accept_length` the tokens it gave.
  void observe_acceptance(const DraftTree& tree, int64_t accept_length);
  void observe_draft(int64_t requests, double microseconds);
  void observe_verify(int64_t rows, double context, double microseconds);

  // The last choice, for people: "12 nodes: 3.41 tokens in 2310 us (plain: 1 in 1100 us)".
  const std::string& explanation() const { return explanation_; }

 private:
  double verify_us(int64_t rows, double context) const;
  // The measured number of rows that stands for `rows`.
  size_t bucket(int64_t rows) const;

  CostTable costs_;
  // The drafter's weights may be too sure or not sure enough: acceptance seen over acceptance promised, at
  // each depth, over the last rounds.
  std::vector<double> promised_, seen_;
  double speed_ = 1.0;               // time seen over the table's, whatever the rows
  std::vector<double> corrections_;  // [rows of the table] the same of these rows, beside that
  double draft_correction_ = 1.0;
  int64_t poor_ = 0;    // rounds in a row that drafted and should not have
  double lost_us_ = 0;  // by them, against plain decoding of as many tokens
  int64_t pause_ = 0;   // plain rounds before the next look
  std::string explanation_;
};

}  // namespace kdtree
