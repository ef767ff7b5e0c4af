// Commit: moving the accepted path's KV rows into place (the "defrag").
#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "core/scratch.h"
#include "core/status.h"

namespace kdtree {

// Where the accepted rows of one request are and go.
struct CommitView {
  std::span<const int32_t> path;  // accepted local nodes, root first, increasing
  IndexArray draft_slots;         // [N] slot of node i
  int64_t nodes = 0;              // N
  // Destination slots of positions start, start + 1, ... With no page table: the request's own draft slots.
  std::span<const int32_t> page_table;
  int32_t page_size = 1;
  int64_t start = 0;
};

// Writes the moves that are not onto themselves, and returns their number; `destinations` (one a path entry)
// receives every row's slot, those that stay included. Errors: KDTREE_INVALID_ARGUMENT,
// KDTREE_BUFFER_TOO_SMALL.
Result<int64_t> plan_commit(const CommitView& commit, std::span<int64_t> src, std::span<int64_t> dst,
                            std::span<int64_t> destinations);

// Sorts `destinations`. KDTREE_INVALID_ARGUMENT if two are the same slot.
Status check_distinct(std::span<int64_t> destinations);

// Copies rows src[i] to dst[i] of one pool as if all were read first. Slots must be in range.
// `staging` holds src.size() * row_bytes.
void move_rows(std::byte* pool, int64_t row_bytes, int64_t row_stride_bytes, std::span<const int64_t> src,
               std::span<const int64_t> dst, std::span<std::byte> staging);

}  // namespace kdtree
