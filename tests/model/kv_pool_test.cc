#include "model/kv_pool.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "cases/random.h"

namespace kdtree {
namespace {

TEST(SlotAllocator, GivesEachSlotToOneHolderUntilAllHaveReleasedIt) {
  SlotAllocator allocator(8);
  const auto a = *allocator.allocate(5);
  EXPECT_EQ(std::set<int64_t>(a.begin(), a.end()).size(), 5u);
  allocator.share(std::span(a).first(3));
  const auto refused = allocator.allocate(4);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, KDTREE_OUT_OF_MEMORY);
  EXPECT_EQ(refused.error().message, "the KV pool has 3 free slots of 8, expected at least 4");
  allocator.release(a);
  EXPECT_EQ(allocator.free_slots(), 5) << "three are still held";
  const auto b = *allocator.allocate(5);
  for (const int64_t slot : b)
    EXPECT_EQ(std::count(a.begin(), a.begin() + 3, slot), 0) << slot;
  allocator.release(std::span(a).first(3));
  allocator.release(b);
  EXPECT_EQ(allocator.free_slots(), 8);
}

TEST(SlotAllocator, RandomHoldersNeverShareUnasked) {
  Random random(1);
  SlotAllocator allocator(64);
  std::vector<std::vector<int64_t>> held;
  for (int step = 0; step < 2000; ++step) {
    if (random.below(2) == 0 || held.empty()) {
      auto slots = allocator.allocate(random.below(10));
      if (slots) held.push_back(*std::move(slots));
    } else {
      const auto i = static_cast<size_t>(random.below(static_cast<int64_t>(held.size())));
      allocator.release(held[i]);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
    }
    std::set<int64_t> all;
    size_t count = 0;
    for (const auto& slots : held) {
      all.insert(slots.begin(), slots.end());
      count += slots.size();
    }
    ASSERT_EQ(all.size(), count);
    ASSERT_EQ(allocator.free_slots(), 64 - static_cast<int64_t>(count));
  }
}

TEST(KvPool, MovesRowsOfAllLayersAsIfAllWereReadFirst) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    auto pool = KvPool::create(2, 4, 16, dtype);
    ASSERT_TRUE(pool);
    for (int64_t layer = 0; layer < 2; ++layer) {
      for (int64_t slot = 0; slot < 4; ++slot)
        pool->write(layer, slot, std::vector<float>(16, static_cast<float>(10 * layer + slot)));
    }
    const int64_t from[] = {0, 1, 2};
    const int64_t to[] = {1, 2, 0};
    pool->move(from, to);
    for (int64_t layer = 0; layer < 2; ++layer) {
      const double expected[] = {2, 0, 1, 3};
      for (int64_t slot = 0; slot < 4; ++slot)
        EXPECT_EQ(load_element(pool->layer(layer), dtype, slot * 16 + 15),
                  10 * static_cast<double>(layer) + expected[slot]);
    }
  }
}

TEST(KvPool, RefusesWhatNoMemoryHolds) {
  for (const int64_t slots : {int64_t{1} << 62, int64_t{1} << 50}) {
    const auto pool = KvPool::create(61, slots, 576, DType::f32);
    ASSERT_FALSE(pool);
    EXPECT_EQ(pool.error().code, KDTREE_OUT_OF_MEMORY);
  }
}

}  // namespace
}  // namespace kdtree
