// The oracle against a second derivation: non-absorbed MLA (DeepSeek-V2, arXiv 2405.04434, section 2.1), with
// K and V expanded per head by W_uk and W_uv.
#include "attention/oracle.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "cases/random.h"
#include "tests/attention/run.h"
#include "tests/cases/case_table.h"

namespace kdtree {
namespace {

constexpr int64_t kNope = 24;
constexpr int64_t kValue = 20;

struct Expanded {
  std::vector<double> w_uk;    // [H, nope, latent]
  std::vector<double> w_uv;    // [H, value, latent]
  std::vector<double> q_nope;  // [T, H, nope]
};

std::vector<double> normals(int64_t count, double scale, Random& random) {
  std::vector<double> values(static_cast<size_t>(count));
  for (double& x : values)
    x = scale * random.normal();
  return values;
}

// softmax(scale (q_nope . W_uk c + q_rope . k_rope)) W_uv c, key by key, per head: [T, H, value].
std::vector<double> expanded_attention(const VerifyCase& c, const Expanded& e) {
  const VerifyProblem& p = c.problem.scalars;
  const int64_t latent = p.latent_dim;
  const int64_t width = row_width(p);
  const auto kv = c.problem.kv.as<double>();
  const auto q = c.problem.q.as<double>();
  std::vector<double> result;
  const int64_t prefix = c.spec.requests[0].prefix_length;
  for (int32_t i = 0; i < c.trees[0].size(); ++i) {
    std::vector<int64_t> slots;
    for (int32_t n = i; n >= 0; n = c.trees[0].parent[static_cast<size_t>(n)]) {
      slots.push_back(c.problem.draft_slots.as<int32_t>()[static_cast<size_t>(n)]);
    }
    for (int64_t j = 0; j < prefix; ++j)
      slots.push_back(c.problem.kv_indices.as<int32_t>()[static_cast<size_t>(j)]);
    for (int64_t h = 0; h < p.heads; ++h) {
      double sum = 0.0;
      std::vector<double> out(kValue, 0.0);
      for (const int64_t slot : slots) {
        const double* row = &kv[static_cast<size_t>(slot * width)];
        double score = 0.0;
        for (int64_t d = 0; d < kNope; ++d) {
          double key = 0.0;  // k_nope[d] of this head
          for (int64_t l = 0; l < latent; ++l)
            key += e.w_uk[static_cast<size_t>((h * kNope + d) * latent + l)] * row[l];
          score += e.q_nope[static_cast<size_t>((i * p.heads + h) * kNope + d)] * key;
        }
        for (int64_t d = latent; d < width; ++d) {
          score += q[static_cast<size_t>((i * p.heads + h) * width + d)] * row[d];
        }
        const double weight = std::exp(score * double{p.scale});  // scores are small: no maximum needed
        sum += weight;
        for (int64_t v = 0; v < kValue; ++v) {
          double value = 0.0;
          for (int64_t l = 0; l < latent; ++l)
            value += e.w_uv[static_cast<size_t>((h * kValue + v) * latent + l)] * row[l];
          out[static_cast<size_t>(v)] += weight * value;
        }
      }
      for (const double x : out)
        result.push_back(x / sum);
    }
  }
  return result;
}

TEST(Oracle, EqualsNonAbsorbedMla) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    CaseSpec spec;
    spec.seed = seed;
    spec.heads = 3;
    spec.latent_dim = 48;
    spec.rope_dim = 16;
    spec.q_dtype = spec.kv_dtype = spec.out_dtype = DType::f64;
    spec.scale = 0.25f;
    spec.requests = {{static_cast<int64_t>(7 * seed), 13, TreeShape::random}};
    auto made = make_verify_case(spec);
    ASSERT_TRUE(made);
    VerifyCase& c = *made;

    Random random(100 + seed);
    const Expanded e{normals(spec.heads * kNope * spec.latent_dim, 0.1, random),
                     normals(spec.heads * kValue * spec.latent_dim, 0.1, random),
                     normals(13 * spec.heads * kNope, 1.0, random)};
    // Absorb: q_latent = q_nope W_uk.
    const auto q = c.problem.q.as<double>();
    const int64_t width = spec.latent_dim + spec.rope_dim;
    for (int64_t t = 0; t < 13; ++t) {
      for (int64_t h = 0; h < spec.heads; ++h) {
        for (int64_t l = 0; l < spec.latent_dim; ++l) {
          double x = 0.0;
          for (int64_t d = 0; d < kNope; ++d) {
            x += e.q_nope[static_cast<size_t>((t * spec.heads + h) * kNope + d)] *
                 e.w_uk[static_cast<size_t>((h * kNope + d) * spec.latent_dim + l)];
          }
          q[static_cast<size_t>((t * spec.heads + h) * width + l)] = x;
        }
      }
    }
    ASSERT_TRUE(testing::run_case(c.problem, KDTREE_BACKEND_ORACLE));
    // Expand the latent output: out_v = W_uv out.
    const auto latent_out = c.problem.out.as<double>();
    std::vector<double> out;
    for (int64_t row = 0; row < 13 * spec.heads; ++row) {
      const int64_t h = row % spec.heads;
      for (int64_t v = 0; v < kValue; ++v) {
        double x = 0.0;
        for (int64_t l = 0; l < spec.latent_dim; ++l) {
          x += e.w_uv[static_cast<size_t>((h * kValue + v) * spec.latent_dim + l)] *
               latent_out[static_cast<size_t>(row * spec.latent_dim + l)];
        }
        out.push_back(x);
      }
    }
    EXPECT_LE(testing::relative_frobenius(out, expanded_attention(c, e)), 1e-10) << "seed " << seed;
  }
}

// By hand: two keys with scores ln 1 and ln 3 weigh 1/4 and 3/4.
TEST(Oracle, TwoKeysByHand) {
  CaseSpec spec;
  spec.heads = 1;
  spec.latent_dim = 16;
  spec.rope_dim = 0;
  spec.q_dtype = spec.kv_dtype = spec.out_dtype = DType::f64;
  spec.scale = 1.0f;
  spec.requests = {{1, 1, TreeShape::chain}};
  auto made = make_verify_case(spec);
  ASSERT_TRUE(made);
  OwnedProblem& problem = made->problem;
  for (double& x : problem.kv.as<double>())
    x = 0.0;
  for (double& x : problem.q.as<double>())
    x = 0.0;
  problem.q.as<double>()[0] = 1.0;
  const int32_t draft = problem.draft_slots.as<int32_t>()[0];
  problem.kv.as<double>()[static_cast<size_t>(draft) * 16] = std::log(3.0);
  problem.kv.as<double>()[static_cast<size_t>(draft) * 16 + 5] = 8.0;
  ASSERT_TRUE(testing::run_case(problem, KDTREE_BACKEND_ORACLE));
  EXPECT_NEAR(problem.out.as<double>()[5], 6.0, 1e-15);
  EXPECT_NEAR(problem.lse.as<double>()[0], std::log(4.0), 1e-15);
}

TEST(Oracle, EmptyRowsAreZeroWithMinusInfinity) {
  CaseSpec spec = testing::case_table().front();
  spec.out_dtype = DType::f64;
  spec.requests = {{4, 5, TreeShape::random, 2}};
  auto made = make_verify_case(spec);
  ASSERT_TRUE(made);
  ASSERT_TRUE(testing::run_case(made->problem, KDTREE_BACKEND_ORACLE));
  const auto out = testing::outputs(made->problem);
  const auto lse = testing::lses(made->problem);
  const auto heads = static_cast<size_t>(spec.heads);
  const size_t first_padding = 3 * heads;
  for (size_t row = 0; row < 5 * heads; ++row) {
    EXPECT_EQ(std::isinf(lse[row]), row >= first_padding);
    EXPECT_EQ(out[row * static_cast<size_t>(spec.latent_dim)] == 0.0, row >= first_padding);
  }
}

}  // namespace
}  // namespace kdtree
