// The best-first builder against enumeration of every prefix, and against a plain heap of tuples.
#include "tree/best_first.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "cases/random.h"

namespace kdtree {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

struct Candidates {
  int32_t depth;
  int32_t k;
  std::vector<int32_t> token;
  std::vector<float> log_prob;
  CandidateView view() const { return {token.data(), log_prob.data(), depth, k}; }
  float lp(size_t d, size_t r) const { return log_prob[d * static_cast<size_t>(k) + r]; }
};

// Log-probabilities of `levels` distinct values, so that ties are frequent when there are few.
Candidates random_candidates(int32_t depth, int32_t k, int64_t levels, bool with_minus_infinity,
                             Random& random) {
  Candidates c{depth, k, {}, {}};
  for (int32_t d = 0; d < depth; ++d) {
    std::vector<float> row;
    for (int32_t r = 0; r < k; ++r) {
      const bool dead = with_minus_infinity && random.below(5) == 0;
      row.push_back(dead ? kNegInf : -0.125f * static_cast<float>(1 + random.below(levels)));
    }
    std::sort(row.begin(), row.end(), std::greater<>());
    for (int32_t r = 0; r < k; ++r) {
      c.token.push_back(100 * d + 10 * r + static_cast<int32_t>(random.below(10)));
      c.log_prob.push_back(row[static_cast<size_t>(r)]);
    }
  }
  return c;
}

struct Prefix {
  double weight;
  std::vector<int32_t> ranks;
  bool operator<(const Prefix& other) const {
    return weight != other.weight ? weight > other.weight : ranks < other.ranks;
  }
};

// Every prefix with the chain of double sums that the algorithm defines.
std::vector<Prefix> enumerate(const Candidates& c) {
  std::vector<Prefix> all;
  std::vector<Prefix> level = {{0.0, {}}};
  for (size_t d = 0; d < static_cast<size_t>(c.depth); ++d) {
    std::vector<Prefix> next;
    for (const Prefix& parent : level) {
      if (!std::isfinite(c.lp(d, 0))) break;
      double weight = parent.weight + double{c.lp(d, 0)};
      for (size_t r = 0; r < static_cast<size_t>(c.k); ++r) {
        if (!std::isfinite(c.lp(d, r))) break;
        if (r > 0) weight = weight - double{c.lp(d, r - 1)} + double{c.lp(d, r)};
        Prefix prefix{weight, parent.ranks};
        prefix.ranks.push_back(static_cast<int32_t>(r));
        next.push_back(prefix);
      }
    }
    all.insert(all.end(), next.begin(), next.end());
    level = std::move(next);
  }
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<int32_t> tokens_of(const DraftTree& tree, int32_t node) {
  std::vector<int32_t> tokens;
  for (; node > 0; node = tree.parent[static_cast<size_t>(node)]) {
    tokens.insert(tokens.begin(), tree.token[static_cast<size_t>(node)]);
  }
  return tokens;
}

void expect_prefixes(const DraftTree& tree, const Candidates& c, const std::vector<Prefix>& expected) {
  ASSERT_EQ(tree.size(), static_cast<int64_t>(expected.size()) + 1);
  ASSERT_TRUE(validate_tree(tree.view())) << validate_tree(tree.view()).error().message;
  for (size_t n = 0; n < expected.size(); ++n) {
    std::vector<int32_t> tokens;
    for (size_t d = 0; d < expected[n].ranks.size(); ++d) {
      tokens.push_back(c.token[d * static_cast<size_t>(c.k) + static_cast<size_t>(expected[n].ranks[d])]);
    }
    ASSERT_EQ(tokens_of(tree, static_cast<int32_t>(n) + 1), tokens) << "node " << n + 1;
    ASSERT_EQ(tree.log_weight[n + 1], expected[n].weight) << "node " << n + 1;
  }
}

TEST(BestFirst, EqualsEnumerationOfAllPrefixes) {
  Random random(11);
  for (int round = 0; round < 3000; ++round) {
    const auto depth = static_cast<int32_t>(random.below(5));
    const auto k = static_cast<int32_t>(1 + random.below(4));
    const int64_t levels = round % 3 == 0 ? 2 : round % 3 == 1 ? 6 : 4096;
    const Candidates c = random_candidates(depth, k, levels, round % 4 == 0, random);
    std::vector<Prefix> all = enumerate(c);
    const auto budget = static_cast<size_t>(random.below(40));
    const auto tree = build_best_first(c.view(), 7, static_cast<int32_t>(budget));
    ASSERT_TRUE(tree) << tree.error().message;
    all.resize(std::min(all.size(), budget));
    expect_prefixes(*tree, c, all);
    ASSERT_EQ(tree->token[0], 7);
    ASSERT_EQ(tree->log_weight[0], 0.0);
  }
}

// A literal transcription of the algorithm for sizes and weights that enumeration cannot do: in sums that
// round, the heap's own order counts.
std::vector<Prefix> heap_of_tuples(const Candidates& c, size_t budget) {
  const auto later = [](const Prefix& a, const Prefix& b) { return b < a; };
  std::priority_queue<Prefix, std::vector<Prefix>, decltype(later)> heap(later);
  std::vector<Prefix> popped;
  if (c.depth > 0 && std::isfinite(c.lp(0, 0))) heap.push({double{c.lp(0, 0)}, {0}});
  while (!heap.empty() && popped.size() < budget) {
    const Prefix best = heap.top();
    heap.pop();
    popped.push_back(best);
    const size_t d = best.ranks.size() - 1;
    const auto r = static_cast<size_t>(best.ranks.back());
    if (r + 1 < static_cast<size_t>(c.k) && std::isfinite(c.lp(d, r + 1))) {
      Prefix sibling = best;
      sibling.ranks.back() += 1;
      sibling.weight = best.weight - double{c.lp(d, r)} + double{c.lp(d, r + 1)};
      heap.push(sibling);
    }
    if (d + 1 < static_cast<size_t>(c.depth) && std::isfinite(c.lp(d + 1, 0))) {
      Prefix child = best;
      child.ranks.push_back(0);
      child.weight = best.weight + double{c.lp(d + 1, 0)};
      heap.push(child);
    }
  }
  return popped;
}

TEST(BestFirst, EqualsAHeapOfTuplesOnLargeTreesAndRoundingSums) {
  Random random(12);
  for (int round = 0; round < 60; ++round) {
    const int32_t k = 64;
    Candidates c{15, k, {}, {}};
    for (int32_t d = 0; d < c.depth; ++d) {
      std::vector<float> row;
      for (int32_t r = 0; r < k; ++r) {
        // Exponents far apart, so that double sums lose bits.
        const int scale = round % 2 == 0 ? 0 : static_cast<int>(random.below(60)) - 30;
        row.push_back(-std::ldexp(static_cast<float>(random.uniform()), scale));
      }
      std::sort(row.begin(), row.end(), std::greater<>());
      for (int32_t r = 0; r < k; ++r)
        c.token.push_back(r);
      c.log_prob.insert(c.log_prob.end(), row.begin(), row.end());
    }
    const size_t budget = round == 0 ? 2000 : 200;
    const auto tree = build_best_first(c.view(), 1, static_cast<int32_t>(budget));
    ASSERT_TRUE(tree) << tree.error().message;
    expect_prefixes(*tree, c, heap_of_tuples(c, budget));
  }
}

TEST(BestFirst, AllEqualLogProbsAreOrderedByRanks) {
  Candidates c{2, 2, {10, 11, 20, 21}, {0.0f, 0.0f, 0.0f, 0.0f}};
  const auto tree = build_best_first(c.view(), 1, 10);
  ASSERT_TRUE(tree);
  // Ranks in lexicographic order: (0) (0,0) (0,1) (1) (1,0) (1,1).
  EXPECT_EQ(tree->token, (std::vector<int32_t>{1, 10, 20, 21, 11, 20, 21}));
  EXPECT_EQ(tree->parent, (std::vector<int32_t>{-1, 0, 1, 1, 0, 4, 4}));
  EXPECT_EQ(tree->depth, (std::vector<int32_t>{0, 1, 2, 2, 1, 2, 2}));
}

TEST(BestFirst, NoBudgetNoPositionsNoCandidatesLeaveTheRoot) {
  const Candidates c{2, 1, {5, 6}, {-1.0f, -1.0f}};
  EXPECT_EQ(build_best_first(c.view(), 3, 0)->size(), 1);
  EXPECT_EQ(build_best_first({nullptr, nullptr, 0, 4}, 3, 8)->size(), 1);
  const Candidates dead{1, 2, {-1, -1}, {kNegInf, kNegInf}};
  EXPECT_EQ(build_best_first(dead.view(), 3, 8)->size(), 1);
  EXPECT_EQ(build_best_first(c.view(), 3, std::numeric_limits<int32_t>::max())->size(), 3);
}

TEST(BestFirst, ScratchSizeFollowsWhatCanBeReached) {
  EXPECT_EQ(reachable_nodes(2, 3, 1000), 12);
  EXPECT_EQ(reachable_nodes(2, 3, 5), 5);
  EXPECT_EQ(reachable_nodes(0, 3, 5), 0);
  EXPECT_EQ(reachable_nodes(3, 1, 5), 3);
  EXPECT_EQ(reachable_nodes(1 << 30, 1, 5), 5);
  EXPECT_EQ(reachable_nodes(40, 1 << 20, std::numeric_limits<int32_t>::max()),
            std::numeric_limits<int32_t>::max());
}

void expect_error(const Candidates& c, int32_t code, const std::string& message) {
  const auto tree = build_best_first(c.view(), 0, 8);
  ASSERT_FALSE(tree);
  EXPECT_EQ(tree.error().code, code);
  EXPECT_EQ(tree.error().message, message);
}

TEST(BestFirst, BadCandidatesAreNamed) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  expect_error({1, 2, {1, 2}, {-1.0f, nan}}, KDTREE_NOT_A_NUMBER,
               "log_probs[0][1] is NaN, expected a log-probability");
  expect_error({2, 1, {1, 2}, {-1.0f, nan}}, KDTREE_NOT_A_NUMBER,
               "log_probs[1][0] is NaN, expected a log-probability");
  expect_error({1, 2, {1, 2}, {-1.0f, -0.5f}}, KDTREE_INVALID_ARGUMENT,
               "log_probs[0][1] is -0.5, expected at most -1 (best first)");
  expect_error({1, 1, {1}, {2.5f}}, KDTREE_INVALID_ARGUMENT,
               "log_probs[0][0] is 2.5, expected at most 0 (a log-probability)");
  expect_error({1, 3, {4, 9, 4}, {-1.0f, -1.0f, -1.0f}}, KDTREE_INVALID_ARGUMENT,
               "tokens[0][2] is 4, which that position already holds");
  expect_error({1, 2, {4, -3}, {-1.0f, -1.0f}}, KDTREE_INVALID_ARGUMENT,
               "tokens[0][1] is -3, expected a token id >= 0");
  const Candidates fine{1, 1, {4}, {-1.0f}};
  EXPECT_EQ(build_best_first(fine.view(), 0, -1).error().message, "node_budget is -1, expected >= 0");
}

TEST(BestFirst, ProbabilityOneIsTheMost) {
  const Candidates certain{1, 1, {4}, {0.0f}};
  EXPECT_EQ(build_best_first(certain.view(), 0, 4)->size(), 2);
  expect_error({1, 1, {4}, {1e-6f}}, KDTREE_INVALID_ARGUMENT,
               "log_probs[0][0] is 1e-06, expected at most 0 (a log-probability)");
}

RC_GTEST_PROP(BestFirst, SmallerBudgetsGivePrefixesOfTheSameTree, (uint32_t seed)) {
  Random random(seed);
  const Candidates c = random_candidates(1 + static_cast<int32_t>(random.below(6)),
                                         1 + static_cast<int32_t>(random.below(9)), 50, false, random);
  const auto large = build_best_first(c.view(), 0, 60);
  const auto budget = static_cast<int32_t>(random.below(60));
  const auto tree = build_best_first(c.view(), 0, budget);
  RC_ASSERT(tree.has_value() && large.has_value());
  for (size_t i = 0; i < static_cast<size_t>(tree->size()); ++i) {
    RC_ASSERT(tree->token[i] == large->token[i]);
    RC_ASSERT(tree->parent[i] == large->parent[i]);
    // Weights never increase along the order, and never exceed the parent's.
    if (i > 1) RC_ASSERT(tree->log_weight[i] <= tree->log_weight[i - 1]);
    if (i > 0) RC_ASSERT(tree->log_weight[i] <= tree->log_weight[static_cast<size_t>(tree->parent[i])]);
  }
}

}  // namespace
}  // namespace kdtree
