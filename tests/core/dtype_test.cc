#include "core/dtype.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace kdtree {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// An independent bf16 rounding: integer arithmetic on the fp32 pattern.
uint16_t bf16_by_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

TEST(DType, Bf16RoundsToNearestEven) {
  uint32_t state = 1;
  for (int i = 0; i < 200000; ++i) {
    state = state * 1664525u + 1013904223u;
    const float value = std::bit_cast<float>(state);
    if (std::isnan(value)) continue;
    ASSERT_EQ(float_to_bf16(value), bf16_by_bits(value)) << value;
  }
  EXPECT_EQ(float_to_bf16(kInf), 0x7f80);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);  // rounds up to infinity
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::nanf("")))));
}

TEST(DType, F16RoundTripsEveryPatternAndRoundsBetweenThem) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = f16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(float_to_f16(value), bits);
  }
  EXPECT_EQ(f16_to_float(0x3c00), 1.0f);
  EXPECT_EQ(f16_to_float(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(float_to_f16(65504.0f), 0x7bff);
  EXPECT_EQ(float_to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_f16(1.0f + std::ldexp(1.0f, -11)), 0x3c00);  // a tie, to even
  EXPECT_EQ(float_to_f16(1.0f + 3 * std::ldexp(1.0f, -11)), 0x3c02);
  EXPECT_EQ(float_to_f16(std::ldexp(1.0f, -25)), 0x0000);
  EXPECT_EQ(float_to_f16(-kInf), 0xfc00);
}

TEST(DType, E4m3FollowsTheOcpTable) {
  // OCP 8-bit Floating Point Specification, table of E4M3 values.
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0f);
  EXPECT_EQ(e4m3_to_float(0x08), std::ldexp(1.0f, -6));
  EXPECT_EQ(e4m3_to_float(0x07), 0.875f * std::ldexp(1.0f, -6));
  EXPECT_EQ(e4m3_to_float(0x01), std::ldexp(1.0f, -9));
  EXPECT_EQ(e4m3_to_float(0xb8), -1.0f);
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7f)));
  EXPECT_TRUE(std::isnan(e4m3_to_float(0xff)));
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const float value = e4m3_to_float(static_cast<uint8_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(float_to_e4m3(value), bits);
  }
  EXPECT_EQ(float_to_e4m3(1000.0f), 0x7e);
  EXPECT_EQ(float_to_e4m3(-kInf), 0xfe);
  EXPECT_EQ(float_to_e4m3(1.0625f), 0x38);  // a tie between 1 and 1.125, to even
  EXPECT_EQ(float_to_e4m3(1.1875f), 0x3a);
  EXPECT_TRUE(std::isnan(e4m3_to_float(float_to_e4m3(std::nanf("")))));
}

TEST(DType, ElementsLoadAndStore) {
  uint16_t half = 0;
  store_element(&half, DType::bf16, 0, 1.5);
  EXPECT_EQ(load_element(&half, DType::bf16, 0), 1.5);
  store_element(&half, DType::f16, 0, -0.25);
  EXPECT_EQ(load_element(&half, DType::f16, 0), -0.25);
  double wide[2] = {};
  store_element(wide, DType::f64, 1, 1.0 / 3.0);
  EXPECT_EQ(load_element(wide, DType::f64, 1), 1.0 / 3.0);
  uint8_t byte = 0;
  store_element(&byte, DType::e4m3, 0, 0.5);
  EXPECT_EQ(load_element(&byte, DType::e4m3, 0), 0.5);
  EXPECT_EQ(dtype_size(DType::bf16), 2);
  EXPECT_EQ(dtype_size(static_cast<DType>(99)), 0);
  EXPECT_STREQ(dtype_name(static_cast<DType>(99)), "invalid");
}

TEST(DType, IndexArraysReadBothWidths) {
  const int32_t narrow[] = {-1, 7};
  const int64_t wide[] = {int64_t{1} << 40, -2};
  EXPECT_EQ(IndexArray(narrow, DType::i32)[1], 7);
  EXPECT_EQ(IndexArray(narrow, DType::i32)[0], -1);
  EXPECT_EQ(IndexArray(wide, DType::i64)[0], int64_t{1} << 40);
}

}  // namespace
}  // namespace kdtree
