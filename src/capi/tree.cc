// Draft trees through the C ABI: ragged batches over the single-tree functions of src/tree.
#include <algorithm>
#include <limits>
#include <vector>

#include "attention/tree_encoding.h"
#include "attention/validate.h"
#include "capi/guard.h"
#include "core/indptr.h"
#include "tree/accept.h"
#include "tree/ancestor_bits.h"
#include "tree/best_first.h"
#include "tree/draft_tree.h"
#include "tree/retrieve.h"
#include "tree/top_k.h"

using namespace kdtree;
using capi::expect_at_least;
using capi::expect_pointer;

namespace {

// One request's rows of the [T] arrays.
struct Rows {
  size_t begin;
  size_t count;
  template <class T>
  std::span<T> of(T* array) const {
    return array == nullptr ? std::span<T>() : std::span<T>(array + begin, count);
  }
};

// Calls body(request, rows) for each request; its errors name the request.
template <class Body>
Status for_each_request(int32_t batch, const int32_t* qo_indptr, const Body& body) {
  KDTREE_RETURN_IF_ERROR(expect_at_least("batch", batch, 0));
  KDTREE_RETURN_IF_ERROR(expect_pointer("qo_indptr", qo_indptr));
  KDTREE_RETURN_IF_ERROR(
      check_indptr("qo_indptr", {qo_indptr, DType::i32}, batch, std::numeric_limits<int32_t>::max()));
  for (int32_t r = 0; r < batch; ++r) {
    const auto begin = static_cast<size_t>(qo_indptr[r]);
    const Rows rows{begin, static_cast<size_t>(qo_indptr[r + 1]) - begin};
    if (Status status = body(r, rows); !status) {
      return with_context(std::move(status).error(), fmt::format("request {}: ", r));
    }
  }
  return {};
}

Status check_top_k(const kdtree_top_k_params& p) {
  KDTREE_RETURN_IF_ERROR(expect_at_least("rows", p.rows, 0));
  KDTREE_RETURN_IF_ERROR(expect_at_least("vocab", p.vocab, 1));
  if (p.k < 1 || p.k > p.vocab) {
    return fail(KDTREE_INVALID_ARGUMENT, "k is {}, expected 1 .. {} (vocab)", p.k, p.vocab);
  }
  if (p.logits_dtype != KDTREE_DTYPE_F32 && p.logits_dtype != KDTREE_DTYPE_BF16) {
    return fail(KDTREE_INVALID_ARGUMENT, "logits_dtype is {} ({}), expected f32 ({}) or bf16 ({})",
                p.logits_dtype, dtype_name(static_cast<DType>(p.logits_dtype)), KDTREE_DTYPE_F32,
                KDTREE_DTYPE_BF16);
  }
  if (p.row_stride != 0) KDTREE_RETURN_IF_ERROR(expect_at_least("row_stride", p.row_stride, p.vocab));
  const int64_t stride = std::max<int64_t>(p.row_stride, p.vocab);
  if (!checked_extent_bytes(saturating_add(p.rows, 1), stride, p.vocab, 4)) {
    return fail(KDTREE_INVALID_ARGUMENT, "rows is {} with rows of {} elements, expected less than 2^63 bytes",
                p.rows, stride);
  }
  return {};
}

int32_t budget_of(const kdtree_tree_build_params& p, int32_t request) {
  return p.node_budgets != nullptr ? p.node_budgets[request] : p.node_budget;
}

// Sizes only: what the workspace query looks at.
Status check_tree_build(const kdtree_tree_build_params& p) {
  KDTREE_RETURN_IF_ERROR(expect_at_least("batch", p.batch, 0));
  KDTREE_RETURN_IF_ERROR(expect_at_least("depth", p.depth, 0));
  KDTREE_RETURN_IF_ERROR(expect_at_least("k", p.k, 1));
  for (int32_t r = 0; r < p.batch; ++r) {
    if (budget_of(p, r) >= 0) continue;
    return fail(KDTREE_INVALID_ARGUMENT, "node_budget of request {} is {}, expected >= 0", r,
                budget_of(p, r));
  }
  return {};
}

void tree_build_scratch(const kdtree_tree_build_params& p, Scratch& scratch) {
  int32_t most = 0;
  for (int32_t r = 0; r < p.batch; ++r)
    most = std::max(most, budget_of(p, r));
  best_first_scratch(p.depth, p.k, most, scratch);
}

Status check_tree_build_arrays(const kdtree_tree_build_params& p) {
  KDTREE_RETURN_IF_ERROR(expect_pointer("qo_indptr", p.qo_indptr));
  if (p.batch == 0) return {};
  KDTREE_RETURN_IF_ERROR(expect_pointer("root_tokens", p.root_tokens));
  KDTREE_RETURN_IF_ERROR(expect_pointer("out_tokens", p.out_tokens));
  KDTREE_RETURN_IF_ERROR(expect_pointer("out_parents", p.out_parents));
  KDTREE_RETURN_IF_ERROR(expect_pointer("out_depths", p.out_depths));
  if (p.depth > 0) {
    KDTREE_RETURN_IF_ERROR(expect_pointer("tokens", p.tokens));
    KDTREE_RETURN_IF_ERROR(expect_pointer("log_probs", p.log_probs));
  }
  int64_t nodes = 0;
  for (int32_t r = 0; r < p.batch; ++r)
    nodes += int64_t{reachable_nodes(p.depth, p.k, budget_of(p, r))} + 1;
  if (nodes > p.capacity || nodes > std::numeric_limits<int32_t>::max()) {
    return fail(KDTREE_BUFFER_TOO_SMALL, "capacity is {} nodes, expected at least {} (and below 2^31)",
                p.capacity, nodes);
  }
  return {};
}

Status build_trees(const kdtree_tree_build_params& p, void* workspace, size_t bytes) {
  int32_t used = 0;
  p.qo_indptr[0] = 0;
  for (int32_t r = 0; r < p.batch; ++r) {
    const int64_t first = int64_t{r} * p.depth * p.k;
    const int32_t budget = budget_of(p, r);
    const auto count = static_cast<size_t>(reachable_nodes(p.depth, p.k, budget)) + 1;
    const Rows rows{static_cast<size_t>(used), count};
    const TreeSpans out{rows.of(p.out_tokens), rows.of(p.out_parents), rows.of(p.out_depths),
                        rows.of(p.out_log_weights)};
    // Null stays null: with no position there is nothing to point at.
    const CandidateView candidates{p.depth > 0 ? p.tokens + first : nullptr,
                                   p.depth > 0 ? p.log_probs + first : nullptr, p.depth, p.k};
    Scratch scratch(workspace, bytes);
    auto nodes = build_best_first(candidates, p.root_tokens[r], budget, out, scratch);
    if (!nodes) return with_context(std::move(nodes).error(), fmt::format("request {}: ", r));
    used += *nodes;
    p.qo_indptr[r + 1] = used;
  }
  return {};
}

Status compile_request(const kdtree_tree_compile_params& p, int64_t bits_stride, int32_t request,
                       const Rows& rows, std::vector<int32_t>& chain) {
  if (p.parents == nullptr) {
    for (size_t i = chain.size(); i < rows.count; ++i)
      chain.push_back(static_cast<int32_t>(i) - 1);
  }
  const std::span<const int32_t> parents =
      p.parents != nullptr ? rows.of(p.parents) : std::span<const int32_t>(chain).first(rows.count);
  KDTREE_RETURN_IF_ERROR(validate_tree({parents, {}, {}, {}}));
  if (p.ancestor_bits != nullptr) {
    const auto words = static_cast<size_t>(bits_stride);
    const auto needed = static_cast<size_t>(ceil_div(static_cast<int64_t>(rows.count), 64));
    if (words < needed) {
      return fail(KDTREE_INVALID_ARGUMENT, "bits_stride is {}, expected at least {} words for {} nodes",
                  p.bits_stride, needed, rows.count);
    }
    ancestor_bits_from_parents(parents, {p.ancestor_bits + rows.begin * words, rows.count * words},
                               bits_stride);
  }
  const int64_t start = p.start_positions != nullptr ? p.start_positions[request] : 0;
  if (start < 0 || start > std::numeric_limits<int64_t>::max() - static_cast<int64_t>(rows.count)) {
    return fail(KDTREE_INVALID_ARGUMENT,
                "start_positions is {}, expected a position >= 0 with room for {} nodes", start, rows.count);
  }
  int64_t* const positions = p.positions;
  for (size_t i = 0; i < rows.count; ++i) {
    const size_t row = rows.begin + i;
    if (p.depths != nullptr) {
      p.depths[row] = parents[i] < 0 ? 0 : p.depths[rows.begin + static_cast<size_t>(parents[i])] + 1;
    }
    if (positions != nullptr) {
      positions[row] = parents[i] < 0 ? start : positions[rows.begin + static_cast<size_t>(parents[i])] + 1;
    }
    if (p.retrieve_index != nullptr) p.retrieve_index[row] = static_cast<int64_t>(row);
  }
  if (p.retrieve_next_token != nullptr) {
    retrieve_from_parents(parents, rows.of(p.retrieve_next_token), rows.of(p.retrieve_next_sibling));
  }
  return {};
}

Status accept_request(const kdtree_tree_accept_params& p, int32_t request, const Rows& rows) {
  const auto parents = rows.of(p.parents);
  KDTREE_RETURN_IF_ERROR(validate_tree({parents, {}, {}, {}}));
  AcceptLimits limits{{p.eos_tokens, static_cast<size_t>(p.num_eos)}, 0};
  if (p.max_tokens != nullptr) {
    limits.max_tokens = p.max_tokens[request];
    KDTREE_RETURN_IF_ERROR(expect_at_least("max_tokens", limits.max_tokens, 1));
  }
  const auto columns = static_cast<size_t>(p.path_stride);
  const std::span<int32_t> path(p.accept_path + static_cast<size_t>(request) * columns, columns);
  const std::span<int32_t> emitted(p.emitted_tokens + static_cast<size_t>(request) * columns, columns);
  const auto accepted =
      accept_path(parents, rows.of(p.tokens), rows.of(p.target_tokens), limits, path, emitted);
  if (!accepted) return tl::unexpected<Error>(accepted.error());
  std::fill(path.begin() + accepted->count, path.end(), -1);
  std::fill(emitted.begin() + accepted->count, emitted.end(), -1);
  p.accept_count[request] = accepted->count;
  p.next_root[request] = accepted->next_root;
  if (p.finish_reasons != nullptr) p.finish_reasons[request] = accepted->finish_reason;
  return {};
}

}  // namespace

extern "C" {

int32_t kdtree_top_k_workspace_size(const kdtree_top_k_params* params, size_t* bytes) noexcept {
  return capi::call(params, [&](const kdtree_top_k_params& p) -> Status {
    KDTREE_RETURN_IF_ERROR(check_top_k(p));
    Scratch scratch;
    top_k_scratch(p.k, scratch);
    return capi::answer_size(scratch.measured(), bytes);
  });
}

int32_t kdtree_top_k(const kdtree_top_k_params* params, void* workspace, size_t bytes,
                     void* /*stream*/) noexcept {
  return capi::call(params, [&](const kdtree_top_k_params& p) -> Status {
    KDTREE_RETURN_IF_ERROR(check_top_k(p));
    if (p.rows == 0) return {};
    KDTREE_RETURN_IF_ERROR(expect_pointer("logits", p.logits));
    KDTREE_RETURN_IF_ERROR(expect_pointer("tokens", p.tokens));
    const auto dtype = static_cast<DType>(p.logits_dtype);
    const int64_t stride = (p.row_stride != 0 ? p.row_stride : p.vocab) * dtype_size(dtype);
    const auto k = static_cast<size_t>(p.k);
    for (int64_t row = 0; row < p.rows; ++row) {
      Scratch scratch(workspace, bytes);
      const auto first = static_cast<size_t>(row) * k;
      const std::span<float> log_probs =
          p.log_probs != nullptr ? std::span(p.log_probs + first, k) : std::span<float>();
      if (Status status = top_k_row(static_cast<const std::byte*>(p.logits) + row * stride, dtype, p.vocab,
                                    {p.tokens + first, k}, log_probs, scratch);
          !status) {
        return with_context(std::move(status).error(), fmt::format("row {}: ", row));
      }
    }
    return {};
  });
}

int32_t kdtree_tree_build_workspace_size(const kdtree_tree_build_params* params, size_t* bytes) noexcept {
  return capi::call(params, [&](const kdtree_tree_build_params& p) -> Status {
    KDTREE_RETURN_IF_ERROR(check_tree_build(p));
    Scratch scratch;
    tree_build_scratch(p, scratch);
    return capi::answer_size(scratch.measured(), bytes);
  });
}

int32_t kdtree_tree_build(const kdtree_tree_build_params* params, void* workspace, size_t bytes,
                          void* /*stream*/) noexcept {
  return capi::call(params, [&](const kdtree_tree_build_params& p) -> Status {
    KDTREE_RETURN_IF_ERROR(check_tree_build(p));
    KDTREE_RETURN_IF_ERROR(check_tree_build_arrays(p));
    return build_trees(p, workspace, bytes);
  });
}

int32_t kdtree_tree_validate(const kdtree_tree_validate_params* params) noexcept {
  return capi::call(params, [&](const kdtree_tree_validate_params& p) -> Status {
    return for_each_request(p.batch, p.qo_indptr, [&](int32_t, const Rows& rows) -> Status {
      KDTREE_RETURN_IF_ERROR(expect_pointer("parents", p.parents));
      return validate_tree({rows.of(p.parents), rows.of(p.depths), rows.of(p.tokens), {}});
    });
  });
}

int32_t kdtree_tree_compile(const kdtree_tree_compile_params* params) noexcept {
  return capi::call(params, [&](const kdtree_tree_compile_params& p) -> Status {
    if ((p.retrieve_next_token == nullptr) != (p.retrieve_next_sibling == nullptr)) {
      return fail(KDTREE_INVALID_ARGUMENT,
                  "one of retrieve_next_token and retrieve_next_sibling is null, expected both or neither");
    }
    KDTREE_RETURN_IF_ERROR(expect_at_least("bits_stride", p.bits_stride, 0));
    int64_t bits_stride = p.bits_stride;
    if (bits_stride == 0) {
      KDTREE_RETURN_IF_ERROR(for_each_request(p.batch, p.qo_indptr, [&](int32_t, const Rows& rows) -> Status {
        bits_stride = std::max(bits_stride, ceil_div(static_cast<int64_t>(rows.count), 64));
        return {};
      }));
    }
    std::vector<int32_t> chain;
    return for_each_request(p.batch, p.qo_indptr, [&](int32_t request, const Rows& rows) {
      return compile_request(p, bits_stride, request, rows, chain);
    });
  });
}

int32_t kdtree_tree_from_retrieve(const kdtree_tree_from_retrieve_params* params) noexcept {
  return capi::call(params, [&](const kdtree_tree_from_retrieve_params& p) -> Status {
    return for_each_request(p.batch, p.qo_indptr, [&](int32_t, const Rows& rows) -> Status {
      KDTREE_RETURN_IF_ERROR(expect_pointer("retrieve_next_token", p.retrieve_next_token));
      KDTREE_RETURN_IF_ERROR(expect_pointer("retrieve_next_sibling", p.retrieve_next_sibling));
      KDTREE_RETURN_IF_ERROR(expect_pointer("parents", p.parents));
      for (size_t i = 0; p.retrieve_index != nullptr && i < rows.count; ++i) {
        const auto row = static_cast<int64_t>(rows.begin + i);
        if (p.retrieve_index[row] == row) continue;
        return fail(KDTREE_INVALID_TREE, "retrieve_index of node {} is {}, expected its row {}", i,
                    p.retrieve_index[row], row);
      }
      return parents_from_retrieve(rows.of(p.retrieve_next_token), rows.of(p.retrieve_next_sibling),
                                   rows.of(p.parents));
    });
  });
}

int32_t kdtree_tree_from_mask(const kdtree_verify_attn_params* params, int32_t* parents) noexcept {
  return capi::call(params, [&](const VerifyProblem& p) -> Status {
    KDTREE_RETURN_IF_ERROR(validate_trees(p));
    if (total_rows(p) == 0) return {};
    KDTREE_RETURN_IF_ERROR(expect_pointer("parents", parents));
    const int64_t nodes = max_nodes(p);
    std::vector<uint64_t> bits(static_cast<size_t>(nodes * ceil_div(nodes, 64)));
    for (int32_t r = 0; r < p.batch; ++r) {
      const RequestView view = request_view(p, r);
      if (Status status =
              read_parents(p, r, {parents + view.row_begin, static_cast<size_t>(view.nodes)}, bits);
          !status) {
        return with_context(std::move(status).error(), fmt::format("request {}: ", r));
      }
    }
    return {};
  });
}

int32_t kdtree_tree_accept(const kdtree_tree_accept_params* params) noexcept {
  return capi::call(params, [&](const kdtree_tree_accept_params& p) -> Status {
    KDTREE_RETURN_IF_ERROR(expect_at_least("num_eos", p.num_eos, 0));
    KDTREE_RETURN_IF_ERROR(expect_at_least("path_stride", p.path_stride, 0));
    if (p.num_eos > 0) KDTREE_RETURN_IF_ERROR(expect_pointer("eos_tokens", p.eos_tokens));
    return for_each_request(p.batch, p.qo_indptr, [&](int32_t request, const Rows& rows) -> Status {
      const struct {
        const char* field;
        const void* pointer;
      } arrays[] = {{"tokens", p.tokens},
                    {"parents", p.parents},
                    {"target_tokens", p.target_tokens},
                    {"accept_path", p.accept_path},
                    {"accept_count", p.accept_count},
                    {"emitted_tokens", p.emitted_tokens},
                    {"next_root", p.next_root}};
      for (const auto& [field, pointer] : arrays)
        KDTREE_RETURN_IF_ERROR(expect_pointer(field, pointer));
      return accept_request(p, request, rows);
    });
  });
}

}  // extern "C"
