#include "model/moe.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "cases/random.h"

namespace kdtree {
namespace {

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

// Every choice of groups, then of experts: the definition, by enumeration.
TEST(Route, TakesTheBestExpertsOfTheBestGroups) {
  Random random(1);
  for (int round = 0; round < 500; ++round) {
    MoeConfig config;
    config.groups = 1 + random.below(4);
    const int64_t per_group = 2 + random.below(3);
    config.experts = config.groups * per_group;
    config.groups_per_token = 1 + random.below(config.groups);
    config.experts_per_token = 1 + random.below(per_group * config.groups_per_token);
    config.normalize = random.below(2) == 0;
    config.scaling = 2.5f;
    const auto count = static_cast<size_t>(config.experts);
    std::vector<float> scores(count), bias(count);
    for (size_t e = 0; e < count; ++e) {
      scores[e] = static_cast<float>(random.normal());
      bias[e] = static_cast<float>(0.3 * random.normal());
    }
    std::vector<int32_t> experts(static_cast<size_t>(config.experts_per_token));
    std::vector<float> weights(experts.size());
    route(scores, bias, config, experts, weights);

    const auto choice = [&](size_t e) { return sigmoid(scores[e]) + bias[e]; };
    const auto group_score = [&](int64_t g) {
      double best = -1e30;
      for (int64_t a = 0; a < per_group; ++a) {
        for (int64_t b = 0; b < a; ++b)
          best = std::max(best, choice(static_cast<size_t>(g * per_group + a)) +
                                    choice(static_cast<size_t>(g * per_group + b)));
      }
      return best;
    };
    std::vector<int64_t> better(static_cast<size_t>(config.groups));
    std::vector<size_t> allowed;
    for (int64_t g = 0; g < config.groups; ++g) {
      int64_t ahead = 0;
      for (int64_t o = 0; o < config.groups; ++o)
        ahead += group_score(o) > group_score(g) ? 1 : 0;
      if (ahead >= config.groups_per_token) continue;
      for (int64_t e = 0; e < per_group; ++e)
        allowed.push_back(static_cast<size_t>(g * per_group + e));
    }
    std::sort(allowed.begin(), allowed.end(), [&](size_t a, size_t b) { return choice(a) > choice(b); });
    double total = 0.0;
    for (size_t i = 0; i < experts.size(); ++i)
      total += sigmoid(scores[allowed[i]]);
    for (size_t i = 0; i < experts.size(); ++i) {
      ASSERT_EQ(experts[i], static_cast<int32_t>(allowed[i]));
      const double weight = 2.5 * sigmoid(scores[allowed[i]]) / (config.normalize ? total : 1.0);
      ASSERT_NEAR(weights[i], weight, 1e-5);
    }
  }
}

TEST(Route, EqualScoresGoToTheSmallerIndex) {
  MoeConfig config;
  config.experts = 8;
  config.groups = 2;
  config.groups_per_token = 1;
  config.experts_per_token = 3;
  const std::vector<float> scores(8, 0.25f), bias(8, 0.0f);
  std::vector<int32_t> experts(3);
  std::vector<float> weights(3);
  route(scores, bias, config, experts, weights);
  EXPECT_EQ(experts, (std::vector<int32_t>{0, 1, 2}));
}

}  // namespace
}  // namespace kdtree
