// Walks the line of work as the kernels' blocks and their merge do.
#include "attention/split_plan.h"

#include <map>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace kdtree {
namespace {

using Request = SplitPlan::Request;
using Piece = SplitPlan::Piece;

struct Batch {
  SplitPlan plan;
  std::vector<Request> requests;

  SplitPlan::Line line() const {
    SplitPlan::Line all{};
    for (const Request& r : requests)
      SplitPlan::add(all, plan.cut(r));
    return all;
  }
};

// (request, row tile), its pieces in the order of the line, and what the merge is told.
struct Item {
  std::vector<Piece> pieces;
  SplitPlan::Merge merge;
};
using Pieces = std::map<std::pair<size_t, int64_t>, Item>;

Pieces pieces_of_blocks(const Batch& batch) {
  Pieces pieces;
  const SplitPlan& plan = batch.plan;
  const int64_t stretch = plan.stretch(batch.line());
  for (int64_t block = 0; block < plan.blocks; ++block) {
    int64_t position = block * stretch;
    const int64_t stop = std::min(batch.line().length, position + stretch);
    while (position < stop) {
      int64_t begin = 0;
      size_t request = 0;
      while (position >= begin + plan.cut(batch.requests[request]).length())
        begin += plan.cut(batch.requests[request++]).length();
      const Request& r = batch.requests[request];
      const SplitPlan::Cut cut = plan.cut(r);
      const int64_t row_tile = (position - begin) / cut.units;
      const int64_t item = begin + row_tile * cut.units;
      const int64_t tiles = plan.key_tiles(r, row_tile);
      const int64_t end = plan.piece_end(position, item + cut.units, stop);
      EXPECT_LE(end, std::max(stop, position + 1));
      Item& it = pieces[{request, row_tile}];
      it.pieces.push_back(plan.piece(cut, tiles, item, position, end, block));
      if (position == item) it.merge = plan.merge(cut, tiles, item, block, stretch);
      position = end;
    }
  }
  return pieces;
}

Batch random_batch(uint64_t seed, int32_t plan) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  const int64_t heads[] = {1, 3, 8, 16, 64, 128};
  Batch batch{{heads[draw(0, 5)], draw(1, 200), plan}, {}};
  const int64_t count = draw(0, 40);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t prefix[] = {0, draw(0, 40), draw(0, 3000), draw(0, 70000)};
    batch.requests.push_back({prefix[draw(0, 3)], draw(0, 3) == 0 ? 0 : draw(1, 80)});
  }
  return batch;
}

class SplitPlans : public ::testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Plans, SplitPlans, ::testing::Values(KDTREE_PLAN_BALANCED, KDTREE_PLAN_INVARIANT),
                         [](const auto& test) {
                           return test.param == KDTREE_PLAN_BALANCED ? "balanced" : "invariant";
                         });

TEST_P(SplitPlans, EveryTileOfKeysIsReadOnceAndSlotsAreDistinct) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(seed);
    const Batch batch = random_batch(seed, GetParam());
    const Pieces pieces = pieces_of_blocks(batch);
    int64_t rows = 0;
    int64_t most_prefix = 0;
    int64_t items = 0;
    for (const Request& r : batch.requests) {
      rows += r.nodes;
      most_prefix = std::max(most_prefix, r.prefix);
      items += batch.plan.cut(r).row_tiles;
    }
    const auto count = static_cast<int64_t>(batch.requests.size());
    EXPECT_LE(items, SplitPlan::most_items(batch.plan.heads, count, rows));
    ASSERT_EQ(static_cast<int64_t>(pieces.size()), items);
    std::set<int64_t> slots;
    for (const auto& [item, it] : pieces) {
      int64_t next = 0;
      int64_t merged = 0;
      for (const Piece& piece : it.pieces) {
        if (piece.empty()) continue;
        if (it.merge.pieces > 1) {
          EXPECT_EQ(piece.slot, merged == 0 ? it.merge.first_slot
                                            : it.merge.next_slot + (merged - 1) * it.merge.slot_step);
        }
        ++merged;
        EXPECT_EQ(piece.first, next);
        next = piece.end;
        if (piece.whole) continue;
        EXPECT_TRUE(slots.insert(piece.slot).second);
        EXPECT_LT(piece.slot, batch.plan.most_slots(count, rows, most_prefix));
      }
      EXPECT_EQ(next, batch.plan.key_tiles(batch.requests[item.first], item.second));
      EXPECT_EQ(merged, it.merge.pieces);
    }
  }
}

TEST_P(SplitPlans, BlocksHaveEqualShares) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const Batch batch = random_batch(seed, GetParam());
    const int64_t stretch = batch.plan.stretch(batch.line());
    EXPECT_GE(stretch * batch.plan.blocks, batch.line().length);
    EXPECT_LE(stretch, std::max(batch.line().length / batch.plan.blocks + 1 + SplitPlan::kSplitCost,
                                SplitPlan::kLeastStretch));
  }
}

TEST(SplitPlan, InvariantCutsFollowFromThePrefixAlone) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Batch batch = random_batch(seed, KDTREE_PLAN_INVARIANT);
    if (batch.requests.empty() || batch.requests[0].nodes == 0) continue;
    const Batch alone{{batch.plan.heads, 7, KDTREE_PLAN_INVARIANT}, {{batch.requests[0].prefix, 1}}};
    const Pieces company = pieces_of_blocks(batch);
    const Pieces single = pieces_of_blocks(alone);
    const auto& in_company = company.at({0, 0}).pieces;
    const auto& by_itself = single.at({0, 0}).pieces;
    ASSERT_EQ(in_company.size(), by_itself.size());
    for (size_t i = 0; i < by_itself.size(); ++i)
      EXPECT_EQ(in_company[i].first, by_itself[i].first);
  }
}

TEST(SplitPlan, WholeItemsWhereTheyFit) {
  const Batch batch{{8, 132, KDTREE_PLAN_BALANCED}, std::vector<Request>(32, {8192, 64})};
  for (const auto& [item, it] : pieces_of_blocks(batch))
    EXPECT_EQ(it.merge.pieces, 1);  // 256 items, two a block
}

TEST(SplitPlan, RowsDoNotLoadWhatStandsBehindThem) {
  const SplitPlan plan{8, 132, KDTREE_PLAN_BALANCED};
  const Request r{1000, 64};  // eight nodes a row tile
  EXPECT_EQ(plan.cut(r).row_tiles, 8);
  EXPECT_EQ(plan.key_tiles(r, 0), 63);  // 1008 keys
  EXPECT_EQ(plan.key_tiles(r, 1), 64);  // 1016
  EXPECT_EQ(plan.key_tiles(r, 7), 67);  // 1064
}

}  // namespace
}  // namespace kdtree
