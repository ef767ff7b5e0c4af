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

__device__ inline SplitPlan::Request lengths_of(const RequestRows& rows) {
  return {rows.prefix, rows.nodes};
}

__device__ inline SplitPlan::Request lengths_of(const VerifyAttnArgs& args, int32_t request) {
  return request < args.batch ? lengths_of(request_rows(args, request)) : SplitPlan::Request{0, 0};
}

__device__ inline int64_t sum_up_to_lane(int64_t x, int lane) {
  for (int step = 1; step < kWarp; step *= 2) {
    const int64_t below = __shfl_up_sync(~0u, x, step);
    if (lane >= step) x += below;
  }
  return x;
}

// A warp reads the lengths of 32 requests at a time; all of its lanes must be there.
__device__ inline SplitPlan::Line work_line(const VerifyAttnArgs& args, const SplitPlan& plan) {
  const int lane = threadIdx.x % kWarp;
  SplitPlan::Line line{};
  for (int32_t first = 0; first < args.batch; first += kWarp)
    plan.add(line, lengths_of(args, first + lane));
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    line.length += __shfl_xor_sync(~0u, line.length, lanes);
    line.items += __shfl_xor_sync(~0u, line.items, lanes);
    line.most_units = SplitPlan::most(line.most_units, __shfl_xor_sync(~0u, line.most_units, lanes));
  }
  return line;
}

// The request that holds unit `target` of the line; it must be there.
__device__ inline WorkPlace find_work(const VerifyAttnArgs& args, const SplitPlan& plan, int64_t target) {
  const int lane = threadIdx.x % kWarp;
  WorkPlace place{0, 0, 0};
  for (int32_t first = 0;; first += kWarp) {
    const SplitPlan::Request request = lengths_of(args, first + lane);
    const int64_t length = plan.length(request);
    const int64_t items = plan.row_tiles(request);
    const int64_t end = place.begin + sum_up_to_lane(length, lane);
    const int64_t item_end = place.item + sum_up_to_lane(items, lane);
    const unsigned beyond = __ballot_sync(~0u, end > target);
    const int from = beyond != 0 ? __ffs(static_cast<int>(beyond)) - 1 : kWarp - 1;
    place.begin = __shfl_sync(~0u, end - (beyond != 0 ? length : 0), from);
    place.item = __shfl_sync(~0u, item_end - (beyond != 0 ? items : 0), from);
    place.request = first + from;
    if (beyond != 0) return place;
  }
}

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
    const SplitPlan::Line line = work_line(args, plan);
    const int64_t each = plan.stretch(line);
    const int64_t from = each * blockIdx.x;
    WorkPlace at{};
    if (from < line.length) at = find_work(args, plan, from);
    if (threadIdx.x % kWarp != 0) return;
    length = each;
    position = last_position = from;
    stop = SplitPlan::least(line.length, from + each);
    last_stop = from;
    place = last_place = at;
    if (from < stop) {
      const int64_t units = plan.units(lengths_of(args, at.request));
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
    while (work.first >= work.end) {
      if (position >= stop) {
        if (last_position >= last_stop) return;
        position = last_position;
        stop = last_stop;
        place = last_place;
        last_position = last_stop;
      }
      RequestRows rows = request_rows(args, place.request);
      SplitPlan::Request request = lengths_of(rows);
      while (position >= place.begin + plan.length(request)) {
        place.begin += plan.length(request);
        place.item += plan.row_tiles(request);
        rows = request_rows(args, ++place.request);
        request = lengths_of(rows);
      }
      const int64_t units = plan.units(request);
      const int64_t row_tile = SplitPlan::quotient(position - place.begin, units);
      const int64_t item = place.begin + row_tile * units;
      const int64_t end = plan.piece_end(position, item + units, stop);
      const SplitPlan::Piece piece = plan.piece(request, row_tile, item, position, end, blockIdx.x);
      work = {rows,
              piece.slot,
              static_cast<int>(row_tile),
              static_cast<int>(piece.first),
              static_cast<int>(piece.end),
              piece.whole,
              number};
      if (position == item) {
        const SplitPlan::Merge merge = plan.merge(request, row_tile, item, blockIdx.x, length);
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
