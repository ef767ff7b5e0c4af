// Finding places on the line of work (attention/split_plan.h).
#pragma once

#include "kernels/verify_attn_flash.cuh"

namespace kdtree::cuda {

// A request that has rows, and where it begins.
struct WorkPlace {
  int32_t request;
  int64_t begin;  // unit
  int64_t item;
};

__device__ inline int64_t sum_up_to_lane(int64_t x, int lane) {
  for (int step = 1; step < kWarp; step *= 2) {
    const int64_t below = __shfl_up_sync(~0u, x, step);
    if (lane >= step) x += below;
  }
  return x;
}

// Requests [32 * i, 32 * (i + 1)) of the batch, one a lane. A whole warp.
struct Requests {
  SplitPlan::Cut cut{};
  int64_t end;       // of the lane's request, from the first one's beginning on
  int64_t item_end;  // likewise

  __device__ void read(const VerifyAttnArgs& args, const SplitPlan& plan, int32_t first) {
    const int lane = threadIdx.x % kWarp;
    cut = {};
    if (first + lane < args.batch) {
      const RequestRows rows = request_rows(args, first + lane);
      cut = plan.cut({rows.prefix, rows.nodes});
    }
    end = sum_up_to_lane(cut.length(), lane);
    item_end = sum_up_to_lane(cut.row_tiles, lane);
  }
};

// A block's stretch of the line, piece by piece. In shared memory. A piece that has not the beginning of its
// item comes last: so blocks that are at row tiles of one request begin at the same keys, and read them from
// the L2 cache together.
struct Stretch {
  int64_t position;
  int64_t stop;
  int64_t length;
  WorkPlace place;
  // What comes last: units [last_position, last_stop) from last_place on.
  int64_t last_position;
  int64_t last_stop;
  WorkPlace last_place;

  // A whole warp.
  __device__ void begin(const VerifyAttnArgs& args, const Partials& partials, const SplitPlan& plan) {
    const int lane = threadIdx.x % kWarp;
    Requests requests;
    SplitPlan::Line line{};
    for (int32_t first = 0; first < args.batch; first += kWarp) {
      requests.read(args, plan, first);
      line.length += __shfl_sync(~0u, requests.end, kWarp - 1);
      line.items += __shfl_sync(~0u, requests.item_end, kWarp - 1);
      if (requests.cut.row_tiles > 0) line.most_units = SplitPlan::most(line.most_units, requests.cut.units);
    }
    for (int lanes = kWarp / 2; lanes > 0; lanes /= 2)
      line.most_units = SplitPlan::most(line.most_units, __shfl_xor_sync(~0u, line.most_units, lanes));
    const int64_t each = plan.stretch(line);
    const int64_t from = each * blockIdx.x;
    WorkPlace at{};
    int64_t units = 1;
    for (int32_t first = 0; from < line.length; first += kWarp) {
      if (args.batch > kWarp) requests.read(args, plan, first);
      const unsigned beyond = __ballot_sync(~0u, at.begin + requests.end > from);
      const int in = beyond != 0 ? __ffs(static_cast<int>(beyond)) - 1 : kWarp - 1;
      const bool found = beyond != 0;
      at.begin += __shfl_sync(~0u, requests.end - (found ? requests.cut.length() : 0), in);
      at.item += __shfl_sync(~0u, requests.item_end - (found ? requests.cut.row_tiles : 0), in);
      at.request = first + in;
      units = __shfl_sync(~0u, requests.cut.units, in);
      if (found) break;
    }
    if (lane != 0) return;
    length = each;
    position = last_position = from;
    stop = SplitPlan::least(line.length, from + each);
    last_stop = from;
    place = last_place = at;
    if (from < stop) {
      const int64_t item = at.begin + SplitPlan::quotient(from - at.begin, units) * units;
      if (item < from && item + units < stop) position = last_stop = item + units;
    }
    if (!plan.invariant()) partials.rows[blockIdx.x] = 0;
    if (plan.invariant() && blockIdx.x == 0) *partials.count = static_cast<int32_t>(line.items);
  }

  // One thread. The next piece that has keys, whose first tile's number will be `number`; none: work.first is
  // work.end.
  __device__ void next(const VerifyAttnArgs& args, const Partials& partials, const SplitPlan& plan,
                       uint32_t number, Work& work) {
    work.first = work.end = 0;
    work.first_number = number;
    while (work.first >= work.end) {
      if (position >= stop) {
        if (last_position >= last_stop) return;
        position = last_position;
        stop = last_stop;
        place = last_place;
        last_position = last_stop;
      }
      RequestRows rows;
      SplitPlan::Request request;
      SplitPlan::Cut cut;
      for (;;) {
        rows = request_rows(args, place.request);
        request = {rows.prefix, rows.nodes};
        cut = plan.cut(request);
        if (position < place.begin + cut.length()) break;
        place.begin += cut.length();
        place.item += cut.row_tiles;
        ++place.request;
      }
      const int64_t row_tile = SplitPlan::quotient(position - place.begin, cut.units);
      const int64_t item = place.begin + row_tile * cut.units;
      const int64_t end = plan.piece_end(position, item + cut.units, stop);
      const int64_t tiles = plan.key_tiles(request, row_tile);
      const SplitPlan::Piece piece = plan.piece(cut, tiles, item, position, end, blockIdx.x);
      work = {rows,
              piece.slot,
              static_cast<int>(row_tile),
              static_cast<int>(piece.first),
              static_cast<int>(piece.end),
              piece.whole,
              number};
      if (position == item) {
        const SplitPlan::Merge merge = plan.merge(cut, tiles, item, blockIdx.x, length);
        const int64_t at = plan.invariant() ? place.item + row_tile : blockIdx.x;
        const int64_t left = rows.nodes * args.heads - row_tile * kRows;
        const bool split = merge.pieces > 1;  // of a stretch's items only the last one can be
        if (split || plan.invariant())
          partials.rows[at] = split ? static_cast<int32_t>(SplitPlan::least(left, kRows)) : 0;
        if (split)
          partials.items[at] = {rows.first_row,   row_tile,        merge.pieces,
                                merge.first_slot, merge.next_slot, merge.slot_step};
      }
      position = end;
    }
  }
};

}  // namespace kdtree::cuda
