#include "io/bundle_check.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "attention/validate.h"
#include "core/checked.h"
#include "core/indptr.h"

namespace kdtree {
namespace {

constexpr ProblemArray kProblemArrays[] = {
    {"q", &OwnedProblem::q, &VerifyProblem::q_dtype},
    {"qo_indptr", &OwnedProblem::qo_indptr, &VerifyProblem::indptr_dtype},
    {"kv_indptr", &OwnedProblem::kv_indptr, &VerifyProblem::indptr_dtype},
    {"kv", &OwnedProblem::kv, &VerifyProblem::kv_dtype},
    {"kv_indices", &OwnedProblem::kv_indices, &VerifyProblem::kv_indices_dtype},
    {"draft_slots", &OwnedProblem::draft_slots, &VerifyProblem::kv_indices_dtype},
    {"draft_kv", &OwnedProblem::draft_kv, &VerifyProblem::kv_dtype},
    {"parents", &OwnedProblem::parents, nullptr, DType::i32},
    {"ancestor_bits", &OwnedProblem::ancestor_bits, nullptr, DType::u64},
    {"mask", &OwnedProblem::mask, nullptr, DType::u8},
    {"mask_indptr", &OwnedProblem::mask_indptr, nullptr, DType::i64},
    {"out", &OwnedProblem::out, &VerifyProblem::out_dtype},
    {"lse", &OwnedProblem::lse, &VerifyProblem::lse_dtype},
};

constexpr BundleArray kBundleArrays[] = {
    {"tokens", &Bundle::tokens, DType::i32},
    {"target_tokens", &Bundle::target_tokens, DType::i32},
    {"accept_path", &Bundle::accept_path, DType::i32},
    {"accept_count", &Bundle::accept_count, DType::i32},
    {"eos_tokens", &Bundle::eos_tokens, DType::i32},
    {"residual", &Bundle::residual, DType::f32, nullptr, true},
    {"later_kv", &Bundle::later_kv, DType::f32, &VerifyProblem::kv_dtype, true},
    {"temperature", &Bundle::temperature, DType::f64, nullptr, true},
    {"top_k", &Bundle::top_k, DType::i32, nullptr, true},
    {"top_p", &Bundle::top_p, DType::f64, nullptr, true},
    {"min_p", &Bundle::min_p, DType::f64, nullptr, true},
    {"seed", &Bundle::seed, DType::u64, nullptr, true},
    {"request", &Bundle::request, DType::u64, nullptr, true},
};

Status check_dtype(const char* name, const Tensor& tensor, DType expected) {
  if (!tensor.present() || tensor.dtype == expected) return {};
  return fail(KDTREE_INVALID_ARGUMENT, "{} is {}, expected {}", name, dtype_name(tensor.dtype),
              dtype_name(expected));
}

Status check_dtypes(const Bundle& bundle) {
  const VerifyProblem& p = bundle.problem.scalars;
  for (const auto& array : kProblemArrays) {
    DType expected = array.dtype;
    if (array.dtype_field == &VerifyProblem::lse_dtype) {
      expected = lse_dtype(p);
    } else if (array.dtype_field != nullptr) {
      expected = static_cast<DType>(p.*array.dtype_field);
    }
    KDTREE_RETURN_IF_ERROR(check_dtype(array.name, bundle.problem.*array.tensor, expected));
  }
  for (const auto& array : kBundleArrays) {
    const DType expected =
        array.dtype_field != nullptr ? static_cast<DType>(p.*array.dtype_field) : array.dtype;
    KDTREE_RETURN_IF_ERROR(check_dtype(array.name, bundle.*array.tensor, expected));
  }
  return {};
}

Status check_presence(const OwnedProblem& problem) {
  const auto require = [](const char* name, const Tensor& tensor, const char* why) -> Status {
    if (tensor.present()) return {};
    return fail(KDTREE_INVALID_ARGUMENT, "{} is missing, expected an array{}", name, why);
  };
  KDTREE_RETURN_IF_ERROR(require("q", problem.q, ""));
  KDTREE_RETURN_IF_ERROR(require("qo_indptr", problem.qo_indptr, ""));
  KDTREE_RETURN_IF_ERROR(require("kv_indptr", problem.kv_indptr, ""));
  KDTREE_RETURN_IF_ERROR(require("kv", problem.kv, ""));
  KDTREE_RETURN_IF_ERROR(require("kv_indices", problem.kv_indices, ""));
  if (problem.scalars.draft_location == KDTREE_DRAFT_IN_POOL) {
    KDTREE_RETURN_IF_ERROR(
        require("draft_slots", problem.draft_slots, " with draft_location 0 (in the pool)"));
  } else {
    KDTREE_RETURN_IF_ERROR(require("draft_kv", problem.draft_kv, " with draft_location 1 (separate)"));
  }
  switch (problem.scalars.tree_encoding) {
    case KDTREE_TREE_PARENTS:
      return require("parents", problem.parents, " with tree_encoding 1 (parents)");
    case KDTREE_TREE_ANCESTOR_BITS:
      return require("ancestor_bits", problem.ancestor_bits, " with tree_encoding 2 (ancestor bits)");
    case KDTREE_TREE_BOOL_MASK:
      KDTREE_RETURN_IF_ERROR(require("mask", problem.mask, " with tree_encoding 3 (bool mask)"));
      return require("mask_indptr", problem.mask_indptr, " with tree_encoding 3 (bool mask)");
    default:
      return {};
  }
}

// `elements` is nullopt where the sizes overflow 64 bits.
Status check_length(const char* name, const Tensor& tensor, std::optional<int64_t> elements) {
  if (!tensor.present()) return {};
  const int64_t length = static_cast<int64_t>(tensor.bytes.size()) / dtype_size(tensor.dtype);
  if (elements && length >= *elements) return {};
  return fail(KDTREE_INVALID_ARGUMENT, "{} has {} elements, expected at least {}", name, length,
              elements ? fmt::format("{}", *elements) : "2^63: the sizes overflow");
}

// Elements up to the last one of an array [rows, columns, width].
std::optional<int64_t> extent(int64_t rows, int64_t row_stride, int64_t columns, int64_t column_stride,
                              int64_t width) {
  const auto row = checked_extent_bytes(columns, column_stride, width, 1);
  return row ? checked_extent_bytes(rows, row_stride, *row, 1) : row;
}

// Reads mask_indptr and the (checked) indptr arrays.
Status check_mask_length(const VerifyProblem& p, const Tensor& mask) {
  const auto length = static_cast<int64_t>(mask.bytes.size());
  for (int64_t r = 0; r < p.batch; ++r) {
    const RequestView view = request_view(p, r);
    const int64_t begin = p.mask_indptr[r];
    const bool packed = p.mask_row_stride == 0;
    const int64_t first_column =
        packed || p.mask_column_offset == -1 ? view.prefix_length : p.mask_column_offset;
    const auto columns = checked_add(first_column, view.nodes);
    const auto row_stride = packed ? columns : p.mask_row_stride;
    const auto bytes = columns ? checked_extent_bytes(view.nodes, *row_stride, *columns, 1) : columns;
    if (begin < 0 || begin > length || !bytes || *bytes > length - begin) {
      return fail(KDTREE_INVALID_ARGUMENT,
                  "mask: request {} starts at byte {} of {}, expected room for its {} rows after column {}",
                  r, begin, length, view.nodes, first_column);
    }
  }
  return {};
}

Status check_lengths(const Bundle& bundle, const VerifyProblem& p) {
  const OwnedProblem& o = bundle.problem;
  KDTREE_RETURN_IF_ERROR(check_length("qo_indptr", o.qo_indptr, int64_t{p.batch} + 1));
  KDTREE_RETURN_IF_ERROR(check_length("kv_indptr", o.kv_indptr, int64_t{p.batch} + 1));
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();  // the lengths below are the limit
  KDTREE_RETURN_IF_ERROR(check_indptr("qo_indptr", qo_indptr(p), p.batch, kAny));
  KDTREE_RETURN_IF_ERROR(check_indptr("kv_indptr", kv_indptr(p), p.batch, kAny));

  const int64_t rows = total_rows(p);
  const int64_t width = row_width(p);
  KDTREE_RETURN_IF_ERROR(
      check_length("q", o.q, extent(rows, q_token_stride(p), p.heads, q_head_stride(p), width)));
  KDTREE_RETURN_IF_ERROR(check_length(
      "out", o.out, extent(rows, out_token_stride(p), p.heads, out_head_stride(p), p.latent_dim)));
  KDTREE_RETURN_IF_ERROR(
      check_length("lse", o.lse, extent(rows, lse_token_stride(p), p.heads, lse_head_stride(p), 1)));
  KDTREE_RETURN_IF_ERROR(check_length("kv", o.kv, extent(p.kv_slots, kv_row_stride(p), 1, 0, width)));
  KDTREE_RETURN_IF_ERROR(check_length("kv_indices", o.kv_indices, kv_indptr(p)[p.batch]));
  KDTREE_RETURN_IF_ERROR(check_length("draft_slots", o.draft_slots, rows));
  KDTREE_RETURN_IF_ERROR(
      check_length("draft_kv", o.draft_kv, extent(rows, draft_row_stride(p), 1, 0, width)));
  KDTREE_RETURN_IF_ERROR(check_length("parents", o.parents, rows));
  KDTREE_RETURN_IF_ERROR(check_length("ancestor_bits", o.ancestor_bits, checked_mul(rows, bits_stride(p))));
  KDTREE_RETURN_IF_ERROR(check_length("mask_indptr", o.mask_indptr, p.batch));
  if (p.tree_encoding == KDTREE_TREE_BOOL_MASK) KDTREE_RETURN_IF_ERROR(check_mask_length(p, o.mask));
  KDTREE_RETURN_IF_ERROR(check_length("tokens", bundle.tokens, rows));
  return check_length("target_tokens", bundle.target_tokens, rows);
}

Status check_accept(const Bundle& bundle, const VerifyProblem& p) {
  if (bundle.accept_path.present() != bundle.accept_count.present()) {
    return fail(KDTREE_INVALID_ARGUMENT, "{} is missing, expected accept_path and accept_count together",
                bundle.accept_path.present() ? "accept_count" : "accept_path");
  }
  if (!bundle.accept_path.present()) return {};
  const auto& shape = bundle.accept_path.shape;
  if (shape.size() != 2 || shape[0] != p.batch) {
    return fail(KDTREE_INVALID_ARGUMENT, "accept_path has {} dimensions and {} rows, expected 2 and {}",
                shape.size(), shape[0], p.batch);
  }
  KDTREE_RETURN_IF_ERROR(check_length("accept_count", bundle.accept_count, p.batch));
  const auto path = bundle.accept_path.as<int32_t>();
  const auto count = bundle.accept_count.as<int32_t>();
  for (int64_t r = 0; r < p.batch; ++r) {
    const int64_t accepted = count[static_cast<size_t>(r)];
    if (accepted < 0 || accepted > shape[1]) {
      return fail(KDTREE_INVALID_ARGUMENT, "accept_count[{}] is {}, expected 0 .. {}", r, accepted, shape[1]);
    }
    const auto nodes = path.subspan(static_cast<size_t>(r * shape[1]), static_cast<size_t>(accepted));
    const int64_t limit = request_view(p, r).nodes;
    for (const int32_t node : nodes) {
      if (node >= 0 && node < limit) continue;
      return fail(KDTREE_INVALID_ARGUMENT, "accept_path: request {} has node {}, expected 0 .. {}", r, node,
                  limit - 1);
    }
  }
  return {};
}

Status check_shape(const char* name, const Tensor& tensor, const std::vector<int64_t>& expected) {
  if (tensor.shape == expected) return {};
  return fail(KDTREE_INVALID_ARGUMENT, "{} has shape {}, expected {}", name, tensor.shape, expected);
}

// All or nothing of what it takes to go on behind the attention.
Status check_resumable(const Bundle& bundle, const VerifyProblem& p) {
  if (bundle.resumable() == bundle.model.empty()) {
    return fail(KDTREE_INVALID_ARGUMENT, "metadata \"{}\" is missing, expected layer and model together",
                bundle.model.empty() ? "model" : "layer");
  }
  for (const auto& array : kBundleArrays) {
    const bool present = (bundle.*array.tensor).present();
    if (!array.resumes || present == bundle.resumable()) continue;
    return fail(KDTREE_INVALID_ARGUMENT, "{} is {}, expected {} metadata \"layer\" and \"model\"", array.name,
                present ? "there" : "missing", present ? "it only with" : "an array with");
  }
  if (!bundle.resumable()) return {};
  const bool hexadecimal = bundle.model.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (bundle.model.size() != 16 || !hexadecimal) {
    return fail(KDTREE_INVALID_ARGUMENT, "metadata \"model\" is \"{}\", expected 16 hexadecimal digits",
                bundle.model);
  }
  for (const auto& [name, tensor] :
       {std::pair("tokens", &bundle.tokens), std::pair("target_tokens", &bundle.target_tokens),
        std::pair("accept_path", &bundle.accept_path)}) {
    if (!tensor->present())
      return fail(KDTREE_INVALID_ARGUMENT, "{} is missing, expected an array with residual", name);
  }
  if (p.draft_location != KDTREE_DRAFT_IN_POOL) {
    return fail(KDTREE_INVALID_ARGUMENT, "draft_location is {}, expected 0 (in the pool) with residual",
                p.draft_location);
  }
  const int64_t rows = total_rows(p);
  const auto& residual = bundle.residual.shape;
  KDTREE_RETURN_IF_ERROR(check_shape("residual", bundle.residual, {rows, residual.back()}));
  const int64_t later = bundle.later_kv.shape[0];
  KDTREE_RETURN_IF_ERROR(check_shape("later_kv", bundle.later_kv, {later, p.kv_slots, row_width(p)}));
  for (const auto& array : kBundleArrays) {
    if (!array.resumes || array.tensor == &Bundle::residual || array.tensor == &Bundle::later_kv) continue;
    KDTREE_RETURN_IF_ERROR(check_length(array.name, bundle.*array.tensor, p.batch));
  }
  // Each row's KV goes to its own slot.
  std::vector<int64_t> slots(static_cast<size_t>(rows));
  for (int64_t t = 0; t < rows; ++t)
    slots[static_cast<size_t>(t)] = draft_slots(p)[t];
  std::sort(slots.begin(), slots.end());
  const auto twice = std::adjacent_find(slots.begin(), slots.end());
  if (twice != slots.end()) {
    return fail(KDTREE_INVALID_ARGUMENT,
                "draft_slots has slot {} twice, expected distinct slots with residual", *twice);
  }
  const int64_t prefix_slots = kv_indptr(p)[p.batch];
  for (int64_t i = 0; i < prefix_slots; ++i) {
    if (std::binary_search(slots.begin(), slots.end(), kv_indices(p)[i])) {
      return fail(KDTREE_INVALID_ARGUMENT,
                  "kv_indices[{}] is slot {}, one of draft_slots, expected slots of its own with residual", i,
                  kv_indices(p)[i]);
    }
  }
  return {};
}

}  // namespace

std::span<const ProblemArray> problem_arrays() {
  return kProblemArrays;
}

std::span<const BundleArray> bundle_arrays() {
  return kBundleArrays;
}

Status check_bundle(const Bundle& bundle) {
  KDTREE_RETURN_IF_ERROR(check_presence(bundle.problem));
  KDTREE_RETURN_IF_ERROR(check_dtypes(bundle));
  // params() hands out pointers for a run to write through; checking only reads.
  VerifyProblem p = const_cast<OwnedProblem&>(bundle.problem).params();
  if (p.out == nullptr) p.out = &p;  // the caller of a run allocates it; here only null is told from not null
  KDTREE_RETURN_IF_ERROR(validate_fields(p));
  KDTREE_RETURN_IF_ERROR(check_lengths(bundle, p));
  KDTREE_RETURN_IF_ERROR(validate_contents(p));
  KDTREE_RETURN_IF_ERROR(check_accept(bundle, p));
  return check_resumable(bundle, p);
}

}  // namespace kdtree
