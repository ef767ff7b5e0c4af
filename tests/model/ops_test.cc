#include "model/ops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include <tbb/task_arena.h>

#include "cases/random.h"
#include "core/parallel.h"
#include "core/tensor.h"

namespace kdtree {
namespace {

std::vector<float> random_floats(Random& random, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values)
    v = static_cast<float>(random.normal());
  return values;
}

Tensor random_weight(Random& random, DType dtype, int64_t rows, int64_t columns) {
  Tensor weight(dtype, {rows, columns});
  for (int64_t i = 0; i < weight.size(); ++i)
    weight.set(i, random.normal());
  return weight;
}

Matrix view(const Tensor& weight) {
  return {weight.pointer(), weight.dtype, weight.shape[0], weight.shape[1], weight.shape[1]};
}

// As rows by input, [inputs, outputs], in memory of whole panels; or packed.
class Weight {
 public:
  Weight(const Tensor& tensor, bool turned, Products products) {
    if (!turned || products == Products::bf16) {
      packed_ = Packed(turned ? view(tensor).turned() : view(tensor), products);
      return;
    }
    const int64_t stride = (tensor.shape[1] + kPanel - 1) / kPanel * kPanel;
    padded_ = Tensor(tensor.dtype, {tensor.shape[0], stride});
    for (int64_t i = 0; i < padded_.size(); ++i) {
      const int64_t column = i % stride;
      padded_.set(i, column < tensor.shape[1] ? tensor.value(i / stride * tensor.shape[1] + column)
                                              : std::numeric_limits<double>::quiet_NaN());
    }
    Matrix matrix = view(padded_);
    matrix.columns = tensor.shape[1];
    turned_ = Panels::of(matrix);
  }
  const Panels& panels() const { return packed_.empty() ? turned_ : packed_.panels(); }

 private:
  Packed packed_;
  Tensor padded_;
  Panels turned_;
};

class Ops : public testing::TestWithParam<size_t> {
 protected:
  const OpsTarget& target() const { return ops_targets()[GetParam()]; }
  void SetUp() override {
    if (!target().supported) GTEST_SKIP() << target().name << " is not among this processor's";
  }
  std::vector<float> run(const std::vector<float>& x, int64_t rows, const Tensor& weight, bool turned = false,
                         Products products = Products::f32) const {
    const int64_t inputs = weight.shape[turned ? 0 : 1];
    const int64_t outputs = weight.shape[turned ? 1 : 0];
    std::vector<float> y(static_cast<size_t>(rows * outputs), std::numeric_limits<float>::quiet_NaN());
    const Weight as(weight, turned, products);
    const LinearTask task[] = {{x.data(), inputs, rows, as.panels(), y.data(), outputs}};
    linear(task, target());
    return y;
  }
};

TEST_P(Ops, LinearIsTheProductInEveryTypeAndShape) {
  Random random(1);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const int64_t rows : {1, 2, 3, 4, 5, 7, 9, 15}) {
      for (const int64_t n : {1, 12, 16, 25, 48, 100}) {
        for (const int64_t k : {1, 7, 16, 33, 1024, 1100}) {
          const bool turned = random.below(2) == 0;
          const Tensor weight = random_weight(random, dtype, turned ? k : n, turned ? n : k);
          const auto x = random_floats(random, rows * k);
          const auto y = run(x, rows, weight, turned);
          for (int64_t i = 0; i < rows * n; ++i) {
            double sum = 0.0;
            double size = 0.0;
            for (int64_t c = 0; c < k; ++c) {
              const double product = double{x[static_cast<size_t>(i / n * k + c)]} *
                                     weight.value(turned ? c * n + i % n : i % n * k + c);
              sum += product;
              size += std::fabs(product);
            }
            ASSERT_NEAR(y[static_cast<size_t>(i)], sum, 1e-6 * size + 1e-30)
                << dtype_name(dtype) << " " << rows << "x" << n << "x" << k;
          }
        }
      }
    }
  }
}

// Products of bf16 are exact in fp32; adding n of them rounds n times at most.
TEST_P(Ops, Bf16ProductsAreThoseOfTheRoundedInputs) {
  Random random(6);
  for (const int64_t rows : {1, 2, 3, 4, 5, 7, 9, 15}) {
    for (const int64_t n : {1, 16, 25, 100, 112}) {
      for (const int64_t k : {1, 2, 7, 16, 33, 1024}) {
        const bool turned = random.below(2) == 0;
        const Tensor weight = random_weight(random, DType::bf16, turned ? k : n, turned ? n : k);
        const auto x = random_floats(random, rows * k);
        const auto y = run(x, rows, weight, turned, Products::bf16);
        for (int64_t i = 0; i < rows * n; ++i) {
          double sum = 0.0;
          double size = 0.0;
          for (int64_t c = 0; c < k; ++c) {
            const float rounded = bf16_to_float(float_to_bf16(x[static_cast<size_t>(i / n * k + c)]));
            const double product = double{rounded} * weight.value(turned ? c * n + i % n : i % n * k + c);
            sum += product;
            size += std::fabs(product);
          }
          const double unit = std::ldexp(static_cast<double>(k + 1), -24);
          ASSERT_NEAR(y[static_cast<size_t>(i)], sum, unit / (1.0 - unit) * size)
              << rows << "x" << n << "x" << k;
        }
      }
    }
  }
}

TEST_P(Ops, Bf16ProductsKeepWhatIsNoFiniteNumber) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Tensor weight(DType::bf16, {2, 3});
  for (const int64_t i : {0, 1, 2, 3, 5})
    weight.set(i, 1.0);
  weight.set(4, -kInfinity);
  // Rounding takes the largest floats to infinity, and a NaN stays one whose upper bits are all 0.
  const std::vector<float> x = {1.0f, 0.0f, kInfinity,  //
                                1.0f, 2.0f, std::numeric_limits<float>::max(),
                                1.0f, 2.0f, std::bit_cast<float>(0x7f800001u)};
  const auto y = run(x, 3, weight, false, Products::bf16);
  EXPECT_EQ(y[0], kInfinity);
  EXPECT_TRUE(std::isnan(y[1])) << "0 times infinity";
  EXPECT_EQ(y[2], kInfinity);
  EXPECT_TRUE(std::isnan(y[3])) << "infinity less infinity";
  EXPECT_TRUE(std::isnan(y[4]));
  EXPECT_TRUE(std::isnan(y[5]));
}

TEST_P(Ops, RoundsToBf16AsScalarsDo) {
  Random random(7);
  for (const int64_t n : {1, 15, 16, 100, 333}) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x)
      v = std::bit_cast<float>(static_cast<uint32_t>(random.below(int64_t{1} << 32)));
    std::vector<uint16_t> out(x.size(), 7);
    target().round_to_bf16(x.data(), n, out.data());
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i])) {
        ASSERT_TRUE(std::isnan(bf16_to_float(out[i])));
      } else {
        ASSERT_EQ(out[i], float_to_bf16(x[i])) << x[i];
      }
    }
  }
}

TEST_P(Ops, ARowsBitsDoNotDependOnTheRowsBesideIt) {
  Random random(2);
  constexpr int64_t kRows = 17;
  const struct {
    DType dtype;
    Products products;
  } kinds[] = {{DType::f32, Products::f32},
               {DType::bf16, Products::f32},
               {DType::bf16, Products::bf16},
               {DType::f16, Products::f32}};
  for (const auto& [dtype, products] : kinds) {
    for (const int64_t inputs : {5, 64, 1111, 2500, -5, -64, -300}) {
      const bool turned = inputs < 0;
      const int64_t k = std::abs(inputs);
      const Tensor weight = random_weight(random, dtype, turned ? k : 150, turned ? 150 : k);
      auto x = random_floats(random, kRows * k);
      const auto alone = [&](int64_t row) {
        return run({x.begin() + row * k, x.begin() + (row + 1) * k}, 1, weight, turned, products);
      };
      for (int64_t rows = 1; rows <= kRows; ++rows) {
        const auto y = run(x, rows, weight, turned, products);
        for (int64_t r = 0; r < rows; ++r) {
          const auto single = alone(r);
          ASSERT_EQ(std::memcmp(single.data(), y.data() + r * 150, 150 * sizeof(float)), 0)
              << rows << " rows, row " << r << ", k " << k;
        }
      }
      // What is no number in another row stays there.
      std::fill_n(x.begin(), k, std::numeric_limits<float>::quiet_NaN());
      const auto y = run(x, 3, weight, turned, products);
      const auto single = alone(2);
      ASSERT_EQ(std::memcmp(single.data(), y.data() + 2 * 150, 150 * sizeof(float)), 0);
    }
  }
}

TEST_P(Ops, ThreadsAndTasksDoNotChangeBits) {
  Random random(3);
  const Tensor a = random_weight(random, DType::bf16, 700, 900);
  const Tensor b = random_weight(random, DType::f32, 33, 900);
  const auto x = random_floats(random, 5 * 900);
  std::vector<float> ya(5 * 700), yb(5 * 33), yc(5 * 700), yd(4 * 700);
  const Packed packed_a(view(a)), packed_b(view(b)), packed_c(view(a), Products::bf16);
  // The last two share their rows but for one.
  const LinearTask tasks[] = {{x.data(), 900, 5, packed_a.panels(), ya.data(), 700},
                              {x.data(), 900, 5, packed_b.panels(), yb.data(), 33},
                              {x.data(), 900, 5, packed_c.panels(), yc.data(), 700},
                              {x.data(), 900, 4, packed_c.panels(), yd.data(), 700}};
  tbb::task_arena many(4);
  many.execute([&] { linear(tasks, target()); });
  const auto plain_a = ya;
  const auto plain_b = yb;
  const auto plain_c = yc;
  std::fill(ya.begin(), ya.end(), 0.0f);
  std::fill(yb.begin(), yb.end(), 0.0f);
  std::fill(yc.begin(), yc.end(), 0.0f);
  many.execute([&] { with_team([&] { linear(tasks, target()); }); });
  EXPECT_EQ(ya, plain_a);
  EXPECT_EQ(yb, plain_b);
  EXPECT_EQ(yc, plain_c);
  yc.resize(yd.size());
  EXPECT_EQ(yd, yc);
  tbb::task_arena one(1);
  one.execute([&] {
    EXPECT_EQ(run(x, 5, a), ya);
    EXPECT_EQ(run(x, 5, b), yb);
    EXPECT_EQ(run(x, 5, a, false, Products::bf16), plain_c);
  });
}

TEST_P(Ops, StridesSelectPartsOfRows) {
  Random random(4);
  const Tensor weight = random_weight(random, DType::bf16, 30, 40);
  const auto x = random_floats(random, 3 * 100);
  std::vector<float> y(3 * 50, 7.0f);
  const Packed part(view(weight).slice(5, 20));
  const LinearTask task[] = {{x.data() + 10, 100, 3, part.panels(), y.data() + 4, 50}};
  linear(task, target());
  for (int64_t r = 0; r < 3; ++r) {
    const auto whole = run({x.begin() + r * 100 + 10, x.begin() + r * 100 + 50}, 1, weight);
    for (int64_t i = 0; i < 50; ++i) {
      const float expected = i >= 4 && i < 24 ? whole[static_cast<size_t>(i - 4 + 5)] : 7.0f;
      ASSERT_EQ(y[static_cast<size_t>(r * 50 + i)], expected);
    }
  }
}

TEST_P(Ops, RowFunctionsFollowTheirFormulas) {
  Random random(5);
  for (const int64_t n : {1, 3, 8, 17, 64, 300}) {
    const auto x = random_floats(random, n);
    const auto w = random_floats(random, n);
    std::vector<float> out(static_cast<size_t>(n));
    double squares = 0.0;
    for (const float v : x)
      squares += double{v} * v;
    target().rms_norm(x.data(), w.data(), 1e-3f, n, out.data());
    for (size_t i = 0; i < out.size(); ++i)
      EXPECT_NEAR(out[i], w[i] * x[i] / std::sqrt(squares / static_cast<double>(n) + 1e-3), 2e-6);
    target().swiglu(x.data(), w.data(), n, out.data());
    for (size_t i = 0; i < out.size(); ++i)
      EXPECT_NEAR(out[i], double{x[i]} / (1.0 + std::exp(-double{x[i]})) * w[i], 2e-6);
    out = x;
    target().softmax(out.data(), n);
    double total = 0.0;
    for (const float v : x)
      total += std::exp(double{v});
    for (size_t i = 0; i < out.size(); ++i)
      EXPECT_NEAR(out[i], std::exp(double{x[i]}) / total, 1e-6);
  }
}

TEST_P(Ops, SwigluOfLargeInputsIsItsLimit) {
  const std::vector<float> gate = {-1e30f, -1e5f, -1000.0f, -178.0f, -104.0f,
                                   -88.0f, 88.0f, 178.0f,   1e5f,    0.0f};
  const std::vector<float> up(gate.size(), 2.0f);
  std::vector<float> out(gate.size());
  target().swiglu(gate.data(), up.data(), static_cast<int64_t>(gate.size()), out.data());
  for (size_t i = 0; i < gate.size(); ++i) {
    const double expected = gate[i] < -700.0f ? 0.0 : 2.0 * gate[i] / (1.0 + std::exp(-double{gate[i]}));
    EXPECT_NEAR(out[i], expected, 1e-6 * std::fabs(expected) + 1e-7) << gate[i];
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  target().swiglu(&nan, up.data(), 1, out.data());
  EXPECT_TRUE(std::isnan(out[0]));
}

INSTANTIATE_TEST_SUITE_P(Targets, Ops, testing::Range<size_t>(0, ops_targets().size()),
                         [](const auto& param) {
                           std::string name = ops_targets()[param.param].name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace kdtree
