// Commit (KV compaction) through the C ABI.
#include "tree/compaction.h"

#include <algorithm>
#include <limits>

#include "capi/guard.h"
#include "core/indptr.h"

using namespace kdtree;
using capi::expect_at_least;
using capi::expect_pointer;

namespace {

Status check_plan(const kdtree_compaction_plan_params& p) {
  KDTREE_RETURN_IF_ERROR(expect_at_least("batch", p.batch, 0));
  KDTREE_RETURN_IF_ERROR(expect_at_least("capacity", p.capacity, 0));
  KDTREE_RETURN_IF_ERROR(expect_at_least("path_stride", p.path_stride, 0));
  if (p.batch > 0) KDTREE_RETURN_IF_ERROR(expect_pointer("accept_count", p.accept_count));
  for (int32_t r = 0; r < p.batch; ++r) {
    if (p.accept_count[r] >= 0 && p.accept_count[r] <= p.path_stride) continue;
    return fail(KDTREE_INVALID_ARGUMENT, "request {}: accept_count is {}, expected 0 .. {} (path_stride)", r,
                p.accept_count[r], p.path_stride);
  }
  if (p.slot_dtype != KDTREE_DTYPE_I32 && p.slot_dtype != KDTREE_DTYPE_I64) {
    return fail(KDTREE_INVALID_ARGUMENT, "slot_dtype is {} ({}), expected i32 ({}) or i64 ({})", p.slot_dtype,
                dtype_name(static_cast<DType>(p.slot_dtype)), KDTREE_DTYPE_I32, KDTREE_DTYPE_I64);
  }
  return {};
}

Status check_plan_arrays(const kdtree_compaction_plan_params& p) {
  KDTREE_RETURN_IF_ERROR(expect_pointer("move_indptr", p.move_indptr));
  if (p.batch == 0) return {};
  KDTREE_RETURN_IF_ERROR(expect_pointer("qo_indptr", p.qo_indptr));
  KDTREE_RETURN_IF_ERROR(expect_pointer("accept_path", p.accept_path));
  KDTREE_RETURN_IF_ERROR(expect_pointer("draft_slots", p.draft_slots));
  if (p.capacity > 0) {
    KDTREE_RETURN_IF_ERROR(expect_pointer("src", p.src));
    KDTREE_RETURN_IF_ERROR(expect_pointer("dst", p.dst));
  }
  if (p.page_table != nullptr) {
    KDTREE_RETURN_IF_ERROR(expect_pointer("start_positions", p.start_positions));
    KDTREE_RETURN_IF_ERROR(expect_at_least("page_size", p.page_size, 1));
    KDTREE_RETURN_IF_ERROR(expect_at_least("page_table_stride", p.page_table_stride, 1));
  }
  return check_indptr("qo_indptr", {p.qo_indptr, DType::i32}, p.batch, std::numeric_limits<int32_t>::max());
}

std::span<int64_t> take_destinations(const kdtree_compaction_plan_params& p, Scratch& scratch) {
  int64_t rows = 0;
  for (int32_t r = 0; r < p.batch; ++r)
    rows += p.accept_count[r];
  return scratch.take<int64_t>(rows);
}

Result<CommitView> commit_of(const kdtree_compaction_plan_params& p, int32_t request) {
  const int32_t count = p.accept_count[request];
  const int64_t first_row = p.qo_indptr[request];
  const auto slot_bytes = dtype_size(static_cast<DType>(p.slot_dtype));
  CommitView commit;
  commit.path = {p.accept_path + request * p.path_stride, static_cast<size_t>(count)};
  commit.draft_slots = {static_cast<const std::byte*>(p.draft_slots) + first_row * slot_bytes,
                        static_cast<DType>(p.slot_dtype)};
  commit.nodes = p.qo_indptr[request + 1] - first_row;
  if (p.page_table == nullptr) return commit;
  commit.page_table = {p.page_table + request * p.page_table_stride,
                       static_cast<size_t>(p.page_table_stride)};
  commit.page_size = p.page_size;
  commit.start = p.start_positions[request];
  if (commit.start < 0 || commit.start > std::numeric_limits<int64_t>::max() - count) {
    return fail(KDTREE_INVALID_ARGUMENT, "start_positions is {}, expected a position >= 0", commit.start);
  }
  return commit;
}

Status check_compact(const kdtree_kv_compact_params& p) {
  KDTREE_RETURN_IF_ERROR(expect_at_least("moves", p.moves, 0));
  KDTREE_RETURN_IF_ERROR(expect_at_least("slots", p.slots, 0));
  KDTREE_RETURN_IF_ERROR(expect_at_least("num_layers", p.num_layers, 0));
  KDTREE_RETURN_IF_ERROR(expect_at_least("row_bytes", p.row_bytes, 1));
  if (p.row_stride_bytes != 0) {
    KDTREE_RETURN_IF_ERROR(expect_at_least("row_stride_bytes", p.row_stride_bytes, p.row_bytes));
  }
  const int64_t stride = p.row_stride_bytes != 0 ? p.row_stride_bytes : p.row_bytes;
  if (!checked_extent_bytes(p.slots, stride, p.row_bytes, 1)) {
    return fail(KDTREE_INVALID_ARGUMENT,
                "slots is {} with rows of {} bytes, expected a pool below 2^63 bytes", p.slots, stride);
  }
  return {};
}

// Everything is checked before the first byte moves.
Status compact(const kdtree_kv_compact_params& p, Scratch& scratch) {
  const auto staging = scratch.take<std::byte>(saturating_mul(p.moves, p.row_bytes));
  const auto moves = static_cast<size_t>(p.moves);
  const auto destinations = scratch.take<int64_t>(p.moves);
  KDTREE_RETURN_IF_ERROR(scratch.check());
  std::copy_n(p.dst, moves, destinations.begin());
  KDTREE_RETURN_IF_ERROR(check_distinct(destinations));
  KDTREE_RETURN_IF_ERROR(expect_pointer("layers", p.layers));
  for (int32_t layer = 0; layer < p.num_layers; ++layer) {
    if (p.layers[layer] != nullptr) continue;
    return fail(KDTREE_INVALID_ARGUMENT, "layers[{}] is null, expected a pool", layer);
  }
  const int64_t stride = p.row_stride_bytes != 0 ? p.row_stride_bytes : p.row_bytes;
  for (int32_t layer = 0; layer < p.num_layers; ++layer) {
    move_rows(static_cast<std::byte*>(p.layers[layer]), p.row_bytes, stride, {p.src, moves}, {p.dst, moves},
              staging);
  }
  return {};
}

}  // namespace

extern "C" {

int32_t kdtree_compaction_plan_workspace_size(const kdtree_compaction_plan_params* params,
                                              size_t* bytes) noexcept {
  return capi::call(params, [&](const kdtree_compaction_plan_params& p) -> Status {
    KDTREE_RETURN_IF_ERROR(check_plan(p));
    Scratch scratch;
    take_destinations(p, scratch);
    return capi::answer_size(scratch.measured(), bytes);
  });
}

int32_t kdtree_compaction_plan(const kdtree_compaction_plan_params* params, void* workspace, size_t bytes,
                               void* /*stream*/) noexcept {
  return capi::call(params, [&](const kdtree_compaction_plan_params& p) -> Status {
    KDTREE_RETURN_IF_ERROR(check_plan(p));
    KDTREE_RETURN_IF_ERROR(check_plan_arrays(p));
    const auto capacity = static_cast<size_t>(p.capacity);
    const std::span<int64_t> src(p.src, capacity);
    const std::span<int64_t> dst(p.dst, capacity);
    Scratch scratch(workspace, bytes);
    const auto destinations = take_destinations(p, scratch);
    KDTREE_RETURN_IF_ERROR(scratch.check());
    size_t moves = 0;
    size_t rows = 0;
    p.move_indptr[0] = 0;
    for (int32_t r = 0; r < p.batch; ++r) {
      auto planned = commit_of(p, r).and_then([&](const CommitView& commit) {
        return plan_commit(commit, src.subspan(moves), dst.subspan(moves), destinations.subspan(rows));
      });
      if (!planned) return with_context(std::move(planned).error(), fmt::format("request {}: ", r));
      moves += static_cast<size_t>(*planned);
      rows += static_cast<size_t>(p.accept_count[r]);
      p.move_indptr[r + 1] = static_cast<int32_t>(moves);
    }
    return check_distinct(destinations);
  });
}

int32_t kdtree_kv_compact_workspace_size(const kdtree_kv_compact_params* params, size_t* bytes) noexcept {
  return capi::call(params, [&](const kdtree_kv_compact_params& p) -> Status {
    KDTREE_RETURN_IF_ERROR(check_compact(p));
    Scratch scratch;
    (void)scratch.take<std::byte>(saturating_mul(p.moves, p.row_bytes));
    (void)scratch.take<int64_t>(p.moves);
    return capi::answer_size(scratch.measured(), bytes);
  });
}

int32_t kdtree_kv_compact(const kdtree_kv_compact_params* params, void* workspace, size_t bytes,
                          void* /*stream*/) noexcept {
  return capi::call(params, [&](const kdtree_kv_compact_params& p) -> Status {
    KDTREE_RETURN_IF_ERROR(check_compact(p));
    if (p.moves == 0 || p.num_layers == 0) return {};
    KDTREE_RETURN_IF_ERROR(expect_pointer("src", p.src));
    KDTREE_RETURN_IF_ERROR(check_slots("src", {p.src, DType::i64}, p.moves, p.slots));
    KDTREE_RETURN_IF_ERROR(expect_pointer("dst", p.dst));
    KDTREE_RETURN_IF_ERROR(check_slots("dst", {p.dst, DType::i64}, p.moves, p.slots));
    Scratch scratch(workspace, bytes);
    return compact(p, scratch);
  });
}

}  // extern "C"
