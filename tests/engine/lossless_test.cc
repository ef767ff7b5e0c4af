// The engine's promise: whatever the mode, the number of nodes and the batch, the same tokens from the same
// logits, bit for bit; and sampled tokens follow the target's filtered distribution.
#include <cmath>
#include <cstring>
#include <map>

#include <gtest/gtest.h>

#include "cases/random.h"
#include "engine/engine.h"
#include "model/dflash.h"
#include "tests/engine/generate.h"
#include "tests/engine/planted_drafter.h"
#include "tests/model/forward.h"

namespace kdtree {
namespace {

std::vector<Request> random_requests(const ModelConfig& config, int64_t count, int64_t new_tokens,
                                     const SamplingParams& sampling, uint64_t seed) {
  Random random(seed);
  std::vector<Request> requests(static_cast<size_t>(count));
  for (size_t i = 0; i < requests.size(); ++i) {
    // Every third begins as the one before does, so that prefixes are shared.
    if (i % 3 == 1) requests[i].prompt = requests[i - 1].prompt;
    for (int64_t n = 1 + random.below(12); n > 0; --n)
      requests[i].prompt.push_back(static_cast<int32_t>(random.below(config.vocab_size)));
    requests[i].max_new_tokens = new_tokens;
    requests[i].sampling = sampling;
  }
  return requests;
}

std::vector<std::vector<int32_t>> sequences(const std::vector<Request>& requests, const Generated& plain) {
  std::vector<std::vector<int32_t>> all;
  for (size_t i = 0; i < requests.size(); ++i) {
    all.push_back(requests[i].prompt);
    all.back().insert(all.back().end(), plain.tokens[i].begin(), plain.tokens[i].end());
  }
  return all;
}

void expect_same(const Generated& actual, const Generated& plain, const std::string& what) {
  for (size_t i = 0; i < plain.tokens.size(); ++i) {
    ASSERT_EQ(actual.tokens[i], plain.tokens[i]) << what << ", request " << i;
    ASSERT_EQ(actual.finish[i], plain.finish[i]) << what << ", request " << i;
    ASSERT_EQ(actual.logits[i].size(), plain.logits[i].size()) << what << ", request " << i;
    for (size_t t = 0; t < plain.logits[i].size(); ++t) {
      ASSERT_EQ(std::memcmp(actual.logits[i][t].data(), plain.logits[i][t].data(),
                            plain.logits[i][t].size() * sizeof(float)),
                0)
          << what << ", request " << i << ", token " << t;
    }
  }
}

// All modes against plain decoding, one request at a time.
void check_lossless(const std::string& checkpoint, int64_t prompts, const SamplingParams& sampling,
                    std::initializer_list<int32_t> node_counts, Products products = Products::f32,
                    DType kv_dtype = DType::f32) {
  TargetModel target = load_target(checkpoint, products);
  ASSERT_EQ(target.products(), products);
  const auto requests = random_requests(target.config(), prompts, 20, sampling, 11);
  const auto plain = generate(
      target, nullptr, {.mode = DecodeMode::autoregressive, .batch = 1, .kv_dtype = kv_dtype}, requests);
  ASSERT_TRUE(plain) << plain.error().message;
  PlantedDrafter drafter(sequences(requests, *plain), target.config().vocab_size, 7, 0.6);
  for (const int64_t batch : {1, 4}) {
    const auto together =
        generate(target, nullptr, {.mode = DecodeMode::autoregressive, .batch = batch, .kv_dtype = kv_dtype},
                 requests);
    ASSERT_TRUE(together) << together.error().message;
    expect_same(*together, *plain, fmt::format("plain, batch {}", batch));
    for (const int32_t nodes : node_counts) {
      for (const DecodeMode mode : {DecodeMode::chain, DecodeMode::tree}) {
        const auto drafted = generate(
            target, &drafter, {.mode = mode, .nodes = nodes, .batch = batch, .kv_dtype = kv_dtype}, requests);
        ASSERT_TRUE(drafted) << drafted.error().message;
        expect_same(*drafted, *plain,
                    fmt::format("{} of {} nodes, batch {}", mode == DecodeMode::tree ? "tree" : "chain",
                                nodes, batch));
        EXPECT_GT(drafted->stats.mean_accept_length(), nodes == 1 ? 1.2 : 1.5) << "paths must be walked";
        EXPECT_LT(drafted->stats.rounds, plain->stats.rounds);
      }
    }
  }
}

TEST(Lossless, GreedyOfEveryModeIsPlainDecodingBitForBit100Prompts) {
  check_lossless("q_lora", 100, {}, {1, 8, 16, 32, 64, 256});
}

TEST(Lossless, SampledTextIsThatOfPlainDecodingBitForBit100Prompts) {
  check_lossless("q_lora", 100, {.temperature = 0.8, .top_p = 0.95, .top_k = 50, .min_p = 0.01, .seed = 3},
                 {8, 64});
}

TEST(Lossless, MixturesOfExpertsToo) {
  check_lossless("moe", 8, {}, {1, 16, 64});
  check_lossless("moe", 8, {.temperature = 1.0, .seed = 5}, {16});
}

TEST(Lossless, WithYarnToo) {
  check_lossless("yarn", 8, {}, {1, 16, 64});
}

// In hardware where the processor has them, else emulated; attention multiplies bf16 with a cache in bf16.
TEST(Lossless, WithBf16ProductsToo) {
  for (const DType kv_dtype : {DType::bf16, DType::f32}) {
    check_lossless("q_lora", 20, {}, {1, 8, 16, 64}, Products::bf16, kv_dtype);
    check_lossless("moe", 8, {.temperature = 1.0, .seed = 5}, {16}, Products::bf16, kv_dtype);
  }
}

// The number of nodes chosen round by round, with pauses, in a KV cache of either type.
TEST(Lossless, WithNodesChosenRoundByRoundToo) {
  TargetModel target = load_target("q_lora");
  const auto requests = random_requests(target.config(), 20, 30, {.temperature = 0.9, .seed = 9}, 13);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto plain = generate(target, nullptr, {.batch = 1, .kv_dtype = dtype}, requests);
    ASSERT_TRUE(plain) << plain.error().message;
    PlantedDrafter drafter(sequences(requests, *plain), target.config().vocab_size, 7, 0.6);
    CostTable costs;
    costs.rows = {1, 16, 256};
    costs.contexts = {16, 64};
    costs.requests = {1, 4};
    costs.depths = {7};
    // One where trees pay, one where they hardly ever do.
    for (const double draft : {10.0, 400.0}) {
      costs.verify_us = {{100, 200, 2000}, {100, 200, 2000}};
      costs.draft_us = {{draft, 2 * draft}};
      for (const int64_t batch : {1, 4}) {
        const auto drafted = generate(
            target, &drafter, {.mode = DecodeMode::tree, .nodes = 64, .batch = batch, .kv_dtype = dtype},
            requests, NodePolicy(costs));
        ASSERT_TRUE(drafted) << drafted.error().message;
        expect_same(*drafted, *plain, fmt::format("draft {} us, batch {}", draft, batch));
        EXPECT_LT(drafted->stats.nodes, 64 * drafted->stats.rounds);
        EXPECT_GT(drafted->stats.nodes, 0);
      }
    }
  }
}

// Accepted rows that stay where they were verified, beside requests that share their prefixes.
TEST(Lossless, WithSlotsOutOfOrderToo) {
  TargetModel target = load_target("q_lora");
  const auto requests = random_requests(target.config(), 20, 30, {.temperature = 0.9, .seed = 9}, 13);
  const auto plain = generate(target, nullptr, {.batch = 1}, requests);
  ASSERT_TRUE(plain) << plain.error().message;
  PlantedDrafter drafter(sequences(requests, *plain), target.config().vocab_size, 7, 0.6);
  for (const int64_t batch : {1, 4}) {
    for (const int32_t nodes : {3, 16, 64}) {
      const auto drafted =
          generate(target, &drafter,
                   {.mode = DecodeMode::tree, .nodes = nodes, .batch = batch, .move_rows = false}, requests);
      ASSERT_TRUE(drafted) << drafted.error().message;
      expect_same(*drafted, *plain, fmt::format("{} nodes, batch {}", nodes, batch));
      EXPECT_GT(drafted->stats.mean_accept_length(), 1.2);
    }
  }
}

// The drafter that ships: random weights, so it is hardly ever right, but everything of it runs.
TEST(Lossless, WithADflashDrafterToo) {
  for (const Products products : {Products::f32, Products::bf16}) {
    TargetModel target = load_target("q_lora", products);
    const auto requests = random_requests(target.config(), 6, 24, {}, 12);
    const auto plain = generate(target, nullptr, {.mode = DecodeMode::autoregressive, .batch = 1}, requests);
    ASSERT_TRUE(plain) << plain.error().message;
    auto drafter = DFlashDrafter::load(golden("dflash"), target, products);
    ASSERT_TRUE(drafter) << drafter.error().message;
    for (const int64_t batch : {1, 4}) {
      for (const int32_t nodes : {1, 16, 64}) {
        for (const DecodeMode mode : {DecodeMode::chain, DecodeMode::tree}) {
          const auto drafted =
              generate(target, drafter->get(), {.mode = mode, .nodes = nodes, .batch = batch}, requests);
          ASSERT_TRUE(drafted) << drafted.error().message;
          expect_same(*drafted, *plain, fmt::format("{} nodes, batch {}", nodes, batch));
        }
      }
    }
  }
}

// softmax(logits / temperature) through top-k, top-p and min-p, by sorting.
std::vector<double> filtered(std::span<const float> logits, const SamplingParams& params) {
  std::vector<size_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i)
    order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (params.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(params.top_k)));
  std::vector<double> probability(logits.size(), 0.0);
  const auto normalize = [&] {
    double total = 0.0;
    for (const size_t i : order)
      total += probability[i];
    for (const size_t i : order)
      probability[i] /= total;
  };
  for (const size_t i : order)
    probability[i] = std::exp((double{logits[i]} - double{logits[order[0]]}) / params.temperature);
  normalize();
  double sum = 0.0;
  size_t kept = 0;
  while (kept < order.size() && sum < params.top_p)
    sum += probability[order[kept++]];
  for (size_t i = kept; i < order.size(); ++i)
    probability[order[i]] = 0.0;
  order.resize(kept);
  normalize();
  for (const size_t i : order) {
    if (probability[i] < params.min_p * probability[order[0]]) probability[i] = 0.0;
  }
  normalize();
  return probability;
}

// Probability that chi-squared with `freedom` degrees is above `x` (Wilson and Hilferty 1931).
double chi_squared_tail(double x, double freedom) {
  const double z =
      (std::cbrt(x / freedom) - (1.0 - 2.0 / (9.0 * freedom))) / std::sqrt(2.0 / (9.0 * freedom));
  return 0.5 * std::erfc(z / std::sqrt(2.0));
}

// Counts against probabilities, over any number of independent tables; tokens expected fewer than five times
// are put together.
class GTest {
 public:
  void add(const std::map<int32_t, int64_t>& counts, const std::vector<double>& probability) {
    int64_t draws = 0;
    for (const auto& [token, count] : counts) {
      EXPECT_GT(probability[static_cast<size_t>(token)], 0.0) << "token " << token << " is filtered out";
      draws += count;
    }
    double rare = 0.0;
    double rare_seen = 0.0;
    freedom_ -= 1.0;
    for (size_t token = 0; token < probability.size(); ++token) {
      const double expected = probability[token] * static_cast<double>(draws);
      const auto found = counts.find(static_cast<int32_t>(token));
      const double seen = found != counts.end() ? static_cast<double>(found->second) : 0.0;
      if (expected >= 5.0) {
        cell(seen, expected);
      } else {
        rare += expected;
        rare_seen += seen;
      }
    }
    if (rare > 0.0) cell(rare_seen, rare);
    draws_ += draws;
  }

  int64_t draws() const { return draws_; }
  double p_value() const { return chi_squared_tail(g_, std::max(freedom_, 1.0)); }

 private:
  void cell(double seen, double expected) {
    if (seen > 0.0) g_ += 2.0 * seen * std::log(seen / expected);
    freedom_ += 1.0;
  }

  double g_ = 0.0;
  double freedom_ = 0.0;
  int64_t draws_ = 0;
};

class Distribution : public testing::TestWithParam<DecodeMode> {};

// 24,000 requests with one prompt: the counts of their first, second and third tokens, behind every beginning
// that came up, against the distribution that the logits there give.
TEST_P(Distribution, SampledTokensFollowTheFilteredTarget24000Draws) {
  const SamplingParams params{.temperature = 0.7, .top_p = 0.9, .top_k = 12, .min_p = 0.02, .seed = 17};
  TargetModel target = load_target("q_lora");
  const std::vector<int32_t> prompt = {5, 17, 3, 60};
  const std::vector<Request> requests(24000, {prompt, 3, params});
  const auto distribution = [&](const std::vector<int32_t>& tokens, const SamplingParams& sampling) {
    const auto logits = teacher_forced_logits(target, tokens);
    return filtered(logits->as<float>().last(static_cast<size_t>(target.config().vocab_size)), sampling);
  };
  // The likeliest continuation is what the drafter proposes, so that many draws go through accepted paths.
  std::vector<int32_t> likely = prompt;
  for (int i = 0; i < 3; ++i) {
    const auto next = distribution(likely, params);
    likely.push_back(static_cast<int32_t>(std::max_element(next.begin(), next.end()) - next.begin()));
  }
  PlantedDrafter drafter({likely}, target.config().vocab_size, 3, 0.5);
  const auto out = generate(target, &drafter,
                            {.mode = GetParam(), .nodes = 6, .batch = 64, .kv_slots = 64 * 16}, requests);
  ASSERT_TRUE(out) << out.error().message;

  for (size_t position = 0; position < 3; ++position) {
    std::map<std::vector<int32_t>, std::map<int32_t, int64_t>> counts;  // of each beginning
    for (const auto& tokens : out->tokens) {
      ASSERT_EQ(tokens.size(), 3u);
      ++counts[{tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(position)}][tokens[position]];
    }
    GTest test;
    for (const auto& [beginning, next] : counts) {
      std::vector<int32_t> tokens = prompt;
      tokens.insert(tokens.end(), beginning.begin(), beginning.end());
      test.add(next, distribution(tokens, params));
    }
    EXPECT_EQ(test.draws(), 24000);
    EXPECT_GT(test.p_value(), 1e-4) << "token " << position;
  }
  // The test can fail: the same counts do not fit a slightly higher temperature.
  std::map<int32_t, int64_t> first;
  for (const auto& tokens : out->tokens)
    ++first[tokens[0]];
  GTest warmer;
  warmer.add(first, distribution(prompt, {.temperature = 0.75, .top_p = 0.9, .top_k = 12, .min_p = 0.02}));
  EXPECT_LT(warmer.p_value(), 1e-4);
}

std::string mode_name(const testing::TestParamInfo<DecodeMode>& info) {
  switch (info.param) {
    case DecodeMode::autoregressive:
      return "plain";
    case DecodeMode::chain:
      return "chain";
    default:
      return "tree";
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, Distribution,
                         testing::Values(DecodeMode::autoregressive, DecodeMode::chain, DecodeMode::tree),
                         mode_name);

}  // namespace
}  // namespace kdtree
