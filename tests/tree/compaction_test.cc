// Commit against a copy of the whole pool: what each position holds afterwards.
#include "tree/compaction.h"

#include <cstring>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "cases/random.h"

namespace kdtree {
namespace {

TEST(Compaction, AcceptedRowsReachTheirPositionsWithAnyPageSize) {
  Random random(51);
  for (int round = 0; round < 3000; ++round) {
    const auto page_size = static_cast<int32_t>(1 + random.below(5));
    const int64_t start = random.below(20);
    const int64_t nodes = 1 + random.below(16);
    // A random page a page_size positions; the draft nodes sit at positions start, start + 1, ...
    std::vector<int32_t> pages(static_cast<size_t>((start + nodes) / page_size + 1));
    std::iota(pages.begin(), pages.end(), 0);
    random.shuffle(std::span(pages));
    const auto slot_of = [&](int64_t position) {
      return int64_t{pages[static_cast<size_t>(position / page_size)]} * page_size + position % page_size;
    };
    std::vector<int32_t> draft_slots;
    for (int64_t i = 0; i < nodes; ++i)
      draft_slots.push_back(static_cast<int32_t>(slot_of(start + i)));
    std::vector<int32_t> path = {0};
    for (int32_t i = 1; i < nodes; ++i) {
      if (random.below(3) == 0) path.push_back(i);
    }
    const int64_t slots = static_cast<int64_t>(pages.size()) * page_size;
    constexpr int64_t kRow = 6;
    constexpr int64_t kStride = 8;
    std::vector<std::byte> pool(static_cast<size_t>(slots * kStride));
    for (auto& byte : pool)
      byte = static_cast<std::byte>(random.below(256));
    const std::vector<std::byte> before = pool;

    CommitView commit;
    commit.path = path;
    commit.draft_slots = {draft_slots.data(), DType::i32};
    commit.nodes = nodes;
    if (round % 2 == 0) {  // the other rounds find the same destinations at the head of the draft window
      commit.page_table = pages;
      commit.page_size = page_size;
      commit.start = start;
    }
    std::vector<int64_t> src(path.size());
    std::vector<int64_t> dst(path.size());
    std::vector<int64_t> destinations(path.size());
    const auto moves = plan_commit(commit, src, dst, destinations);
    ASSERT_TRUE(moves) << moves.error().message;
    src.resize(static_cast<size_t>(*moves));
    dst.resize(static_cast<size_t>(*moves));
    std::vector<std::byte> staging(src.size() * kRow);
    move_rows(pool.data(), kRow, kStride, src, dst, staging);

    for (size_t j = 0; j < path.size(); ++j) {
      const int64_t from = draft_slots[static_cast<size_t>(path[j])];
      const int64_t to = slot_of(start + static_cast<int64_t>(j));
      ASSERT_EQ(std::memcmp(&pool[static_cast<size_t>(to * kStride)],
                            &before[static_cast<size_t>(from * kStride)], kRow),
                0);
      if (from == to) continue;
      ASSERT_NE(std::find(dst.begin(), dst.end(), to), dst.end());
    }
    // Nothing else changed: the prefix, and the bytes between rows.
    for (int64_t position = 0; position < start; ++position) {
      const auto at = static_cast<size_t>(slot_of(position) * kStride);
      ASSERT_EQ(std::memcmp(&pool[at], &before[at], kStride), 0);
    }
    for (int64_t slot = 0; slot < slots; ++slot) {
      const auto at = static_cast<size_t>(slot * kStride + kRow);
      ASSERT_EQ(std::memcmp(&pool[at], &before[at], kStride - kRow), 0);
    }
  }
}

TEST(Compaction, OverlappingMovesReadBeforeTheyWrite) {
  // A cycle and a shift: no order of single copies does it.
  std::vector<std::byte> pool(4);
  for (size_t i = 0; i < 4; ++i)
    pool[i] = static_cast<std::byte>(i);
  const std::vector<int64_t> src = {1, 2, 0};
  const std::vector<int64_t> dst = {0, 1, 2};
  std::vector<std::byte> staging(3);
  move_rows(pool.data(), 1, 1, src, dst, staging);
  EXPECT_EQ(pool, (std::vector<std::byte>{std::byte{1}, std::byte{2}, std::byte{0}, std::byte{3}}));
}

TEST(Compaction, MovesOntoThemselvesAreLeftOut) {
  const std::vector<int64_t> slots = {5, 6, 7, 8};
  const std::vector<int32_t> path = {0, 1, 3};
  CommitView commit;
  commit.path = path;
  commit.draft_slots = {slots.data(), DType::i64};
  commit.nodes = 4;
  std::vector<int64_t> src(1);
  std::vector<int64_t> dst(1);
  std::vector<int64_t> destinations(3);
  EXPECT_EQ(*plan_commit(commit, src, dst, destinations), 1);
  EXPECT_EQ(destinations, (std::vector<int64_t>{5, 6, 7}));
  EXPECT_EQ(src[0], 8);
  EXPECT_EQ(dst[0], 7);
}

TEST(Compaction, ThePageTableStartsAtPositionZero) {
  const std::vector<int64_t> slots = {5};
  const std::vector<int32_t> path = {0};
  const std::vector<int32_t> pages = {9, 4};
  CommitView commit;
  commit.path = path;
  commit.draft_slots = {slots.data(), DType::i64};
  commit.nodes = 1;
  commit.page_table = pages;
  std::vector<int64_t> src(1);
  std::vector<int64_t> dst(1);
  std::vector<int64_t> destinations(1);
  EXPECT_EQ(*plan_commit(commit, src, dst, destinations), 1);
  EXPECT_EQ(dst[0], 9);
}

std::string plan_error(const std::vector<int32_t>& path, const std::vector<int32_t>& slots,
                       const std::vector<int32_t>& pages = {}, size_t capacity = 8) {
  CommitView commit;
  commit.path = path;
  commit.draft_slots = {slots.data(), DType::i32};
  commit.nodes = static_cast<int64_t>(slots.size());
  commit.page_table = pages;
  commit.page_size = 2;
  commit.start = 1;
  std::vector<int64_t> src(capacity);
  std::vector<int64_t> dst(capacity);
  std::vector<int64_t> destinations(path.size());
  const auto moves = plan_commit(commit, src, dst, destinations);
  return moves ? "planned" : moves.error().message;
}

TEST(Compaction, ErrorsNameTheEntry) {
  EXPECT_EQ(plan_error({0, 2}, {4, 5, 6}), "planned");
  EXPECT_EQ(plan_error({1, 2}, {4, 5, 6}), "accept_path[0] is 1, expected 0 (the root)");
  EXPECT_EQ(plan_error({0, 2, 1}, {4, 5, 6}), "accept_path[2] is 1, expected 3 .. 2");
  EXPECT_EQ(plan_error({0, 3}, {4, 5, 6}), "accept_path[1] is 3, expected 1 .. 2");
  EXPECT_EQ(plan_error({0, -1}, {4, 5, 6}), "accept_path[1] is -1, expected 1 .. 2");
  EXPECT_EQ(plan_error({0, 2}, {4, 5, -6}), "draft_slots[2] is -6, expected a slot >= 0");
  EXPECT_EQ(plan_error({0, 2}, {4, -5, 6}), "draft_slots[1] is -5, expected a slot >= 0");
  EXPECT_EQ(plan_error({0, 1}, {1, 2, 3}, {3}), "page_table has 1 pages, expected page 1 for position 2");
  EXPECT_EQ(plan_error({0, 1}, {1, 2, 3}, {3, -1}),
            "page_table[1] is -1, expected a page number for position 2");
  EXPECT_EQ(plan_error({0, 2}, {4, 5, 6}, {}, 0), "capacity is 0 moves, expected more");
}

TEST(Compaction, SharedDestinationsAreFound) {
  std::vector<int64_t> good = {3, 1, 2};
  EXPECT_TRUE(check_distinct(good));
  std::vector<int64_t> bad = {3, 1, 3};
  EXPECT_EQ(check_distinct(bad).error().message,
            "two rows have destination slot 3, expected distinct destinations");
}

}  // namespace
}  // namespace kdtree
