// The acceptance walk against its recursive definition.
#include "tree/accept.h"

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "cases/random.h"

namespace kdtree {
namespace {

using Ints = std::vector<int32_t>;

struct Walk {
  Ints path;
  Ints emitted;
  int32_t finish_reason = KDTREE_FINISH_NONE;
  bool operator==(const Walk&) const = default;
};

// From `node` on: emit the target's token there; if a child has it, go on from that child.
void recurse(const Ints& parents, const Ints& tokens, const Ints& target, size_t node, Walk& walk) {
  walk.path.push_back(static_cast<int32_t>(node));
  walk.emitted.push_back(target[node]);
  for (size_t child = 0; child < parents.size(); ++child) {
    if (parents[child] == static_cast<int32_t>(node) && tokens[child] == target[node]) {
      recurse(parents, tokens, target, child, walk);
      return;
    }
  }
}

// The whole walk first, then truncation by cutting the emitted text as a plain decoder would.
Walk by_definition(const Ints& parents, const Ints& tokens, const Ints& target, const Ints& eos,
                   int32_t max_tokens) {
  Walk walk;
  recurse(parents, tokens, target, 0, walk);
  for (size_t i = 0; i < walk.emitted.size(); ++i) {
    const bool is_eos = std::count(eos.begin(), eos.end(), walk.emitted[i]) > 0;
    const bool is_last = max_tokens > 0 && static_cast<int32_t>(i) + 1 == max_tokens;
    if (!is_eos && !is_last) continue;
    walk.emitted.resize(i + 1);
    walk.path.resize(i + 1);
    walk.finish_reason = is_eos ? KDTREE_FINISH_EOS : KDTREE_FINISH_LENGTH;
    break;
  }
  return walk;
}

Walk run(const Ints& parents, const Ints& tokens, const Ints& target, const Ints& eos, int32_t max_tokens) {
  Ints path(parents.size());
  Ints emitted(parents.size());
  const auto accepted = accept_path(parents, tokens, target, {eos, max_tokens}, path, emitted);
  EXPECT_TRUE(accepted);
  path.resize(static_cast<size_t>(accepted->count));
  emitted.resize(static_cast<size_t>(accepted->count));
  EXPECT_EQ(accepted->next_root, emitted.back());
  return {path, emitted, accepted->finish_reason};
}

TEST(Accept, EqualsTheRecursiveDefinition) {
  Random random(41);
  size_t longest = 0;
  std::map<int32_t, int> reasons;
  for (int round = 0; round < 20000; ++round) {
    const int64_t nodes = 1 + random.below(24);
    Ints parents = {-1};
    Ints tokens = {static_cast<int32_t>(random.below(3))};
    for (int64_t i = 1; i < nodes; ++i) {
      // Few tokens, so that targets often match; siblings stay distinct.
      const auto parent = static_cast<int32_t>(random.below(static_cast<int64_t>(parents.size())));
      const auto token = static_cast<int32_t>(random.below(3));
      bool twin = false;
      for (size_t j = 0; j < parents.size(); ++j)
        twin |= parents[j] == parent && tokens[j] == token;
      if (twin) continue;
      parents.push_back(parent);
      tokens.push_back(token);
    }
    Ints target;
    for (size_t i = 0; i < parents.size(); ++i)
      target.push_back(static_cast<int32_t>(random.below(3)));
    const Ints eos = random.below(3) == 0 ? Ints{2, 7} : Ints{};
    const auto max_tokens = static_cast<int32_t>(random.below(4));
    const Walk expected = by_definition(parents, tokens, target, eos, max_tokens);
    ASSERT_EQ(run(parents, tokens, target, eos, max_tokens), expected);
    longest = std::max(longest, expected.path.size());
    reasons[expected.finish_reason] += 1;
  }
  // The cases do reach what they are meant to.
  EXPECT_GE(longest, 6u);
  EXPECT_GT(reasons[KDTREE_FINISH_NONE], 1000);
  EXPECT_GT(reasons[KDTREE_FINISH_EOS], 1000);
  EXPECT_GT(reasons[KDTREE_FINISH_LENGTH], 1000);
}

//       0 -(5)-> 1 -(6)-> 2
//         -(8)-> 3
const Ints kParents = {-1, 0, 1, 0};
const Ints kTokens = {1, 5, 6, 8};

TEST(Accept, NothingAcceptedStillEmitsTheTargetsToken) {
  EXPECT_EQ(run(kParents, kTokens, {7, 6, 9, 0}, {}, 0), (Walk{{0}, {7}, KDTREE_FINISH_NONE}));
}

TEST(Accept, WholePathThenBonus) {
  EXPECT_EQ(run(kParents, kTokens, {5, 6, 9, 0}, {}, 0), (Walk{{0, 1, 2}, {5, 6, 9}, KDTREE_FINISH_NONE}));
}

TEST(Accept, EosInsideThePathDropsTheRest) {
  EXPECT_EQ(run(kParents, kTokens, {5, 6, 9, 0}, {5}, 0), (Walk{{0}, {5}, KDTREE_FINISH_EOS}));
  EXPECT_EQ(run(kParents, kTokens, {5, 6, 9, 0}, {6}, 0), (Walk{{0, 1}, {5, 6}, KDTREE_FINISH_EOS}));
  EXPECT_EQ(run(kParents, kTokens, {5, 6, 9, 0}, {9}, 0), (Walk{{0, 1, 2}, {5, 6, 9}, KDTREE_FINISH_EOS}));
  // The root's own token was emitted in an earlier round: it is no end now.
  EXPECT_EQ(run(kParents, kTokens, {5, 6, 9, 0}, {1}, 0), (Walk{{0, 1, 2}, {5, 6, 9}, KDTREE_FINISH_NONE}));
}

TEST(Accept, LengthLimitAndEosAtTheLimit) {
  EXPECT_EQ(run(kParents, kTokens, {5, 6, 9, 0}, {}, 2), (Walk{{0, 1}, {5, 6}, KDTREE_FINISH_LENGTH}));
  EXPECT_EQ(run(kParents, kTokens, {5, 6, 9, 0}, {6}, 2), (Walk{{0, 1}, {5, 6}, KDTREE_FINISH_EOS}));
  EXPECT_EQ(run(kParents, kTokens, {5, 6, 9, 0}, {}, 3), (Walk{{0, 1, 2}, {5, 6, 9}, KDTREE_FINISH_LENGTH}));
  EXPECT_EQ(run(kParents, kTokens, {5, 6, 9, 0}, {}, 4), (Walk{{0, 1, 2}, {5, 6, 9}, KDTREE_FINISH_NONE}));
}

TEST(Accept, ABufferTooSmallIsAnError) {
  Ints path(2);
  Ints emitted(2);
  const auto accepted = accept_path(kParents, kTokens, Ints{5, 6, 9, 0}, {}, path, emitted);
  ASSERT_FALSE(accepted);
  EXPECT_EQ(accepted.error().code, KDTREE_BUFFER_TOO_SMALL);
}

// Losslessness at T > 0: each emitted token is the target's own draw on its path. A target that draws the
// first token with probabilities (0.5, 0.3, 0.2) must emit it so, whatever the tree holds. A min(1, p / q)
// rule on the tree's deterministic children would fail this.
TEST(Accept, SampledTokensFollowTheTargetsDistribution) {
  Random random(43);
  const Ints parents = {-1, 0, 0, 1};
  const Ints tokens = {9, 0, 1, 1};
  const std::array<double, 3> p = {0.5, 0.3, 0.2};
  const auto draw = [&] {
    const double u = random.uniform();
    return u < p[0] ? 0 : u < p[0] + p[1] ? 1 : 2;
  };
  constexpr int kRounds = 30000;
  std::array<std::array<int, 3>, 2> counts{};
  int second_tokens = 0;
  for (int round = 0; round < kRounds; ++round) {
    const Ints target = {draw(), draw(), draw(), draw()};
    const Walk walk = run(parents, tokens, target, {}, 0);
    counts[0][static_cast<size_t>(walk.emitted[0])] += 1;
    if (walk.emitted.size() < 2) continue;
    counts[1][static_cast<size_t>(walk.emitted[1])] += 1;
    ++second_tokens;
  }
  const std::array<int, 2> totals = {kRounds, second_tokens};
  for (size_t step = 0; step < 2; ++step) {
    double chi_squared = 0.0;
    for (size_t token = 0; token < 3; ++token) {
      const double expected = p[token] * totals[step];
      const double difference = counts[step][token] - expected;
      chi_squared += difference * difference / expected;
    }
    EXPECT_LT(chi_squared, 13.8) << "step " << step;  // 2 degrees of freedom, p = 0.001
  }
}

}  // namespace
}  // namespace kdtree
