// Draws against the distribution that a full sort gives, in long double.
#include "model/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "cases/random.h"

namespace kdtree {
namespace {

using Floats = std::vector<float>;
using Probabilities = std::vector<long double>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// One a token; 0 for those that the filters drop.
Probabilities by_full_sort(const Floats& logits, const SamplingParams& params) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  Probabilities p;
  for (const size_t token : order)
    p.push_back(std::exp((static_cast<long double>(logits[token]) - logits[order[0]]) / params.temperature));
  const auto renormalise = [&] {
    const long double sum = std::accumulate(p.begin(), p.end(), 0.0L);
    for (long double& x : p)
      x /= sum;
  };
  if (params.top_k > 0) p.resize(std::min(p.size(), static_cast<size_t>(params.top_k)));
  renormalise();
  if (params.top_p < 1) {
    long double sum = 0;
    size_t kept = 0;
    while (kept < p.size() && sum < params.top_p)
      sum += p[kept++];
    p.resize(kept);
    renormalise();
  }
  while (p.back() < params.min_p * p.front())
    p.pop_back();
  renormalise();
  Probabilities by_token(logits.size(), 0.0L);
  for (size_t i = 0; i < p.size(); ++i)
    by_token[order[i]] = p[i];
  return by_token;
}

int32_t sample(const Floats& logits, const SamplingParams& params, uint64_t request = 0,
               uint64_t position = 0) {
  SamplingScratch scratch;
  const auto token = sample_token(logits, params, request, position, scratch);
  EXPECT_TRUE(token) << token.error().message;
  return token ? *token : -1;
}

// Whether `token` is where the sum of `p` over ascending tokens goes beyond `uniform`, up to rounding.
bool inverts(const Probabilities& p, int32_t token, double uniform) {
  constexpr long double kRounding = 1e-12L;
  const auto own = static_cast<size_t>(token);
  const long double before = std::accumulate(p.begin(), p.begin() + token, 0.0L);
  return p[own] > 0 && before - kRounding <= uniform && uniform <= before + p[own] + kRounding;
}

// The probability of a chi-squared variable above `x` (Wilson and Hilferty's approximation).
double chi_squared_tail(double x, double degrees) {
  const double variance = 2 / (9 * degrees);
  const double z = (std::cbrt(x / degrees) - (1 - variance)) / std::sqrt(variance);
  return std::erfc(z / std::sqrt(2.0)) / 2;
}

Floats random_logits(Random& random, size_t vocab, double spread) {
  Floats logits(vocab);
  for (float& logit : logits)
    logit = static_cast<float>(random.normal() * spread);
  return logits;
}

TEST(Philox, KnownAnswersOfRandom123) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformIsItsUpperBits) {
  EXPECT_EQ(sampling_uniform(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88),
            static_cast<double>(0x94fdccebd16cfe09 >> 11) * 0x1p-53);
}

TEST(Philox, StreamsAreUncorrelated) {
  constexpr int kCount = 40000;
  const auto correlation = [&](auto&& a, auto&& b) {
    double sum = 0;
    for (uint64_t i = 0; i < kCount; ++i)
      sum += (a(i) - 0.5) * (b(i) - 0.5) * 12;
    return sum / kCount;
  };
  const auto base = [](uint64_t i) { return sampling_uniform(7, 3, i); };
  const double bound = 5 / std::sqrt(double{kCount});
  constexpr uint64_t kHigh = uint64_t{1} << 32;
  EXPECT_NEAR(correlation(base, base), 1, 0.05);  // that of a stream with itself: the measure can fail
  EXPECT_LT(std::fabs(correlation(base, [](uint64_t i) { return sampling_uniform(8, 3, i); })), bound);
  EXPECT_LT(std::fabs(correlation(base, [](uint64_t i) { return sampling_uniform(7 + kHigh, 3, i); })),
            bound);
  EXPECT_LT(std::fabs(correlation(base, [](uint64_t i) { return sampling_uniform(7, 4, i); })), bound);
  EXPECT_LT(std::fabs(correlation(base, [](uint64_t i) { return sampling_uniform(7, 3 + kHigh, i); })),
            bound);
  EXPECT_LT(std::fabs(correlation(base, [](uint64_t i) { return sampling_uniform(7, 3, i + 1); })), bound);
  EXPECT_LT(std::fabs(correlation(base, [](uint64_t i) { return sampling_uniform(7, 3, i + kHigh); })),
            bound);
  EXPECT_LT(std::fabs(correlation(base, [](uint64_t i) { return sampling_uniform(7, i, 3); })), bound);
  EXPECT_LT(std::fabs(correlation(base, [](uint64_t i) { return sampling_uniform(3, 7, i); })), bound);
}

TEST(Sampling, EachDrawInvertsTheDistributionOfTheFullSort) {
  Random random(11);
  SamplingScratch scratch;
  int filtered = 0;
  for (int round = 0; round < 3000; ++round) {
    const size_t sizes[] = {1, 2, 7, 8, 9, 100, 127, 128, 129, 300, 1000, 2500};
    Floats logits = random_logits(random, sizes[random.below(12)], 0.1 + 6 * random.uniform());
    if (random.below(3) == 0) {  // ties, of both zeros too
      for (float& logit : logits)
        logit = std::round(logit) * (random.below(2) == 0 ? 1.0f : -1.0f);
    }
    if (random.below(3) == 0) {
      for (size_t i = 1; i < logits.size(); ++i)
        logits[i] = random.below(2) == 0 ? -kInfinity : logits[i];
    }
    SamplingParams params;
    params.temperature = std::pow(10.0, 2 * random.uniform() - 1);
    if (random.below(2) == 0) params.top_p = 1 - random.uniform();
    if (random.below(2) == 0)
      params.top_k = static_cast<int32_t>(1 + random.below(random.below(2) == 0 ? 8 : 1500));
    if (random.below(2) == 0) params.min_p = std::pow(random.uniform(), 3);
    params.seed = static_cast<uint64_t>(round);
    const auto p = by_full_sort(logits, params);
    filtered += std::count(p.begin(), p.end(), 0.0L) > 0 ? 1 : 0;
    for (uint64_t position = 0; position < 20; ++position) {
      const auto token = sample_token(logits, params, 5, position, scratch);
      ASSERT_TRUE(token) << token.error().message;
      ASSERT_TRUE(inverts(p, *token, sampling_uniform(params.seed, 5, position)))
          << "round " << round << ", position " << position << ", token " << *token;
    }
  }
  EXPECT_GT(filtered, 1500);
}

TEST(Sampling, ALargeVocabulary) {
  Random random(12);
  SamplingScratch scratch;
  Floats logits = random_logits(random, 163840, 2);
  for (int i = 0; i < 40; ++i)
    logits[static_cast<size_t>(random.below(163840))] += 12;
  for (const SamplingParams& params :
       {SamplingParams{1}, SamplingParams{0.6, 0.95}, SamplingParams{30, 0.95}, SamplingParams{1, 1, 50},
        SamplingParams{1, 0.9, 50, 0.05}, SamplingParams{1, 0.9, 5000}, SamplingParams{3, 1, 0, 0.01}}) {
    const auto p = by_full_sort(logits, params);
    for (uint64_t position = 0; position < 30; ++position) {
      const auto token = sample_token(logits, params, 0, position, scratch);
      ASSERT_TRUE(token) << token.error().message;
      ASSERT_TRUE(inverts(p, *token, sampling_uniform(0, 0, position))) << params.top_k << " " << *token;
    }
  }
}

TEST(Sampling, FrequenciesPassTheGTest) {
  constexpr int kDraws = 20000;
  Random random(13);
  SamplingScratch scratch;
  for (const SamplingParams& params :
       {SamplingParams{1, 1, 0, 0, 1}, SamplingParams{0.7, 0.9, 0, 0, 2}, SamplingParams{1.5, 1, 20, 0, 3},
        SamplingParams{2, 1, 0, 0.1, 4}, SamplingParams{1.2, 0.8, 30, 0.05, 5}}) {
    const Floats logits = random_logits(random, 200, 1.5);
    const auto p = by_full_sort(logits, params);
    std::vector<int> seen(logits.size());
    for (uint64_t position = 0; position < kDraws; ++position)
      ++seen[static_cast<size_t>(*sample_token(logits, params, 9, position, scratch))];
    // Twice the sum of seen * ln(seen / expected), rare tokens in one cell.
    double g = 0, rare = 0, rare_expected = 0;
    int cells = 0;
    const auto add = [&](double count, double expected) {
      if (count > 0) g += 2 * count * std::log(count / expected);
      ++cells;
    };
    for (size_t token = 0; token < p.size(); ++token) {
      const double expected = static_cast<double>(p[token]) * kDraws;
      if (expected == 0) {
        EXPECT_EQ(seen[token], 0) << token;
      } else if (expected < 10) {
        rare += seen[token];
        rare_expected += expected;
      } else {
        add(seen[token], expected);
      }
    }
    if (rare_expected > 0) add(rare, rare_expected);
    EXPECT_GT(cells, 5);
    EXPECT_GT(chi_squared_tail(g, cells - 1), 1e-4) << "seed " << params.seed << ", G " << g;
  }
}

TEST(Sampling, GreedyTakesTheSmallerTokenAmongEquals) {
  EXPECT_EQ(sample({3}, {}), 0);
  EXPECT_EQ(sample({1, 2, 2, -1}, {}), 1);
  EXPECT_EQ(sample({-kInfinity, -5, -kInfinity}, {}), 1);
  EXPECT_EQ(sample({-0.0f, 0.0f}, {}), 0);
  Random random(14);
  for (int round = 0; round < 2000; ++round) {
    Floats logits(static_cast<size_t>(1 + random.below(700)));
    for (float& logit : logits)
      logit = static_cast<float>(random.below(50)) - 60;
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    ASSERT_EQ(sample(logits, {}), best);
    // The filters have no say in it.
    ASSERT_EQ(sample(logits, {0, 0.5, 3, 0.5}), best);
  }
}

TEST(Sampling, EqualsGreedyInTheLimit) {
  Random random(15);
  for (uint64_t round = 0; round < 500; ++round) {
    Floats logits = random_logits(random, 300, 3);
    for (float& logit : logits)
      logit = std::round(logit * 4) / 4;  // ties
    const int32_t greedy = sample(logits, {});
    const auto largest = logits[static_cast<size_t>(greedy)];
    EXPECT_EQ(sample(logits, {1, 1, 1}, 0, round), greedy);
    EXPECT_EQ(sample(logits, {1, 1e-9}, 0, round), greedy);
    EXPECT_EQ(sample(logits, {1e9, 1e-9}, 0, round), greedy);
    EXPECT_EQ(sample(logits, {1, 1e-9, 7, 1}, 0, round), greedy);
    // These leave the largest logits, however many there are.
    for (const SamplingParams& params :
         {SamplingParams{5e-324}, SamplingParams{1e-6}, SamplingParams{1, 1, 0, 1}})
      EXPECT_EQ(logits[static_cast<size_t>(sample(logits, params, 0, round))], largest);
  }
}

TEST(Sampling, TiesAtTheCut) {
  const Floats logits = {0, 1, 1, 1, 0, 2};
  const auto drawn = [&](const SamplingParams& params) {
    std::set<int32_t> tokens;
    for (uint64_t position = 0; position < 400; ++position)
      tokens.insert(sample(logits, params, 0, position));
    return tokens;
  };
  using Set = std::set<int32_t>;
  EXPECT_EQ(drawn({1, 1, 3}), (Set{1, 2, 5}));
  EXPECT_EQ(drawn({1, 1, 5}), (Set{0, 1, 2, 3, 5}));
  EXPECT_EQ(drawn({1, 1, 6}), (Set{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(drawn({1, 1, 2147483647}), (Set{0, 1, 2, 3, 4, 5}));
  // Probabilities e^2, e, e, e, 1, 1 over 17.54: .421, .155, .155, .155, .057, .057
  EXPECT_EQ(drawn({1, 0.42}), (Set{5}));
  EXPECT_EQ(drawn({1, 0.43}), (Set{1, 5}));
  EXPECT_EQ(drawn({1, 0.60}), (Set{1, 2, 5}));
  // top_p of what top_k left: .475, .175, ...
  EXPECT_EQ(drawn({1, 0.47, 4}), (Set{5}));
  EXPECT_EQ(drawn({1, 0.48, 4}), (Set{1, 5}));
  // min_p of what top_p left, where the largest is the same: e^-1 = .368
  EXPECT_EQ(drawn({1, 1, 0, 0.36}), (Set{1, 2, 3, 5}));
  EXPECT_EQ(drawn({1, 0.60, 0, 0.36}), (Set{1, 2, 5}));
  EXPECT_EQ(drawn({1, 1, 0, 0.37}), (Set{5}));
  // A weight of exactly min_p is enough.
  EXPECT_EQ(drawn({1, 1, 6, 1}), (Set{5}));
  EXPECT_EQ(drawn({1e300, 1, 4, 1}), (Set{1, 2, 3, 5}));
  // A sum of exactly top_p is enough.
  SamplingScratch scratch;
  for (uint64_t position = 0; position < 400; ++position)
    EXPECT_LT(*sample_token(Floats{1, 1, 1, 1}, {1, 0.5}, 0, position, scratch), 2);
}

TEST(Sampling, WeightsAreExactToRounding) {
  // With the uniform so near to 1, token 1 is drawn whenever it is kept.
  uint64_t position = 0;
  for (uint64_t i = 0; i < 1000000; ++i) {
    if (sampling_uniform(0, 0, i) > sampling_uniform(0, 0, position)) position = i;
  }
  ASSERT_GT(sampling_uniform(0, 0, position), 1 - 2e-6);
  SamplingScratch scratch;
  Random random(16);
  for (int round = 0; round < 20000; ++round) {
    const Floats logits = {0, static_cast<float>(-11 * random.uniform())};
    const long double weight = std::exp(static_cast<long double>(logits[1]));
    const auto below = static_cast<double>(weight * (1 - 1.2e-15L));
    const auto above = static_cast<double>(weight * (1 + 1.2e-15L));
    ASSERT_EQ(*sample_token(logits, {1, 1, 0, below}, 0, position, scratch), 1) << logits[1];
    ASSERT_EQ(*sample_token(logits, {1, 1, 0, std::min(above, 1.0)}, 0, position, scratch), 0) << logits[1];
  }
}

TEST(Sampling, ExtremeLogitsAndTemperatures) {
  const float large = std::numeric_limits<float>::max();
  for (uint64_t position = 0; position < 100; ++position) {
    EXPECT_EQ(sample({-large, large}, {1}, 0, position), 1);
    EXPECT_EQ(sample({-large, large, 0}, {1, 0.999999, 0, 1e-300}, 0, position), 1);
    EXPECT_EQ(sample({-large, -kInfinity}, {5e-324, 0.5}, 0, position), 0);
  }
  Floats whole_blocks(256, -large);
  whole_blocks[200] = large;
  EXPECT_EQ(sample(whole_blocks, {}), 200);
  EXPECT_EQ(sample(whole_blocks, {1}), 200);
  // So hot that all are equally probable, but for -inf.
  std::set<int32_t> tokens;
  for (uint64_t position = 0; position < 100; ++position)
    tokens.insert(sample({-large, large, -kInfinity, 0}, {1e300}, 0, position));
  EXPECT_EQ(tokens, (std::set<int32_t>{0, 1, 3}));
}

TEST(Sampling, TheSameOnEverySimdTarget) {
  const Floats logits = [] {
    Random random(18);
    return random_logits(random, 3001, 2);
  }();
  const auto draws = [&] {
    std::vector<int32_t> tokens;
    for (uint64_t position = 0; position < 100; ++position) {
      for (const SamplingParams& params :
           {SamplingParams{}, SamplingParams{1}, SamplingParams{2, 0.9}, SamplingParams{2, 0.9, 20, 0.01}})
        tokens.push_back(sample(logits, params, 0, position));
    }
    return tokens;
  };
  const auto expected = draws();
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    EXPECT_EQ(draws(), expected) << hwy::TargetName(target);
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST(Sampling, IndependentOfWhatWasDrawnBefore) {
  Random random(17);
  std::vector<Floats> rows;
  std::vector<SamplingParams> params;
  std::vector<int32_t> fresh;
  for (uint64_t i = 0; i < 100; ++i) {
    rows.push_back(random_logits(random, static_cast<size_t>(1 + random.below(3000)), 2));
    params.push_back({1, 1 - random.uniform() / 2, static_cast<int32_t>(random.below(50)), 0, i % 3});
    fresh.push_back(sample(rows[i], params[i], i, i * 7));
  }
  SamplingScratch scratch;
  for (uint64_t step = 0; step < 1000; ++step) {
    const auto i = static_cast<size_t>(random.below(100));
    ASSERT_EQ(*sample_token(rows[i], params[i], i, i * 7, scratch), fresh[i]);
  }
}

void expect_refused(const Floats& logits, const SamplingParams& params, int32_t code,
                    const std::string& message) {
  SamplingScratch scratch;
  const auto token = sample_token(logits, params, 0, 0, scratch);
  ASSERT_FALSE(token) << message;
  EXPECT_EQ(token.error().code, code) << token.error().message;
  EXPECT_EQ(token.error().message, message);
}

TEST(Sampling, RefusesBadParameters) {
  const auto refused = [](const SamplingParams& params, const std::string& message) {
    expect_refused({1, 2}, params, KDTREE_INVALID_ARGUMENT, message);
  };
  refused({-1}, "temperature is -1, expected a number of at least 0");
  refused({kNan}, "temperature is nan, expected a number of at least 0");
  refused({INFINITY}, "temperature is inf, expected a number of at least 0");
  refused({1, 0}, "top_p is 0, expected a number above 0 and at most 1");
  refused({1, 1.5}, "top_p is 1.5, expected a number above 0 and at most 1");
  refused({0, kNan}, "top_p is nan, expected a number above 0 and at most 1");
  refused({1, 1, -1}, "top_k is -1, expected at least 0 (0 = all)");
  refused({1, 1, 0, -0.5}, "min_p is -0.5, expected a number from 0 to 1");
  refused({1, 1, 0, 1.5}, "min_p is 1.5, expected a number from 0 to 1");
  refused({1, 1, 0, kNan}, "min_p is nan, expected a number from 0 to 1");
  expect_refused({}, {}, KDTREE_INVALID_ARGUMENT, "logits has 0 tokens, expected 1 to 2^31 - 1");
  EXPECT_TRUE(validate({}));
  EXPECT_TRUE(validate({1e300, 1e-300, 2147483647, 1}));
}

TEST(Sampling, RefusesWhatIsNoNumber) {
  for (const double temperature : {0.0, 1.0}) {
    for (const size_t vocab : {size_t{5}, size_t{128}, size_t{300}}) {
      for (size_t token = 0; token < vocab; ++token) {
        Floats logits(vocab, -1.0f);
        logits.back() = -kInfinity;
        logits[token] = std::numeric_limits<float>::quiet_NaN();
        expect_refused(logits, {temperature}, KDTREE_NOT_A_NUMBER,
                       "logits: token " + std::to_string(token) + " is nan, expected a number or -inf");
        logits[token] = kInfinity;
        expect_refused(logits, {temperature}, KDTREE_NOT_A_NUMBER,
                       "logits: token " + std::to_string(token) + " is inf, expected a number or -inf");
      }
      expect_refused(Floats(vocab, -kInfinity), {temperature}, KDTREE_NOT_A_NUMBER,
                     "logits: all " + std::to_string(vocab) + " are -inf, expected at least one number");
    }
  }
}

}  // namespace
}  // namespace kdtree
