// How the split-KV kernels cut a batch into pieces of work. Every thread block works its pieces out from the
// lengths in device memory: nothing is planned on the host, so a captured graph replays with other lengths.
//
// All work lies on one line: request after request, in it row tile after row tile (an item), in it unit after
// unit. Blocks take equal stretches of the line.
//   balanced   a unit is a tile of keys; an item begins with kItemCost units that stand for its fixed cost. A
//              block's stretch of an item is one piece.
//   invariant  a unit is a segment of keys whose bounds follow from the prefix length alone, and a piece.
// A piece that has not all keys of its item writes a partial result into its slot; they are merged in order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kdtree/kdtree.h"

#ifdef __CUDACC__
#define KDTREE_HOST_DEVICE __host__ __device__
#else
#define KDTREE_HOST_DEVICE
#endif

namespace kdtree {

struct SplitPlan {
  static constexpr int64_t kRowTile = 64;  // rows (node * heads + head) of an item
  static constexpr int64_t kKeyTile = 16;
  static constexpr int64_t kItemCost = 8;      // in tiles of keys: queries in, output out
  static constexpr int64_t kLeastStretch = 4;  // units: below it merging costs more than it saves
  static constexpr int64_t kSplitCost = 34;    // in tiles of keys: a block's further pieces, and the merge
  // Keys of an invariant segment, at least: a short prefix is cut finer, a long one coarser, as partial
  // results cost.
  static constexpr int64_t kLongPrefix = 8192;
  static constexpr int64_t kShortSegment = 128;
  static constexpr int64_t kLongSegment = 512;
  static constexpr int64_t kMostSegments = 32;

  struct Request {
    int64_t prefix;
    int64_t nodes;
  };
  // Tiles of keys, and where the partial result goes.
  struct Piece {
    int64_t first;
    int64_t end;
    int64_t slot;
    bool whole;  // all keys of the item: no partial result

    KDTREE_HOST_DEVICE bool empty() const { return first >= end; }
  };

  int64_t heads;
  int64_t blocks;
  int32_t plan;  // KDTREE_PLAN_*

  KDTREE_HOST_DEVICE bool invariant() const { return plan == KDTREE_PLAN_INVARIANT; }
  // a / b of numbers that are not negative; a GPU divides 32 bits several times faster.
  KDTREE_HOST_DEVICE static int64_t quotient(int64_t a, int64_t b) {
    return ((a | b) >> 32) == 0 ? static_cast<int64_t>(static_cast<uint32_t>(a) / static_cast<uint32_t>(b))
                                : a / b;
  }
  KDTREE_HOST_DEVICE static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
  KDTREE_HOST_DEVICE static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
  KDTREE_HOST_DEVICE static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

  // How a request is cut. Worked out once: on a GPU it is a good part of what comes before the first key.
  struct Cut {
    int64_t row_tiles;  // its items
    int64_t units;      // of each item
    int64_t segment;    // invariant: tiles of keys of a unit; the last one has the draft's too
    KDTREE_HOST_DEVICE int64_t length() const { return row_tiles * units; }
  };
  KDTREE_HOST_DEVICE Cut cut(const Request& r) const {
    const int64_t items = ceil_div(r.nodes * heads, kRowTile);
    if (!invariant()) return {items, ceil_div(r.prefix + r.nodes, kKeyTile) + kItemCost, 0};
    const int64_t segment =
        r.prefix < kLongPrefix
            ? most(kShortSegment / kKeyTile, ceil_div(r.prefix, kMostSegments / 2 * kKeyTile))
            : most(kLongSegment / kKeyTile, ceil_div(r.prefix, kMostSegments * kKeyTile));
    const int64_t keys = segment * kKeyTile;
    return {items, most(1, quotient(r.prefix + keys - 1, keys)), segment};
  }

  // Tiles of keys that the rows of a tile may see: those behind its last node are left out.
  KDTREE_HOST_DEVICE int64_t key_tiles(const Request& r, int64_t row_tile) const {
    const int64_t last_row = least((row_tile + 1) * kRowTile, r.nodes * heads) - 1;
    return ceil_div(r.prefix + quotient(last_row, heads) + 1, kKeyTile);
  }

  // All of a batch.
  struct Line {
    int64_t length;  // units
    int64_t items;
    int64_t most_units;  // of an item
  };
  KDTREE_HOST_DEVICE static void add(Line& line, const Cut& c) {
    line.length += c.length();
    line.items += c.row_tiles;
    if (c.row_tiles > 0) line.most_units = most(line.most_units, c.units);
  }

  // The length of a block's stretch: equal shares, or a little more where whole items fit into it.
  KDTREE_HOST_DEVICE int64_t stretch(const Line& line) const {
    const int64_t share = quotient(line.length + blocks - 1, blocks);
    if (invariant()) return most(1, share);
    const int64_t whole = quotient(line.items + blocks - 1, blocks) * line.most_units;
    return whole >= share && whole <= share + kSplitCost ? most(1, whole) : most(kLeastStretch, share);
  }

  // Units [begin, end) of the line, all of the item that begins at `item`, has `tiles` tiles of keys, and of
  // the stretch of block `block`.
  KDTREE_HOST_DEVICE Piece piece(const Cut& c, int64_t tiles, int64_t item, int64_t begin, int64_t end,
                                 int64_t block) const {
    Piece p{};
    if (invariant()) {
      p.first = (begin - item) * c.segment;
      p.end = end - item == c.units ? tiles : least(tiles, (end - item) * c.segment);
      p.slot = begin;
    } else {
      p.first = most(0, begin - item - kItemCost);
      p.end = least(tiles, most(0, end - item - kItemCost));
      // A block's first piece may be the end of an item, its last one the beginning of another.
      p.slot = 2 * block + (begin == item ? 1 : 0);
    }
    p.whole = p.first == 0 && p.end == tiles;
    return p;
  }

  // The pieces that an item's keys are in; more than one: their partial results are merged.
  struct Merge {
    int64_t pieces;
    // Of the first piece, of the second one, and on from there.
    int64_t first_slot;
    int64_t next_slot;
    int64_t slot_step;
  };
  // Of an item that begins in the stretch of block `block`.
  KDTREE_HOST_DEVICE Merge merge(const Cut& c, int64_t tiles, int64_t item, int64_t block,
                                 int64_t stretch) const {
    if (invariant()) return {c.units, item, item + 1, 1};
    const int64_t keys = item + kItemCost;
    const int64_t last = keys + tiles - 1;
    const int64_t end = (block + 1) * stretch;
    const int64_t first_block = keys < end ? block : quotient(keys, stretch);
    const int64_t last_block = last < end ? block : quotient(last, stretch);
    return {last_block - first_block + 1, 2 * first_block + (first_block == block ? 1 : 0),
            2 * (first_block + 1), 2};
  }

  // Where the piece that begins at `position` of an item ends: with the item or the block's stretch, or its
  // unit.
  KDTREE_HOST_DEVICE int64_t piece_end(int64_t position, int64_t item_end, int64_t stretch_end) const {
    return invariant() ? position + 1 : least(item_end, stretch_end);
  }

  // Items and slots that a batch has at most.
  static int64_t most_items(int64_t heads, int64_t batch, int64_t max_rows) {
    return ceil_div(max_rows * heads, kRowTile) + batch;
  }
  int64_t most_merges(int64_t batch, int64_t max_rows) const {
    return invariant() ? most_items(heads, batch, max_rows) : blocks;
  }
  int64_t most_slots(int64_t batch, int64_t max_rows, int64_t max_prefix) const {
    if (!invariant()) return 2 * blocks;
    const int64_t segments = std::clamp<int64_t>(ceil_div(max_prefix, kShortSegment), 1, kMostSegments);
    return segments * most_items(heads, batch, max_rows);
  }
};

}  // namespace kdtree
