// What a generation did and where its time went.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kdtree {

// Seconds.
struct StageTimes {
  double prefill = 0.0;
  double draft = 0.0;    // the drafter's logits
  double build = 0.0;    // top-k and the tree
  double compile = 0.0;  // rows, positions, slots
  double verify = 0.0;   // the target's forward pass
  double accept = 0.0;   // sampling and the walk
  double commit = 0.0;   // moving KV rows, handing features on

  double rounds() const { return draft + build + compile + verify + accept + commit; }
};

// Of one request, or of all together. A round is one request's part of a verify step.
struct GenerationStats {
  int64_t rounds = 0;
  int64_t emitted = 0;                  // tokens of those rounds, the first token of each request not counted
  int64_t nodes = 0;                    // verified besides the roots
  std::vector<int64_t> accept_lengths;  // [i] rounds that emitted i tokens
  std::vector<int64_t> offered;         // [d] rounds whose tree had a node at depth d + 1
  std::vector<int64_t> accepted;        // [d] rounds that accepted one

  void add_round(int64_t tree_nodes, int64_t tree_depth, int64_t accept_length);
  double mean_accept_length() const {
    return rounds > 0 ? static_cast<double>(emitted) / static_cast<double>(rounds) : 0.0;
  }
};

inline void GenerationStats::add_round(int64_t tree_nodes, int64_t tree_depth, int64_t accept_length) {
  const auto count = [](std::vector<int64_t>& counts, int64_t index) {
    counts.resize(std::max(counts.size(), static_cast<size_t>(index) + 1));
    counts[static_cast<size_t>(index)] += 1;
  };
  rounds += 1;
  emitted += accept_length;
  nodes += tree_nodes - 1;
  count(accept_lengths, accept_length);
  for (int64_t d = 0; d < tree_depth; ++d)
    count(offered, d);
  for (int64_t d = 0; d + 1 < accept_length; ++d)
    count(accepted, d);
  accepted.resize(std::max(accepted.size(), offered.size()));
}

}  // namespace kdtree
