#include "tree/best_first.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace kdtree {
namespace {

// A prefix that may become a node: rank `rank` among the candidates of its position, below node `parent`.
struct Entry {
  double log_weight;
  int32_t parent;
  int32_t rank;
};

struct Buffers {
  std::span<Entry> heap;  // each round pops one entry and pushes at most two: never more than budget + 1
  std::span<int32_t> rank;
  std::span<int32_t> used_ranks;
  std::span<uint64_t> seen;  // (position, token) table: at most a quarter full, a power of two

  Buffers(int32_t depth, int32_t nodes, Scratch& scratch)
      : heap(scratch.take<Entry>(int64_t{nodes} + 1)),
        rank(scratch.take<int32_t>(int64_t{nodes} + 1)),
        used_ranks(scratch.take<int32_t>(depth)),
        seen(scratch.take<uint64_t>(
            static_cast<int64_t>(std::bit_ceil(4 * static_cast<uint64_t>(std::max(nodes, 1)))))) {}
};

class Builder {
 public:
  Builder(const CandidateView& candidates, const TreeSpans& out, const Buffers& buffers)
      : candidates_(candidates),
        out_(out),
        heap_(buffers.heap),
        rank_(buffers.rank),
        used_ranks_(buffers.used_ranks),
        seen_(buffers.seen) {}

  Result<int32_t> build(int32_t root_token, int32_t budget) {
    std::fill(used_ranks_.begin(), used_ranks_.end(), 0);
    std::fill(seen_.begin(), seen_.end(), kFree);
    add_node(0, -1, root_token, 0, 0.0);
    int32_t nodes = 1;
    if (budget > 0 && candidates_.depth > 0 && std::isfinite(log_prob(0, 0))) {
      heap_[0] = {double{log_prob(0, 0)}, 0, 0};
      heap_size_ = 1;
    }
    while (heap_size_ > 0 && nodes <= budget) {
      const Entry best = heap_[0];
      const int32_t position = out_.depth[static_cast<size_t>(best.parent)];
      KDTREE_RETURN_IF_ERROR(claim_candidate(position, best.rank));
      add_node(nodes, best.parent, token(position, best.rank), position + 1, best.log_weight);
      rank_[static_cast<size_t>(nodes)] = best.rank;

      const int32_t sibling_rank = best.rank + 1;
      if (sibling_rank < candidates_.k && std::isfinite(log_prob(position, sibling_rank))) {
        const double without = best.log_weight - double{log_prob(position, best.rank)};
        sift_down({without + double{log_prob(position, sibling_rank)}, best.parent, sibling_rank});
      } else {
        heap_size_ -= 1;
        if (heap_size_ > 0) sift_down(heap_[heap_size_]);
      }
      if (position + 1 < candidates_.depth && std::isfinite(log_prob(position + 1, 0))) {
        sift_up({best.log_weight + double{log_prob(position + 1, 0)}, nodes, 0});
      }
      nodes += 1;
    }
    return nodes;
  }

 private:
  static constexpr uint64_t kFree = std::numeric_limits<uint64_t>::max();

  float log_prob(int32_t position, int32_t rank) const {
    return candidates_.log_prob[int64_t{position} * candidates_.k + rank];
  }
  int32_t token(int32_t position, int32_t rank) const {
    return candidates_.token[int64_t{position} * candidates_.k + rank];
  }

  void add_node(int32_t node, int32_t parent, int32_t node_token, int32_t depth, double log_weight) {
    const auto i = static_cast<size_t>(node);
    out_.token[i] = node_token;
    out_.parent[i] = parent;
    out_.depth[i] = depth;
    if (!out_.log_weight.empty()) out_.log_weight[i] = log_weight;
  }

  // Checks a candidate the first time a node uses it. Ranks of a position are first used in order.
  Status claim_candidate(int32_t position, int32_t rank) {
    int32_t& used = used_ranks_[static_cast<size_t>(position)];
    if (rank < used) return {};
    used = rank + 1;
    const int32_t id = token(position, rank);
    if (id < 0) {
      return fail(KDTREE_INVALID_ARGUMENT, "tokens[{}][{}] is {}, expected a token id >= 0", position, rank,
                  id);
    }
    const uint64_t key = (static_cast<uint64_t>(position) << 32) | static_cast<uint32_t>(id);
    size_t slot = (key * 0x9e3779b97f4a7c15u) >> (64 - std::countr_zero(seen_.size()));
    while (seen_[slot] != kFree) {
      if (seen_[slot] == key) {
        return fail(KDTREE_INVALID_ARGUMENT, "tokens[{}][{}] is {}, which that position already holds",
                    position, rank, id);
      }
      slot = (slot + 1) % seen_.size();
    }
    seen_[slot] = key;
    return {};
  }

  // Total order of entries: heavier first, then the ranks along the path, lexicographically.
  bool before(const Entry& a, const Entry& b) const {
    if (a.log_weight != b.log_weight) return a.log_weight > b.log_weight;
    return ranks_before(a, b);
  }

  bool ranks_before(Entry a, Entry b) const {
    int32_t depth_a = out_.depth[static_cast<size_t>(a.parent)];
    int32_t depth_b = out_.depth[static_cast<size_t>(b.parent)];
    // Equal so far: the shorter path first.
    bool result = depth_a < depth_b;
    for (; depth_a > depth_b; --depth_a)
      climb(a);
    for (; depth_b > depth_a; --depth_b)
      climb(b);
    // The topmost difference decides, so a later one on the way up replaces an earlier one.
    for (;;) {
      if (a.rank != b.rank) result = a.rank < b.rank;
      if (a.parent == b.parent) return result;
      climb(a);
      climb(b);
    }
  }

  void climb(Entry& entry) const {
    const auto node = static_cast<size_t>(entry.parent);
    entry.rank = rank_[node];
    entry.parent = out_.parent[node];
  }

  // Puts `entry` in the place of the top.
  void sift_down(const Entry entry) {
    size_t hole = 0;
    for (;;) {
      size_t child = 2 * hole + 1;
      if (child >= heap_size_) break;
      if (child + 1 < heap_size_ && before(heap_[child + 1], heap_[child])) ++child;
      if (!before(heap_[child], entry)) break;
      heap_[hole] = heap_[child];
      hole = child;
    }
    heap_[hole] = entry;
  }

  void sift_up(const Entry entry) {
    size_t hole = heap_size_++;
    while (hole > 0 && before(entry, heap_[(hole - 1) / 2])) {
      heap_[hole] = heap_[(hole - 1) / 2];
      hole = (hole - 1) / 2;
    }
    heap_[hole] = entry;
  }

  const CandidateView& candidates_;
  const TreeSpans& out_;
  std::span<Entry> heap_;
  std::span<int32_t> rank_;
  std::span<int32_t> used_ranks_;
  std::span<uint64_t> seen_;
  size_t heap_size_ = 0;
};

Status check_log_probs(const CandidateView& candidates) {
  for (int32_t position = 0; position < candidates.depth; ++position) {
    const float* row = candidates.log_prob + int64_t{position} * candidates.k;
    // One branch a row, so that the loop vectorises; NaN fails every comparison.
    bool good = row[0] <= 0.0f;
    for (int32_t r = 1; r < candidates.k; ++r)
      good &= row[r] <= row[r - 1];
    if (good) continue;
    for (int32_t r = 0; r < candidates.k; ++r) {
      if (std::isnan(row[r])) {
        return fail(KDTREE_NOT_A_NUMBER, "log_probs[{}][{}] is NaN, expected a log-probability", position, r);
      }
      const float bound = r == 0 ? 0.0f : row[r - 1];
      if (!(row[r] <= bound)) {
        return fail(KDTREE_INVALID_ARGUMENT, "log_probs[{}][{}] is {}, expected at most {} ({})", position, r,
                    row[r], bound, r == 0 ? "a log-probability" : "best first");
      }
    }
  }
  return {};
}

}  // namespace

int32_t reachable_nodes(int32_t depth, int32_t k, int32_t budget) {
  if (k == 1) return std::min(depth, budget);
  int64_t level = 1;
  int64_t total = 0;
  for (int32_t d = 0; d < depth && total < budget; ++d) {
    level = std::min(level * k, int64_t{budget});
    total += level;
  }
  return static_cast<int32_t>(std::min(total, int64_t{budget}));
}

void best_first_scratch(int32_t depth, int32_t k, int32_t budget, Scratch& scratch) {
  (void)Buffers(depth, reachable_nodes(depth, k, budget), scratch);
}

Result<int32_t> build_best_first(const CandidateView& candidates, int32_t root_token, int32_t budget,
                                 const TreeSpans& out, Scratch& scratch) {
  KDTREE_RETURN_IF_ERROR(check_log_probs(candidates));
  const int32_t nodes = reachable_nodes(candidates.depth, candidates.k, budget);
  const Buffers buffers(candidates.depth, nodes, scratch);
  KDTREE_RETURN_IF_ERROR(scratch.check());
  return Builder(candidates, out, buffers).build(root_token, nodes);
}

Result<DraftTree> build_best_first(const CandidateView& candidates, int32_t root_token, int32_t budget) {
  if (budget < 0) return fail(KDTREE_INVALID_ARGUMENT, "node_budget is {}, expected >= 0", budget);
  Scratch needed;
  best_first_scratch(candidates.depth, candidates.k, budget, needed);
  std::vector<std::byte> memory(static_cast<size_t>(needed.used() + Scratch::kAlignment));
  Scratch scratch = Scratch::inside(memory);
  const auto capacity = static_cast<size_t>(reachable_nodes(candidates.depth, candidates.k, budget)) + 1;
  DraftTree tree{std::vector<int32_t>(capacity), std::vector<int32_t>(capacity),
                 std::vector<int32_t>(capacity), std::vector<double>(capacity)};
  const auto nodes = build_best_first(candidates, root_token, budget,
                                      {tree.token, tree.parent, tree.depth, tree.log_weight}, scratch);
  if (!nodes) return tl::unexpected<Error>(nodes.error());
  const auto count = static_cast<size_t>(*nodes);
  tree.token.resize(count);
  tree.parent.resize(count);
  tree.depth.resize(count);
  tree.log_weight.resize(count);
  return tree;
}

}  // namespace kdtree
