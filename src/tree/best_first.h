// The DDTree builder (arXiv 2604.12989): the most probable prefixes, best first.
#pragma once

#include <cstdint>
#include <span>

#include "core/scratch.h"
#include "core/status.h"
#include "tree/draft_tree.h"

namespace kdtree {

// Candidates of one request, best first at each position.
struct CandidateView {
  const int32_t* token = nullptr;   // [depth, k]; -1 only where log_prob is -inf
  const float* log_prob = nullptr;  // [depth, k] non-increasing in k, <= 0; -inf ends the position's list
  int32_t depth = 0;
  int32_t k = 1;
};

// Where the nodes go: each span holds at least min(budget, number of prefixes) + 1 elements; log_weight may
// be empty.
struct TreeSpans {
  std::span<int32_t> token;
  std::span<int32_t> parent;
  std::span<int32_t> depth;
  std::span<double> log_weight;
};

// Builds at most `budget` nodes besides the root and returns the number of nodes, root included.
// Heap key (-log weight, ranks along the path), so ties are broken lexicographically on the ranks; a
// node's weight is the double sum described at kdtree_tree_build. B pops, at most 2 B pushes.
// Errors: KDTREE_NOT_A_NUMBER, KDTREE_INVALID_ARGUMENT (increasing, positive, duplicate or negative
// candidates), each naming position and rank.
Result<int32_t> build_best_first(const CandidateView& candidates, int32_t root_token, int32_t budget,
                                 const TreeSpans& out, Scratch& scratch);
// Nodes besides the root that the budget and the number of prefixes allow: what the spans must hold, less
// one.
int32_t reachable_nodes(int32_t depth, int32_t k, int32_t budget);
// What it takes from `scratch`.
void best_first_scratch(int32_t depth, int32_t k, int32_t budget, Scratch& scratch);

// The same into a DraftTree of its own.
Result<DraftTree> build_best_first(const CandidateView& candidates, int32_t root_token, int32_t budget);

}  // namespace kdtree
