#include "attention/validate.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "core/indptr.h"

namespace kdtree {
namespace {

constexpr int64_t kMostRequests = std::numeric_limits<int32_t>::max() - 1;  // indptr arrays hold one more

Status check_range(const char* field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return {};
  return fail(KDTREE_INVALID_ARGUMENT, "{} is {}, expected {} .. {}", field, value, least, most);
}

Status check_dtype(const char* field, int32_t value, std::initializer_list<DType> allowed) {
  if (std::find(allowed.begin(), allowed.end(), static_cast<DType>(value)) != allowed.end()) return {};
  std::string names;
  for (const DType type : allowed) {
    names +=
        fmt::format("{}{} ({})", names.empty() ? "" : ", ", dtype_name(type), static_cast<int32_t>(type));
  }
  return fail(KDTREE_INVALID_ARGUMENT, "{} is {} ({}), expected one of {}", field, value,
              dtype_name(static_cast<DType>(value)), names);
}

Status check_pointer(const char* field, const void* pointer, const char* when = "") {
  if (pointer != nullptr) return {};
  return fail(KDTREE_INVALID_ARGUMENT, "{} is null, expected an array{}", field, when);
}

Status check_sizes(const VerifyProblem& p) {
  KDTREE_RETURN_IF_ERROR(check_range("batch", p.batch, 0, kMostRequests));
  KDTREE_RETURN_IF_ERROR(check_range("heads", p.heads, 1, 1024));
  KDTREE_RETURN_IF_ERROR(check_range("latent_dim", p.latent_dim, 16, 4096));
  KDTREE_RETURN_IF_ERROR(check_range("rope_dim", p.rope_dim, 0, 4096));
  if (p.latent_dim % 16 != 0 || p.rope_dim % 16 != 0) {
    return fail(KDTREE_INVALID_ARGUMENT, "latent_dim is {} and rope_dim {}, expected multiples of 16",
                p.latent_dim, p.rope_dim);
  }
  KDTREE_RETURN_IF_ERROR(check_range("plan", p.plan, KDTREE_PLAN_BALANCED, KDTREE_PLAN_INVARIANT));
  if (!(p.scale > 0.0f) || !std::isfinite(p.scale)) {
    return fail(KDTREE_INVALID_ARGUMENT, "scale is {}, expected a finite number above 0", p.scale);
  }
  if (!(p.logit_cap >= 0.0f) || !std::isfinite(p.logit_cap)) {
    return fail(KDTREE_INVALID_ARGUMENT, "logit_cap is {}, expected 0 (none) or a finite number above 0",
                p.logit_cap);
  }
  if (!(p.kv_scale >= 0.0f) || !std::isfinite(p.kv_scale)) {
    return fail(KDTREE_INVALID_ARGUMENT, "kv_scale is {}, expected 0 (= 1) or a finite number above 0",
                p.kv_scale);
  }
  if (p.kv_scale != 0.0f && p.kv_scale != 1.0f && p.kv_dtype != KDTREE_DTYPE_E4M3) {
    return fail(KDTREE_INVALID_ARGUMENT, "kv_scale is {} with kv_dtype {}, expected 0 or 1 unless it is e4m3",
                p.kv_scale, dtype_name(static_cast<DType>(p.kv_dtype)));
  }
  return {};
}

Status check_dtypes(const VerifyProblem& p) {
  const std::initializer_list<DType> floats = {DType::f32, DType::f16, DType::bf16, DType::f64};
  const std::initializer_list<DType> stored = {DType::f32, DType::f16, DType::bf16, DType::f64, DType::e4m3};
  const std::initializer_list<DType> indices = {DType::i32, DType::i64};
  KDTREE_RETURN_IF_ERROR(check_dtype("q_dtype", p.q_dtype, floats));
  KDTREE_RETURN_IF_ERROR(check_dtype("out_dtype", p.out_dtype, floats));
  KDTREE_RETURN_IF_ERROR(check_dtype("kv_dtype", p.kv_dtype, stored));
  if (p.lse_dtype != 0) {
    KDTREE_RETURN_IF_ERROR(check_dtype("lse_dtype", p.lse_dtype, {DType::f32, DType::f64}));
  }
  KDTREE_RETURN_IF_ERROR(check_dtype("indptr_dtype", p.indptr_dtype, indices));
  return check_dtype("kv_indices_dtype", p.kv_indices_dtype, indices);
}

// A row is `width` elements long.
Status check_stride(const char* field, int64_t stride, int64_t width) {
  if (stride >= width) return {};
  return fail(KDTREE_INVALID_ARGUMENT, "{} is {}, expected 0 (contiguous) or at least {}", field, stride,
              width);
}

Status check_strides(const VerifyProblem& p) {
  const int64_t width = row_width(p);
  KDTREE_RETURN_IF_ERROR(check_stride("kv_row_stride", kv_row_stride(p), width));
  KDTREE_RETURN_IF_ERROR(check_stride("draft_row_stride", draft_row_stride(p), width));
  KDTREE_RETURN_IF_ERROR(check_stride("q_head_stride", q_head_stride(p), width));
  KDTREE_RETURN_IF_ERROR(check_stride("q_token_stride", q_token_stride(p), width));
  KDTREE_RETURN_IF_ERROR(check_stride("out_head_stride", out_head_stride(p), p.latent_dim));
  KDTREE_RETURN_IF_ERROR(check_stride("out_token_stride", out_token_stride(p), p.latent_dim));
  KDTREE_RETURN_IF_ERROR(check_stride("lse_head_stride", lse_head_stride(p), 1));
  KDTREE_RETURN_IF_ERROR(check_stride("lse_token_stride", lse_token_stride(p), 1));
  if (p.bits_stride < 0) {
    return fail(KDTREE_INVALID_ARGUMENT, "bits_stride is {}, expected >= 0", p.bits_stride);
  }
  KDTREE_RETURN_IF_ERROR(check_range("kv_slots", p.kv_slots, 0, std::numeric_limits<int64_t>::max()));
  // One row more than there are: the stride itself is multiplied even for a pool of one.
  if (!checked_extent_bytes(saturating_add(p.kv_slots, 1), kv_row_stride(p), width,
                            dtype_size(static_cast<DType>(p.kv_dtype)))) {
    return fail(KDTREE_INVALID_ARGUMENT,
                "kv_slots is {} with rows of {} elements, expected a pool below 2^63 bytes", p.kv_slots,
                kv_row_stride(p));
  }
  return {};
}

Status check_tree_fields(const VerifyProblem& p) {
  KDTREE_RETURN_IF_ERROR(
      check_range("tree_encoding", p.tree_encoding, KDTREE_TREE_CHAIN, KDTREE_TREE_BOOL_MASK));
  switch (p.tree_encoding) {
    case KDTREE_TREE_PARENTS:
      return check_pointer("parents", p.parents, " with KDTREE_TREE_PARENTS");
    case KDTREE_TREE_ANCESTOR_BITS:
      return check_pointer("ancestor_bits", p.ancestor_bits, " with KDTREE_TREE_ANCESTOR_BITS");
    case KDTREE_TREE_BOOL_MASK:
      KDTREE_RETURN_IF_ERROR(check_pointer("mask", p.mask, " with KDTREE_TREE_BOOL_MASK"));
      KDTREE_RETURN_IF_ERROR(check_pointer("mask_indptr", p.mask_indptr, " with KDTREE_TREE_BOOL_MASK"));
      KDTREE_RETURN_IF_ERROR(check_range("mask_skip_prefix", p.mask_skip_prefix, 0, 1));
      if (p.mask_row_stride < 0 || p.mask_column_offset < -1 ||
          (p.mask_row_stride == 0 && p.mask_column_offset > 0)) {
        return fail(
            KDTREE_INVALID_ARGUMENT,
            "mask_row_stride is {} and mask_column_offset {}, expected a stride > 0 with a column >= -1, "
            "or 0 and 0 for rows of prefix + N columns",
            p.mask_row_stride, p.mask_column_offset);
      }
      return {};
    default:
      return {};
  }
}

// The layout has room for this request's rows. How many bytes `mask` has is the caller's to know.
Status check_mask_layout(const VerifyProblem& p, int32_t request) {
  const RequestView view = request_view(p, request);
  const int64_t begin = p.mask_indptr[request];
  const int64_t stride =
      p.mask_row_stride != 0 ? p.mask_row_stride : saturating_add(view.prefix_length, view.nodes);
  const auto extent = checked_extent_bytes(view.nodes, stride, stride, 1);
  if (begin < 0 || !extent || !checked_add(begin, *extent)) {
    return fail(KDTREE_INVALID_ARGUMENT,
                "mask_indptr[{}] is {}, expected >= 0 with room for {} rows of {} bytes", request, begin,
                view.nodes, stride);
  }
  if (p.mask_row_stride == 0) return {};
  const int64_t first = p.mask_column_offset == -1 ? view.prefix_length : p.mask_column_offset;
  if (first > p.mask_row_stride - view.nodes) {
    return fail(KDTREE_INVALID_ARGUMENT,
                "mask_row_stride is {}, expected at least {} (column {} and {} nodes)", p.mask_row_stride,
                saturating_add(first, view.nodes), first, view.nodes);
  }
  if (p.mask_skip_prefix == 0 && first < view.prefix_length) {
    return fail(
        KDTREE_INVALID_ARGUMENT,
        "mask_column_offset is {}, expected at least the prefix length {} unless mask_skip_prefix is 1",
        first, view.prefix_length);
  }
  return {};
}

// `rows` rows of `columns` elements, `stride` apart, lie below 2^63 bytes.
Status check_extent(const char* field, int64_t rows, int64_t stride, int64_t columns, int64_t element) {
  if (checked_extent_bytes(rows, stride, columns, element)) return {};
  return fail(KDTREE_INVALID_ARGUMENT, "{} is {} over {} rows, expected an array below 2^63 bytes", field,
              stride, rows);
}

// A [T, H, width] array: addressable, and (outputs) with no element twice.
Status check_token_array(const char* field, int64_t rows, int32_t heads, int64_t token_stride,
                         int64_t head_stride, int64_t width, DType type, bool written) {
  const int64_t token_width = saturating_add(saturating_mul(heads - 1, head_stride), width);
  KDTREE_RETURN_IF_ERROR(check_extent(field, rows, token_stride, token_width, dtype_size(type)));
  const bool tokens_apart = token_stride >= token_width;
  const bool heads_apart = head_stride >= saturating_add(saturating_mul(rows - 1, token_stride), width);
  if (!written || rows <= 1 || heads == 1 || tokens_apart || heads_apart) return {};
  return fail(KDTREE_INVALID_ARGUMENT,
              "{} is {} with a head stride of {}, expected at least {}: rows overlap", field, token_stride,
              head_stride, token_width);
}

Status check_extents(const VerifyProblem& p, int64_t rows) {
  const int64_t width = row_width(p);
  KDTREE_RETURN_IF_ERROR(check_token_array("q_token_stride", rows, p.heads, q_token_stride(p),
                                           q_head_stride(p), width, static_cast<DType>(p.q_dtype), false));
  KDTREE_RETURN_IF_ERROR(check_token_array("out_token_stride", rows, p.heads, out_token_stride(p),
                                           out_head_stride(p), p.latent_dim, static_cast<DType>(p.out_dtype),
                                           true));
  if (p.lse != nullptr) {
    KDTREE_RETURN_IF_ERROR(check_token_array("lse_token_stride", rows, p.heads, lse_token_stride(p),
                                             lse_head_stride(p), 1, lse_dtype(p), true));
  }
  return check_extent("draft_row_stride", saturating_add(rows, 1), draft_row_stride(p), width,
                      dtype_size(static_cast<DType>(p.kv_dtype)));
}

// The parts of validate_contents that trees need.
Status check_batch_and_tree(const VerifyProblem& p) {
  constexpr int64_t kMostNodes = std::numeric_limits<int32_t>::max();
  KDTREE_RETURN_IF_ERROR(check_indptr("qo_indptr", qo_indptr(p), p.batch, kMostNodes));
  KDTREE_RETURN_IF_ERROR(
      check_indptr("kv_indptr", kv_indptr(p), p.batch, std::numeric_limits<int64_t>::max() / 2));
  if (p.tree_encoding == KDTREE_TREE_ANCESTOR_BITS && bits_stride(p) < ceil_div(max_nodes(p), 64)) {
    return fail(KDTREE_INVALID_ARGUMENT, "bits_stride is {}, expected at least {} words for {} nodes",
                p.bits_stride, ceil_div(max_nodes(p), 64), max_nodes(p));
  }
  if (p.tree_encoding == KDTREE_TREE_ANCESTOR_BITS) {
    KDTREE_RETURN_IF_ERROR(check_extent("bits_stride", total_rows(p), bits_stride(p), bits_stride(p), 8));
  }
  if (p.tree_encoding == KDTREE_TREE_BOOL_MASK) {
    for (int32_t r = 0; r < p.batch; ++r)
      KDTREE_RETURN_IF_ERROR(check_mask_layout(p, r));
  }
  return {};
}

}  // namespace

Status validate_fields(const VerifyProblem& p) {
  KDTREE_RETURN_IF_ERROR(check_sizes(p));
  KDTREE_RETURN_IF_ERROR(check_dtypes(p));
  KDTREE_RETURN_IF_ERROR(check_strides(p));
  KDTREE_RETURN_IF_ERROR(
      check_range("draft_location", p.draft_location, KDTREE_DRAFT_IN_POOL, KDTREE_DRAFT_SEPARATE));
  KDTREE_RETURN_IF_ERROR(check_range("memory", p.memory, KDTREE_MEMORY_HOST, KDTREE_MEMORY_CUDA));
  if (p.batch == 0) return {};  // nothing is read or written
  KDTREE_RETURN_IF_ERROR(check_pointer("qo_indptr", p.qo_indptr));
  KDTREE_RETURN_IF_ERROR(check_pointer("kv_indptr", p.kv_indptr));
  KDTREE_RETURN_IF_ERROR(check_pointer("q", p.q));
  KDTREE_RETURN_IF_ERROR(check_pointer("out", p.out));
  if (p.draft_location == KDTREE_DRAFT_IN_POOL) {
    KDTREE_RETURN_IF_ERROR(check_pointer("draft_slots", p.draft_slots, " with KDTREE_DRAFT_IN_POOL"));
  } else {
    KDTREE_RETURN_IF_ERROR(check_pointer("draft_kv", p.draft_kv, " with KDTREE_DRAFT_SEPARATE"));
  }
  if (p.kv_slots > 0) KDTREE_RETURN_IF_ERROR(check_pointer("kv", p.kv, " of kv_slots rows"));
  return check_tree_fields(p);
}

Status validate_contents(const VerifyProblem& p) {
  if (p.batch == 0) return {};
  KDTREE_RETURN_IF_ERROR(check_batch_and_tree(p));
  KDTREE_RETURN_IF_ERROR(check_extents(p, total_rows(p)));
  const int64_t prefix_entries = kv_indptr(p)[p.batch];
  if (p.kv_indices != nullptr) {
    KDTREE_RETURN_IF_ERROR(check_slots("kv_indices", kv_indices(p), prefix_entries, p.kv_slots));
  } else if (prefix_entries > p.kv_slots) {
    return fail(KDTREE_INVALID_ARGUMENT,
                "kv_slots is {}, expected at least {} rows of contiguous prefixes (kv_indices is null)",
                p.kv_slots, prefix_entries);
  }
  if (p.draft_location == KDTREE_DRAFT_IN_POOL) {
    return check_slots("draft_slots", draft_slots(p), total_rows(p), p.kv_slots);
  }
  return {};
}

Status check_no_f64(const VerifyProblem& p, const char* expected) {
  const struct {
    const char* field;
    int32_t dtype;
  } fields[] = {{"q_dtype", p.q_dtype},
                {"kv_dtype", p.kv_dtype},
                {"out_dtype", p.out_dtype},
                {"lse_dtype", p.lse_dtype}};
  for (const auto& [field, dtype] : fields) {
    if (dtype != KDTREE_DTYPE_F64) continue;
    return fail(KDTREE_UNSUPPORTED, "{} is f64, expected {} (f64: oracle)", field, expected);
  }
  return {};
}

Status validate_trees(const VerifyProblem& p) {
  KDTREE_RETURN_IF_ERROR(check_range("batch", p.batch, 0, kMostRequests));
  KDTREE_RETURN_IF_ERROR(check_dtype("indptr_dtype", p.indptr_dtype, {DType::i32, DType::i64}));
  if (p.batch == 0) return {};
  KDTREE_RETURN_IF_ERROR(check_pointer("qo_indptr", p.qo_indptr));
  KDTREE_RETURN_IF_ERROR(check_pointer("kv_indptr", p.kv_indptr));
  KDTREE_RETURN_IF_ERROR(check_tree_fields(p));
  return check_batch_and_tree(p);
}

}  // namespace kdtree
