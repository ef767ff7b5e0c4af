#include "engine/node_policy.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include <gtest/gtest.h>

#include "cases/random.h"
#include "tests/temporary_directory.h"
#include "tree/best_first.h"

namespace kdtree {
namespace {

CostTable table(double verify_base, double per_row, double draft) {
  CostTable costs;
  costs.rows = {1, 2, 4, 8, 16, 32, 64, 128, 256};
  costs.contexts = {64, 1024};
  costs.verify_us.resize(2);
  for (const int64_t rows : costs.rows) {
    costs.verify_us[0].push_back(verify_base + per_row * static_cast<double>(rows));
    costs.verify_us[1].push_back(verify_base + 2 * per_row * static_cast<double>(rows));
  }
  costs.requests = {1, 4};
  costs.draft_us = {draft, 2 * draft};
  return costs;
}

DraftTree random_tree(uint64_t seed, int32_t nodes) {
  Random random(seed);
  std::vector<int32_t> tokens;
  std::vector<float> log_probs;
  for (int d = 0; d < 7; ++d) {
    double left = 1.0;
    for (int32_t k = 0; k < 16; ++k) {
      tokens.push_back(k);
      const double share = left * (0.4 + 0.4 * random.uniform());
      log_probs.push_back(
          static_cast<float>(std::log(k == 0 ? share : std::min(share, std::exp(double{log_probs.back()})))));
      left -= share;
    }
  }
  return *build_best_first({tokens.data(), log_probs.data(), 7, 16}, 0, nodes);
}

TEST(CostTable, InterpolatesBetweenWhatWasMeasured) {
  const CostTable costs = table(100, 10, 50);
  EXPECT_DOUBLE_EQ(costs.verify(1, 64), 110);
  EXPECT_DOUBLE_EQ(costs.verify(3, 64), 130);
  EXPECT_DOUBLE_EQ(costs.verify(3, 10), 130) << "never below the shortest context";
  EXPECT_DOUBLE_EQ(costs.verify(8, 544), 180 + 40);
  EXPECT_DOUBLE_EQ(costs.verify(8, 2 * 1024 - 64), 180 + 160);
  EXPECT_DOUBLE_EQ(costs.verify(512, 64), 2 * (100 + 2560)) << "beyond the table in proportion";
  EXPECT_DOUBLE_EQ(costs.draft(1), 50);
  EXPECT_DOUBLE_EQ(costs.draft(2), 50 + 50.0 / 3);
}

TEST(CostTable, SurvivesAFileAndRefusesOthers) {
  const TemporaryDirectory folder;
  const std::string path = folder.file("cache/table.json");
  ASSERT_TRUE(table(100, 10, 50).save(path, "this model"));
  const auto again = CostTable::load(path, "this model");
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->verify_us, table(100, 10, 50).verify_us);
  EXPECT_FALSE(CostTable::load(path, "another model"));
  EXPECT_FALSE(CostTable::load(folder.file("none.json"), "this model"));
  for (
      const char* text :
      {"", "{", "[]", R"({"key": "this model"})",
       R"({"key": "this model", "rows": [], "contexts": [1, 2], "verify_us": [[], []], "requests": [], "draft_us": []})"}) {
    std::ofstream(path) << text;
    EXPECT_FALSE(CostTable::load(path, "this model")) << text;
  }
}

// Every number of nodes tried: the choice is the best of (1 + weights) / (draft + verify).
TEST(NodePolicy, ChoosesTheBestRate) {
  for (const double per_row : {0.5, 5.0, 20.0, 100.0, 400.0}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const CostTable costs = table(300, per_row, 200);
      NodePolicy policy(costs, 7);
      const DraftTree trees[] = {random_tree(seed, 128)};
      double best_rate = 0.0;
      size_t best = 0;
      double expected = 1.0;
      for (int64_t n = 1; n < trees[0].size(); ++n) {
        expected += std::exp(trees[0].log_weight[static_cast<size_t>(n)]);
        const double rate = expected / (costs.draft(1) + costs.verify(n + 1, 200));
        if (rate > best_rate) {
          best_rate = rate;
          best = static_cast<size_t>(n);
        }
      }
      EXPECT_EQ(policy.choose(trees, 200)[0].size(), best + 1) << per_row;
    }
  }
}

TEST(NodePolicy, GivesTheNodesOfABatchToTheTreesThatNeedThem) {
  NodePolicy policy(table(300, 20, 200), 7);
  DraftTree sure = random_tree(1, 32);
  DraftTree unsure = random_tree(1, 32);
  for (size_t n = 1; n < unsure.log_weight.size(); ++n)
    unsure.log_weight[n] -= 4.0;
  const DraftTree trees[] = {sure, unsure};
  const auto keep = policy.choose(trees, 100);
  EXPECT_GT(keep[0].size(), 3u);
  EXPECT_LT(keep[1].size(), keep[0].size() / 2);
}

TEST(NodePolicy, KeepsNodesWithTheirAncestors) {
  NodePolicy policy(table(1000, 20, 200), 7);
  // Acceptance that always ends at depth one reorders nodes across depths.
  for (uint64_t i = 0; i < 200; ++i)
    policy.observe_acceptance(random_tree(i, 256), 2);
  const DraftTree trees[] = {random_tree(300, 256)};
  const auto keep = policy.choose(trees, 64)[0];
  ASSERT_FALSE(keep.empty());
  EXPECT_EQ(keep[0], 0);
  for (size_t i = 1; i < keep.size(); ++i) {
    EXPECT_LT(keep[i - 1], keep[i]);
    const int32_t parent = trees[0].parent[static_cast<size_t>(keep[i])];
    EXPECT_TRUE(std::binary_search(keep.begin(), keep.end(), parent));
  }
  EXPECT_EQ(policy.explanation().rfind(std::to_string(keep.size() - 1) + " nodes", 0), 0u)
      << policy.explanation();
}

// Looks that find no gain cost a hundredth of the time, whatever a look costs; a dear one is short.
TEST(NodePolicy, StopsDraftingWhereItDoesNotPayAndLooksAgainForAHundredth) {
  const struct {
    double draft;
    int rounds;  // of a look
  } cases[] = {{100, 4}, {300, 4}, {5000, 1}};
  for (const auto& [draft, rounds] : cases) {
    const CostTable costs = table(100, 200, draft);
    NodePolicy policy(costs, 7);
    const DraftTree trees[] = {random_tree(3, 64)};
    const double plain = costs.verify(1, 100);
    double lost = 0.0;
    int drafted = 0;
    int plain_rounds = 0;
    for (int round = 0; round < 20000; ++round) {
      if (!policy.should_draft()) {
        ++plain_rounds;
        continue;
      }
      ++drafted;
      const auto keep = policy.choose(trees, 100)[0];
      ASSERT_GE(keep.size(), 2u) << "what is not verified teaches nothing";
      double tokens = 1.0;
      for (size_t n = 1; n < keep.size(); ++n)
        tokens += std::exp(trees[0].log_weight[static_cast<size_t>(keep[n])]);
      lost += draft + costs.verify(static_cast<int64_t>(keep.size()), 100) - tokens * plain;
      // The first look is over behind its last round.
      EXPECT_EQ(plain_rounds > 0, drafted > rounds) << drafted;
    }
    EXPECT_EQ(drafted % rounds, 0) << draft;
    EXPECT_NEAR(lost / (plain * plain_rounds), 0.01, 0.002) << draft;
  }
}

// A drafter that was useless for a long time and then is right: trees come back.
TEST(NodePolicy, ForgetsABadDrafter) {
  NodePolicy policy(table(300, 100, 2), 7);
  Random random(1);
  const auto rounds = [&](int count, bool right) {
    int drafted = 0;
    for (int i = 0; i < count; ++i) {
      if (!policy.should_draft()) continue;
      ++drafted;
      const DraftTree trees[] = {random_tree(static_cast<uint64_t>(i), 64)};
      const auto keep = policy.choose(trees, 100)[0];
      DraftTree part;
      for (const int32_t node : keep) {
        const auto n = static_cast<size_t>(node);
        part.token.push_back(0);
        part.parent.push_back(trees[0].parent[n]);
        part.depth.push_back(trees[0].depth[n]);
        part.log_weight.push_back(trees[0].log_weight[n]);
      }
      const int32_t deepest = *std::max_element(part.depth.begin(), part.depth.end());
      policy.observe_acceptance(part, right ? deepest + 1 : 1);
    }
    return drafted;
  };
  rounds(50, true);
  EXPECT_LT(rounds(2000, false), 400);
  rounds(2000, true);
  EXPECT_EQ(rounds(200, true), 200) << "every round drafts again";
}

// A drafter that promises more than it keeps gets fewer nodes, one that is modest gets more.
TEST(NodePolicy, LearnsHowMuchTheDrafterIsToBeBelieved) {
  const DraftTree tree = random_tree(5, 64);
  const DraftTree trees[] = {tree};
  NodePolicy fresh(table(300, 30, 100), 7);
  NodePolicy wary(table(300, 30, 100), 7);
  NodePolicy trusting(table(300, 30, 100), 7);
  for (int i = 0; i < 100; ++i) {
    wary.observe_acceptance(tree, 1);
    trusting.observe_acceptance(tree, 8);
  }
  EXPECT_LE(wary.choose(trees, 100)[0].size(), 2u);
  EXPECT_GT(trusting.choose(trees, 100)[0].size(), fresh.choose(trees, 100)[0].size());
}

TEST(NodePolicy, BelievesMeasuredTimesOverTheTable) {
  const DraftTree trees[] = {random_tree(6, 64)};
  NodePolicy policy(table(300, 10, 100), 7);
  ASSERT_GT(policy.choose(trees, 64)[0].size(), 9u);
  // Passes of more than 8 rows turn out three times as slow.
  for (int i = 0; i < 100; ++i) {
    for (const int64_t rows : {1, 2, 4, 8, 16, 32, 64, 128})
      policy.observe_verify(rows, 64, (rows > 8 ? 3 : 1) * (300 + 10 * static_cast<double>(rows)));
  }
  EXPECT_LE(policy.choose(trees, 64)[0].size(), 8u);
}

}  // namespace
}  // namespace kdtree
