#include "core/scratch.h"

#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace kdtree {
namespace {

TEST(Scratch, MeasuringAndUsingAgree) {
  Scratch measure;
  (void)measure.take<int32_t>(3);
  (void)measure.take<double>(9);
  ASSERT_TRUE(measure.measured());
  EXPECT_EQ(*measure.measured(), 64u + 128u);

  alignas(64) std::byte memory[192];
  Scratch scratch(memory, sizeof(memory));
  const auto ints = scratch.take<int32_t>(3);
  const auto doubles = scratch.take<double>(9);
  ASSERT_TRUE(scratch.check());
  EXPECT_EQ(ints.size(), 3u);
  EXPECT_EQ(reinterpret_cast<std::byte*>(doubles.data()), memory + 64);
  EXPECT_EQ(doubles.size(), 9u);
}

TEST(Scratch, TooSmallNullMisalignedAndOverflowingAreErrors) {
  alignas(64) std::byte memory[128];
  Scratch small(memory, 127);
  (void)small.take<double>(16);
  EXPECT_EQ(small.check().error().code, KDTREE_WORKSPACE_TOO_SMALL);
  EXPECT_EQ(small.check().error().message, "workspace has 127 bytes, expected at least 128");

  Scratch null(nullptr, 4096);
  (void)null.take<double>(1);
  EXPECT_EQ(null.check().error().code, KDTREE_WORKSPACE_TOO_SMALL);

  Scratch crooked(memory + 8, 120);
  (void)crooked.take<double>(1);
  EXPECT_EQ(crooked.check().error().code, KDTREE_INVALID_ARGUMENT);

  Scratch huge;
  (void)huge.take<double>(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(huge.measured().error().code, KDTREE_INVALID_ARGUMENT);
  Scratch sum;
  (void)sum.take<std::byte>(std::numeric_limits<int64_t>::max() - 100);
  (void)sum.take<std::byte>(200);
  EXPECT_FALSE(sum.measured());
}

TEST(Scratch, NothingNeededNeedsNoWorkspace) {
  Scratch scratch(nullptr, 0);
  EXPECT_TRUE(scratch.take<double>(0).empty());
  EXPECT_TRUE(scratch.check());
}

TEST(Scratch, InsideAlignsUnalignedMemory) {
  std::vector<std::byte> memory(256);
  Scratch scratch = Scratch::inside(std::span(memory).subspan(1));
  EXPECT_EQ(scratch.take<double>(8).size(), 8u);
  EXPECT_TRUE(scratch.check());
}

TEST(Checked, ArithmeticNeverWraps) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_FALSE(checked_mul(kMost, 2));
  EXPECT_FALSE(checked_add(kMost, 1));
  EXPECT_EQ(*checked_mul(1 << 20, 3), 3 << 20);
  EXPECT_EQ(saturating_mul(kMost, 3), kMost);
  EXPECT_EQ(saturating_add(kMost, 3), kMost);
  EXPECT_EQ(saturating_add(2, 3), 5);
  EXPECT_EQ(*checked_extent_bytes(3, 10, 4, 2), (2 * 10 + 4) * 2);
  EXPECT_EQ(*checked_extent_bytes(0, 10, 4, 2), 0);
  EXPECT_FALSE(checked_extent_bytes(kMost, 10, 4, 2));
  EXPECT_EQ(ceil_div(64, 64), 1);
  EXPECT_EQ(ceil_div(65, 64), 2);
}

}  // namespace
}  // namespace kdtree
