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
  costs.depths = {7};
  costs.draft_us = {{draft, 2 * draft}};
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

// The first `length` nodes of the path of each depth's likeliest token.
std::vector<int32_t> likeliest_path(const DraftTree& tree, size_t length) {
  std::vector<int32_t> path = {0};
  while (path.size() < length) {
    const auto child = std::find(tree.parent.begin(), tree.parent.end(), path.back());
    if (child == tree.parent.end()) break;
    path.push_back(static_cast<int32_t>(child - tree.parent.begin()));
  }
  return path;
}

// Of a round that verifies `keep`, by the drafter's word.
double expected_tokens(const DraftTree& tree, std::span<const int32_t> keep) {
  double tokens = 0.0;
  for (const int32_t node : keep)
    tokens += std::exp(tree.log_weight[static_cast<size_t>(node)]);
  return tokens;
}

TEST(CostTable, InterpolatesBetweenWhatWasMeasured) {
  const CostTable costs = table(100, 10, 50);
  EXPECT_DOUBLE_EQ(costs.verify(1, 64), 110);
  EXPECT_DOUBLE_EQ(costs.verify(3, 64), 130);
  EXPECT_DOUBLE_EQ(costs.verify(3, 10), 130) << "never below the shortest context";
  EXPECT_DOUBLE_EQ(costs.verify(8, 544), 180 + 40);
  EXPECT_DOUBLE_EQ(costs.verify(8, 2 * 1024 - 64), 180 + 160);
  EXPECT_DOUBLE_EQ(costs.verify(512, 64), 2 * (100 + 2560)) << "beyond the table in proportion";
  EXPECT_DOUBLE_EQ(costs.draft(1, 7), 50);
  EXPECT_DOUBLE_EQ(costs.draft(2, 7), 50 + 50.0 / 3);
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
       R"({"key": "this model", "rows": [], "contexts": [1, 2], "verify_us": [[], []], "requests": [], "depths": [], "draft_us": []})"}) {
    std::ofstream(path) << text;
    EXPECT_FALSE(CostTable::load(path, "this model")) << text;
  }
}

TEST(CostTable, InterpolatesDepths) {
  CostTable costs = table(100, 10, 50);
  costs.depths = {3, 7};
  costs.draft_us = {{50, 100}, {90, 180}};
  EXPECT_DOUBLE_EQ(costs.draft(1, 3), 50);
  EXPECT_DOUBLE_EQ(costs.draft(1, 5), 70);
  EXPECT_DOUBLE_EQ(costs.draft(4, 7), 180);
  EXPECT_DOUBLE_EQ(costs.draft(8, 14), 4 * 180) << "beyond the table in proportion";
}

// What a step brings is known where it was taken: then the depth is the best one, looks aside.
TEST(DraftDepth, ClimbsToTheBestDepthAndFollowsIt) {
  DraftDepth depth({3, 5, 7, 15});
  std::vector<double> rates = {1.0, 1.2, 1.1, 0.9};
  std::vector<int> drafted(4);
  const auto rounds = [&] {
    for (int round = 0; round < 320; ++round) {
      const size_t at = depth.next();
      ++drafted[at];
      depth.observe(std::span(rates).first(at + 1));
    }
    return std::exchange(drafted, std::vector<int>(4));
  };
  EXPECT_EQ(rounds(), (std::vector{0, 280, 39, 1})) << "the first one drafts all";
  rates = {1.2, 1.1, 1.0, 0.9};
  rounds();
  EXPECT_EQ(rounds(), (std::vector{280, 40, 0, 0}));
  rates = {1.0, 1.1, 1.2, 1.3};
  rounds();
  EXPECT_EQ(rounds(), (std::vector{0, 0, 0, 320}));
}

// Every number of nodes tried: the choice is the best of (1 + weights) / (draft + verify).
TEST(NodePolicy, ChoosesTheBestRate) {
  for (const double per_row : {0.5, 5.0, 20.0, 100.0, 400.0}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const CostTable costs = table(300, per_row, 200);
      NodePolicy policy(costs);
      const DraftTree trees[] = {random_tree(seed, 128)};
      double best_rate = 0.0;
      size_t best = 0;
      double expected = 1.0;
      for (int64_t n = 1; n < trees[0].size(); ++n) {
        expected += std::exp(trees[0].log_weight[static_cast<size_t>(n)]);
        const double rate = expected / (costs.draft(1, 7) + costs.verify(n + 1, 200));
        if (rate > best_rate) {
          best_rate = rate;
          best = static_cast<size_t>(n);
        }
      }
      EXPECT_EQ(policy.choose(trees, 200, 7)[0].size(), best + 1) << per_row;
    }
  }
}

TEST(NodePolicy, GivesTheNodesOfABatchToTheTreesThatNeedThem) {
  NodePolicy policy(table(300, 20, 200));
  DraftTree sure = random_tree(1, 32);
  DraftTree unsure = random_tree(1, 32);
  for (size_t n = 1; n < unsure.log_weight.size(); ++n)
    unsure.log_weight[n] -= 4.0;
  const DraftTree trees[] = {sure, unsure};
  const auto keep = policy.choose(trees, 100, 7);
  EXPECT_GT(keep[0].size(), 3u);
  EXPECT_LT(keep[1].size(), keep[0].size() / 2);
}

TEST(NodePolicy, KeepsNodesWithTheirAncestors) {
  NodePolicy policy(table(1000, 20, 200));
  // Acceptance that always ends at depth one reorders nodes across depths.
  for (uint64_t i = 0; i < 200; ++i) {
    const DraftTree tree = random_tree(i, 256);
    policy.observe_acceptance(tree, likeliest_path(tree, 2));
  }
  const DraftTree trees[] = {random_tree(300, 256)};
  const auto keep = policy.choose(trees, 64, 7)[0];
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

// Looks that find no gain cost less than half a percent of the time, whatever a look costs.
TEST(NodePolicy, StopsDraftingWhereItDoesNotPayAndLooksAgainForHalfAPercent) {
  for (const double draft : {100.0, 300.0, 5000.0}) {
    const CostTable costs = table(100, 200, draft);
    NodePolicy policy(costs);
    const DraftTree trees[] = {random_tree(3, 64)};
    const double plain = costs.verify(1, 100);
    double lost = 0.0;
    double first_look = 0.0;
    int plain_rounds = 0;
    for (int round = 0; round < 50000; ++round) {
      if (!policy.should_draft()) {
        ++plain_rounds;
        continue;
      }
      const auto keep = policy.choose(trees, 100, 7)[0];
      ASSERT_GE(keep.size(), 2u) << "what is not verified teaches nothing";
      const double tokens = expected_tokens(trees[0], keep);
      lost += draft + costs.verify(static_cast<int64_t>(keep.size()), 100) - tokens * plain;
      if (plain_rounds == 16) first_look = lost;  // those before the first
    }
    // A look is over when it has lost eight plain rounds.
    EXPECT_GE(first_look, 8 * plain) << draft;
    EXPECT_LT(first_look, 8 * plain + draft + costs.verify(2, 100)) << draft;
    EXPECT_LT(lost - first_look, 0.005 * plain * plain_rounds) << draft;
    EXPECT_GT(lost - first_look, 0.0025 * plain * plain_rounds) << draft << ": it must look";
  }
}

// Plain rounds right behind drafted ones find the caches full of other things: they are not what plain
// decoding costs.
TEST(NodePolicy, LearnsNothingFromTheFirstPlainRounds) {
  const DraftTree trees[] = {random_tree(3, 64)};
  const auto nodes_after = [&](double cold, double warm) {
    const CostTable costs = table(300, 60, 100);
    NodePolicy policy(costs);
    for (int round = 0; !policy.should_draft(); ++round)
      policy.observe_verify(1, 100, (round < 4 ? cold : warm) * costs.verify(1, 100));
    policy.choose(trees, 100, 7);
    return policy.explanation();
  };
  EXPECT_EQ(nodes_after(1.5, 1.0), nodes_after(1.0, 1.0));
  EXPECT_NE(nodes_after(1.0, 1.5), nodes_after(1.0, 1.0));
}

// Where drafting pays, plain rounds are looked at again: for at most half a percent of the time, and so the
// sooner the less drafting brings, for then a change of the machine may turn the two round.
TEST(NodePolicy, LooksAtPlainRoundsTheSoonerTheLessDraftingBrings) {
  double last_share = 1.0;
  for (const double base : {900.0, 1500.0, 6000.0}) {  // a larger part of what plain rounds cost
    const CostTable costs = table(base, 200, 100);
    NodePolicy policy(costs);
    const DraftTree trees[] = {random_tree(3, 64)};
    const double plain = costs.verify(1, 100);
    double time = 0.0;
    double gain = 0.0;
    int plain_rounds = 0;
    for (int round = 0; round < 50000; ++round) {
      if (policy.should_draft()) {
        const auto keep = policy.choose(trees, 100, 7)[0];
        const double tokens = expected_tokens(trees[0], keep);
        const double us = 100 + costs.verify(static_cast<int64_t>(keep.size()), 100);
        gain = tokens * plain / us;
        ASSERT_GT(gain, 1.0);
        time += us;
      } else {
        ++plain_rounds;
        time += plain;
      }
    }
    const double share = plain_rounds * plain / time;
    EXPECT_LT(share * (gain - 1.0), 0.006) << base;
    EXPECT_LT(share, last_share) << base;
    EXPECT_GT(plain_rounds, 32) << base;
    last_share = share;
  }
}

// What a drafter has to catch up with after plain rounds is paid by looks as well.
TEST(NodePolicy, CountsTheBacklogAsPartOfALook) {
  const CostTable costs = table(100, 200, 100);
  NodePolicy policy(costs);
  const DraftTree trees[] = {random_tree(3, 64)};
  int drafted = 0;
  for (int round = 0; round < 2500; ++round) {
    if (!policy.should_draft()) continue;
    ++drafted;
    policy.observe_draft(1, 7, 100 + 40 * costs.verify(1, 100), true);
    policy.choose(trees, 100, 7);
  }
  EXPECT_EQ(drafted, 1) << "it cost forty plain rounds";
}

// A drafter that was useless for a long time and then is right: trees come back.
TEST(NodePolicy, ForgetsABadDrafter) {
  NodePolicy policy(table(300, 100, 200));
  const auto rounds = [&](int count, bool right) {
    int drafted = 0;
    for (int i = 0; i < count; ++i) {
      if (!policy.should_draft()) continue;
      ++drafted;
      const DraftTree trees[] = {random_tree(static_cast<uint64_t>(i), 64)};
      const DraftTree part = part_of(trees[0], policy.choose(trees, 100, 7)[0]);
      policy.observe_acceptance(part, likeliest_path(part, right ? part.parent.size() : 1));
    }
    return drafted;
  };
  rounds(50, true);
  EXPECT_LT(rounds(4000, false), 500);
  rounds(20000, true);
  EXPECT_GT(rounds(200, true), 180) << "all rounds draft again, but for a few that measure plain decoding";
}

// A drafter that promises more than it keeps gets fewer nodes, one that is modest gets more.
TEST(NodePolicy, LearnsHowMuchTheDrafterIsToBeBelieved) {
  const DraftTree tree = random_tree(5, 256);
  const DraftTree trees[] = {tree};
  NodePolicy fresh(table(300, 30, 100));
  NodePolicy wary(table(300, 30, 100));
  NodePolicy trusting(table(300, 30, 100));
  for (int i = 0; i < 100; ++i) {
    wary.observe_acceptance(tree, likeliest_path(tree, 1));
    trusting.observe_acceptance(tree, likeliest_path(tree, 8));
  }
  EXPECT_LE(wary.choose(trees, 100, 7)[0].size(), 2u);
  EXPECT_GT(trusting.choose(trees, 100, 7)[0].size(), fresh.choose(trees, 100, 7)[0].size());
}

TEST(NodePolicy, BelievesMeasuredTimesOverTheTable) {
  const DraftTree trees[] = {random_tree(6, 64)};
  NodePolicy policy(table(300, 10, 100));
  ASSERT_GT(policy.choose(trees, 64, 7)[0].size(), 9u);
  // Passes of more than 8 rows turn out three times as slow.
  for (int i = 0; i < 100; ++i) {
    for (const int64_t rows : {1, 2, 4, 8, 16, 32, 64, 128})
      policy.observe_verify(rows, 64, (rows > 8 ? 3 : 1) * (300 + 10 * static_cast<double>(rows)));
  }
  EXPECT_LE(policy.choose(trees, 64, 7)[0].size(), 8u);
}

// The machine slows down while decoding is plain: what trees would take is known to have grown as well.
TEST(RoundCosts, TellsTheMachinesSpeedFromAnEntrysError) {
  const CostTable costs = table(300, 10, 100);
  RoundCosts learnt(costs);
  Random random(3);
  const auto noise = [&] { return 0.9 + 0.2 * random.uniform(); };
  for (int i = 0; i < 200; ++i) {
    learnt.observe_verify(1, 64, noise() * 310);
    learnt.observe_verify(16, 64, noise() * 2 * 460);  // an error of this entry alone
    learnt.observe_draft(1, 7, noise() * 100);
  }
  EXPECT_NEAR(learnt.verify(1, 64), 310, 0.1 * 310);
  EXPECT_NEAR(learnt.verify(16, 64), 2 * 460, 0.1 * 2 * 460);
  EXPECT_NEAR(learnt.draft(1, 7), 100, 0.1 * 100);
  for (int i = 0; i < 200; ++i)
    learnt.observe_verify(1, 64, noise() * 1.7 * 310);
  EXPECT_NEAR(learnt.verify(1, 64), 1.7 * 310, 0.1 * 1.7 * 310);
  EXPECT_NEAR(learnt.verify(16, 64), 1.7 * 2 * 460, 0.15 * 1.7 * 2 * 460);
  EXPECT_NEAR(learnt.draft(1, 7), 1.7 * 100, 0.15 * 1.7 * 100);
  const double before = learnt.verify(1, 64);
  learnt.observe_verify(1, 64, 1e7);  // the processor was elsewhere
  EXPECT_LT(learnt.verify(1, 64), 1.2 * before);
}

// The chance of a node is how often it was accepted under an accepted parent, whatever was promised.
TEST(DraftCalibration, LearnsTheChanceOfAChildOfAnAcceptedParent) {
  DraftTree tree;
  tree.token = {0, 1, 2, 3};
  tree.parent = {-1, 0, 0, 1};
  tree.depth = {0, 1, 1, 2};
  tree.log_weight = {0.0, std::log(0.6), std::log(0.3), std::log(0.6 * 0.9)};
  DraftCalibration calibration;
  for (size_t node = 0; node < 4; ++node)
    EXPECT_NEAR(calibration.weights(tree)[node], std::exp(tree.log_weight[node]), 1e-12) << "not yet";
  for (int i = 0; i < 1000; ++i) {
    // Child 1 in 8 of 10 rounds, then node 3 in 2 of 8; child 2 in 1 of 10.
    const int turn = i % 10;
    const std::vector<int32_t> path = turn < 2   ? std::vector<int32_t>{0, 1, 3}
                                      : turn < 8 ? std::vector<int32_t>{0, 1}
                                      : turn < 9 ? std::vector<int32_t>{0, 2}
                                                 : std::vector<int32_t>{0};
    calibration.observe(tree, path);
  }
  const std::vector<double> weights = calibration.weights(tree);
  EXPECT_EQ(weights[0], 1.0);
  EXPECT_NEAR(weights[1], 0.8, 0.03);
  EXPECT_NEAR(weights[2], 0.1, 0.03);
  EXPECT_NEAR(weights[3], 0.8 * 0.25, 0.03);
}

// A text in which easy and hard passages alternate, and a drafter that knows which it is in but is too sure
// off its likeliest path and not sure enough on it.
class Text {
 public:
  explicit Text(uint64_t seed) : random_(seed) {}

  DraftTree draft(int64_t depth) {
    if (random_.uniform() < 0.05) easy_ = random_.uniform() < 0.5;
    std::vector<int32_t> tokens;
    std::vector<float> log_probs;
    for (int64_t d = 0; d < depth; ++d) {
      const double first =
          (easy_ ? 0.9 : 0.5) * (0.8 + 0.2 * random_.uniform()) * std::pow(0.97, static_cast<double>(d));
      double left = 1.0 - first;
      for (int32_t k = 0; k < 16; ++k) {
        tokens.push_back(k);
        log_probs.push_back(static_cast<float>(std::log(k == 0 ? first : left * std::min(first, 0.5))));
        if (k > 0) left *= 1.0 - std::min(first, 0.5);
      }
    }
    return *build_best_first({tokens.data(), log_probs.data(), static_cast<int32_t>(depth), 16}, 0, 64);
  }

  // What the target takes of a part of such a tree.
  std::vector<int32_t> accepted(const DraftTree& tree) {
    std::vector<int32_t> path = {0};
    bool likeliest = true;
    for (;;) {
      const auto parent = static_cast<size_t>(path.back());
      double at = random_.uniform();
      bool first = true;
      int32_t next = -1;
      for (size_t node = parent + 1; node < tree.parent.size() && next < 0; ++node) {
        if (tree.parent[node] != path.back()) continue;
        const double p = std::exp(tree.log_weight[node] - tree.log_weight[parent]);
        at -= !likeliest ? 0.5 * p : first ? 1.0 - 0.6 * (1.0 - p) : 0.6 * p;
        if (at < 0.0) next = static_cast<int32_t>(node);
        likeliest = likeliest && (first || next < 0);
        first = false;
      }
      if (next < 0) return path;
      path.push_back(next);
    }
  }

 private:
  Random random_;
  bool easy_ = false;
};

// Microseconds a token of 5,000 rounds. `depth`: positions drafted a round, `nodes`: verified, 0 is plain; or
// both as the policy chooses.
double time_per_token(const CostTable& costs, int64_t depth, size_t nodes, NodePolicy* policy) {
  Text text(7);
  Random random(8);
  const auto noise = [&] { return 0.9 + 0.2 * random.uniform(); };
  double us = 0.0;
  size_t tokens = 0;
  for (int round = 0; round < 5000; ++round) {
    const bool drafts = policy != nullptr ? policy->should_draft() : nodes > 0;
    if (drafts && policy != nullptr) depth = policy->draft_depth();
    const DraftTree trees[] = {text.draft(depth)};
    std::vector<int32_t> keep = {0};
    if (drafts) {
      us += costs.draft(1, depth);
      if (policy != nullptr) {
        policy->observe_draft(1, depth, noise() * costs.draft(1, depth), false);
        keep = policy->choose(trees, 100, depth)[0];
      } else {
        for (size_t n = 1; n <= std::min(nodes, trees[0].parent.size() - 1); ++n)
          keep.push_back(static_cast<int32_t>(n));
      }
    }
    const DraftTree part = part_of(trees[0], keep);
    const std::vector<int32_t> path = text.accepted(part);
    const double verify_us = costs.verify(part.size(), 100);
    us += verify_us;
    tokens += path.size();
    if (policy == nullptr) continue;
    policy->observe_verify(part.size(), 100, noise() * verify_us);
    policy->observe_acceptance(part, path);
  }
  return us / static_cast<double>(tokens);
}

// Where plain decoding, small trees or large ones are best, and with a table that is wrong by up to a third
// and 1.5 as fast as the machine.
TEST(NodePolicy, IsAsFastAsTheBestFixedNumberOfNodes) {
  for (const double per_row : {5.0, 60.0, 400.0}) {
    CostTable costs = table(300, per_row, 400);
    costs.depths = {3, 7, 15};
    costs.draft_us = {{160, 320}, {240, 480}, {400, 800}};
    double best = time_per_token(costs, 15, 0, nullptr);
    for (const int64_t depth : costs.depths) {
      for (const size_t nodes : {2, 4, 8, 16, 32, 64})
        best = std::min(best, time_per_token(costs, depth, nodes, nullptr));
    }
    Random random(5);
    for (const double error : {0.0, 0.15}) {
      CostTable wrong = costs;
      for (std::vector<double>& times : wrong.verify_us) {
        for (double& us : times)
          us *= error == 0.0 ? 1.0 : (1.0 - error + 2.0 * error * random.uniform()) / 1.5;
      }
      NodePolicy policy(wrong);
      EXPECT_LT(time_per_token(costs, 15, 0, &policy), best / 0.97)
          << per_row << " us a row, error " << error;
    }
  }
}

}  // namespace
}  // namespace kdtree
