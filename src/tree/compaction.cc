#include "tree/compaction.h"

#include <algorithm>
#include <cstring>

namespace kdtree {
namespace {

Result<int64_t> destination_slot(const CommitView& commit, int64_t index) {
  if (commit.page_table.empty()) return commit.draft_slots[index];
  const int64_t position = commit.start + index;
  const int64_t page = position / commit.page_size;
  if (page >= static_cast<int64_t>(commit.page_table.size())) {
    return fail(KDTREE_INVALID_ARGUMENT, "page_table has {} pages, expected page {} for position {}",
                commit.page_table.size(), page, position);
  }
  const int64_t number = commit.page_table[static_cast<size_t>(page)];
  if (number < 0) {
    return fail(KDTREE_INVALID_ARGUMENT, "page_table[{}] is {}, expected a page number for position {}", page,
                number, position);
  }
  return number * commit.page_size + position % commit.page_size;
}

}  // namespace

Result<int64_t> plan_commit(const CommitView& commit, std::span<int64_t> src, std::span<int64_t> dst,
                            std::span<int64_t> destinations) {
  int64_t moves = 0;
  for (size_t j = 0; j < commit.path.size(); ++j) {
    const int32_t node = commit.path[j];
    const int32_t least = j == 0 ? 0 : commit.path[j - 1] + 1;
    if (node < least || node >= commit.nodes || (j == 0 && node != 0)) {
      return fail(KDTREE_INVALID_ARGUMENT, "accept_path[{}] is {}, expected {}", j, node,
                  j == 0 ? "0 (the root)" : fmt::format("{} .. {}", least, commit.nodes - 1));
    }
    const int64_t from = commit.draft_slots[node];
    const auto to = destination_slot(commit, static_cast<int64_t>(j));
    if (!to) return tl::unexpected<Error>(to.error());
    if (from < 0 || *to < 0) {
      return fail(KDTREE_INVALID_ARGUMENT, "draft_slots[{}] is {}, expected a slot >= 0",
                  from < 0 ? int64_t{node} : static_cast<int64_t>(j), std::min(from, *to));
    }
    destinations[j] = *to;
    if (from == *to) continue;
    if (moves >= static_cast<int64_t>(std::min(src.size(), dst.size()))) {
      return fail(KDTREE_BUFFER_TOO_SMALL, "capacity is {} moves, expected more",
                  std::min(src.size(), dst.size()));
    }
    src[static_cast<size_t>(moves)] = from;
    dst[static_cast<size_t>(moves)] = *to;
    ++moves;
  }
  return moves;
}

Status check_distinct(std::span<int64_t> destinations) {
  std::sort(destinations.begin(), destinations.end());
  const auto twin = std::adjacent_find(destinations.begin(), destinations.end());
  if (twin == destinations.end()) return {};
  return fail(KDTREE_INVALID_ARGUMENT, "two rows have destination slot {}, expected distinct destinations",
              *twin);
}

void move_rows(std::byte* pool, int64_t row_bytes, int64_t row_stride_bytes, std::span<const int64_t> src,
               std::span<const int64_t> dst, std::span<std::byte> staging) {
  const auto bytes = static_cast<size_t>(row_bytes);
  for (size_t i = 0; i < src.size(); ++i) {
    std::memcpy(&staging[i * bytes], pool + src[i] * row_stride_bytes, bytes);
  }
  for (size_t i = 0; i < dst.size(); ++i) {
    std::memcpy(pool + dst[i] * row_stride_bytes, &staging[i * bytes], bytes);
  }
}

}  // namespace kdtree
