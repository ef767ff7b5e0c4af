// Top-k against a full sort and an fp64 (long double) log-softmax, on every SIMD target of this machine.
#include "tree/top_k.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "cases/random.h"

namespace kdtree {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct TopK {
  std::vector<int32_t> tokens;
  std::vector<float> log_probs;
};

Result<TopK> top_k(const void* logits, DType dtype, int32_t vocab, int32_t k) {
  Scratch needed;
  top_k_scratch(k, needed);
  std::vector<std::byte> memory(static_cast<size_t>(needed.used() + Scratch::kAlignment));
  Scratch scratch = Scratch::inside(memory);
  TopK result{std::vector<int32_t>(static_cast<size_t>(k)), std::vector<float>(static_cast<size_t>(k))};
  const Status status = top_k_row(logits, dtype, vocab, result.tokens, result.log_probs, scratch);
  if (!status) return tl::unexpected<Error>(status.error());
  return result;
}

Result<TopK> top_k(const std::vector<float>& logits, int32_t k) {
  return top_k(logits.data(), DType::f32, static_cast<int32_t>(logits.size()), k);
}

// Runs `body` once for every SIMD target that this machine has.
void on_every_target(const std::function<void(const char*)>& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    body(hwy::TargetName(target));
  }
  hwy::SetSupportedTargetsForTest(0);
}

void expect_matches_sort(const std::vector<float>& logits, const TopK& result, const char* target) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  const long double most = logits[static_cast<size_t>(order[0])];
  long double sum = 0;
  for (const float x : logits)
    sum += std::exp(static_cast<long double>(x) - most);
  const long double lse = most + std::log(sum);
  for (size_t i = 0; i < result.tokens.size(); ++i) {
    const float logit = i < order.size() ? logits[static_cast<size_t>(order[i])] : -kInf;
    if (logit == -kInf) {
      ASSERT_EQ(result.tokens[i], -1) << target;
      ASSERT_EQ(result.log_probs[i], -kInf) << target;
      continue;
    }
    ASSERT_EQ(result.tokens[i], order[i]) << target << " rank " << i;
    const auto exact = static_cast<double>(logit - lse);
    ASSERT_NEAR(result.log_probs[i], exact, 2e-7 * std::max(1.0, std::fabs(exact)))
        << target << " rank " << i;
  }
}

TEST(TopK, EqualsAStableSortOnEveryTarget) {
  on_every_target([](const char* target) {
    Random random(21);
    for (int round = 0; round < 300; ++round) {
      const auto vocab = static_cast<int32_t>(1 + random.below(700));
      const auto k = static_cast<int32_t>(1 + random.below(std::min(vocab, 90)));
      std::vector<float> logits(static_cast<size_t>(vocab));
      for (float& x : logits) {
        // Few distinct values in a third of the rounds: ties; signed zeros and -inf among them.
        x = round % 3 == 0 ? static_cast<float>(random.below(5) - 2) * (random.below(2) == 0 ? 1.0f : -1.0f)
                           : static_cast<float>(4.0 * random.normal());
        if (round % 5 == 0 && random.below(4) == 0) x = -kInf;
      }
      if (std::all_of(logits.begin(), logits.end(), [](float x) { return x == -kInf; })) continue;
      const auto result = top_k(logits, k);
      ASSERT_TRUE(result) << result.error().message;
      expect_matches_sort(logits, *result, target);
    }
  });
}

TEST(TopK, AscendingDescendingAndFullRows) {
  std::vector<float> logits(5000);
  std::iota(logits.begin(), logits.end(), -2500.0f);
  for (int direction = 0; direction < 2; ++direction) {
    for (const int32_t k : {1, 64, 5000}) {
      const auto result = top_k(logits, k);
      ASSERT_TRUE(result);
      expect_matches_sort(logits, *result, "default");
    }
    std::reverse(logits.begin(), logits.end());
  }
}

TEST(TopK, ALargeVocabularyIsAccurate) {
  Random random(22);
  std::vector<float> logits(163840);
  for (float& x : logits)
    x = static_cast<float>(3.0 * random.normal());
  const auto result = top_k(logits, 64);
  ASSERT_TRUE(result);
  expect_matches_sort(logits, *result, "default");
}

TEST(TopK, TargetsAgreeToTheBit) {
  Random random(23);
  std::vector<float> logits(10007);
  for (float& x : logits)
    x = static_cast<float>(5.0 * random.normal());
  std::vector<TopK> results;
  on_every_target([&](const char*) { results.push_back(*top_k(logits, 50)); });
  ASSERT_FALSE(results.empty());
  for (const TopK& result : results) {
    EXPECT_EQ(result.tokens, results[0].tokens);
    EXPECT_EQ(result.log_probs, results[0].log_probs);
  }
}

TEST(TopK, Bf16EqualsTheSameValuesInF32) {
  Random random(24);
  std::vector<uint16_t> half(1003);
  std::vector<float> wide(half.size());
  for (size_t i = 0; i < half.size(); ++i) {
    half[i] = float_to_bf16(static_cast<float>(3.0 * random.normal()));
    wide[i] = bf16_to_float(half[i]);
  }
  half[17] = 0xff80;  // -inf
  wide[17] = -kInf;
  on_every_target([&](const char* target) {
    const auto a = top_k(half.data(), DType::bf16, 1003, 40);
    const auto b = top_k(wide, 40);
    ASSERT_TRUE(a && b) << target;
    EXPECT_EQ(a->tokens, b->tokens) << target;
    EXPECT_EQ(a->log_probs, b->log_probs) << target;
  });
}

TEST(TopK, OnlyMinusInfinityChoosesNothing) {
  const auto result = top_k(std::vector<float>(10, -kInf), 3);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->tokens, (std::vector<int32_t>{-1, -1, -1}));
  EXPECT_EQ(result->log_probs, (std::vector<float>{-kInf, -kInf, -kInf}));
}

TEST(TopK, ExtremeLogitsStayFinite) {
  const float most = std::numeric_limits<float>::max();
  const auto result = top_k(std::vector<float>{-most, most, 0.0f, most}, 4);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->tokens, (std::vector<int32_t>{1, 3, 2, 0}));
  EXPECT_NEAR(result->log_probs[0], -std::log(2.0), 1e-7);
  EXPECT_EQ(result->log_probs[2], -most);
}

TEST(TopK, NanAndInfinityNameTheToken) {
  on_every_target([](const char* target) {
    for (const size_t at : {size_t{0}, size_t{70}, size_t{255}, size_t{256}}) {
      std::vector<float> logits(257, 1.0f);
      logits[at] = std::nanf("");
      const auto nan = top_k(logits, 3);
      ASSERT_FALSE(nan) << target;
      EXPECT_EQ(nan.error().code, KDTREE_NOT_A_NUMBER);
      EXPECT_EQ(nan.error().message,
                "logits: token " + std::to_string(at) + " is nan, expected a number or -inf");
      logits[at] = kInf;
      EXPECT_EQ(top_k(logits, 3).error().code, KDTREE_NOT_A_NUMBER) << target;
    }
  });
}

TEST(TopK, WithoutLogProbsTheTokensAreTheSame) {
  const std::vector<float> logits = {1.0f, 3.0f, -kInf, 3.0f};
  Scratch needed;
  top_k_scratch(4, needed);
  std::vector<std::byte> memory(static_cast<size_t>(needed.used() + Scratch::kAlignment));
  Scratch scratch = Scratch::inside(memory);
  std::vector<int32_t> tokens(4);
  ASSERT_TRUE(top_k_row(logits.data(), DType::f32, 4, tokens, {}, scratch));
  EXPECT_EQ(tokens, (std::vector<int32_t>{1, 3, 0, -1}));
}

}  // namespace
}  // namespace kdtree
