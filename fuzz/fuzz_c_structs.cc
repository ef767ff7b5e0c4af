// Every entry point of the C ABI with any scalars and any struct_size. Pointers are NULL or as long as the
// scalars say: what a careful caller with wrong numbers passes.
#include <iterator>

#include "core/dtype.h"
#include "fuzz/fuzz_input.h"

namespace {

using kdtree::checked_extent_bytes;
using kdtree::saturating_add;
using kdtree::saturating_mul;
using kdtree::fuzz::Input;
using kdtree::fuzz::require;

// The size of the block that a caller built against another header has. Scalars that an older one lacks are
// the defaults: call before arrays are measured by them.
template <class Params>
void set_struct_size(Input& input, Params& params) {
  // Any header's blocks end at a field; one that ended inside a pointer would hold half an address.
  if (input.range(0, 7) == 0) params.struct_size = input.number<uint32_t>(0, 5000) / 8 * 8;
  const size_t known = std::clamp<size_t>(params.struct_size, sizeof(uint32_t), sizeof(Params));
  std::memset(reinterpret_cast<char*>(&params) + known, 0, sizeof(Params) - known);
}

// That block: exactly its size, with zeros or bytes after what this header knows.
template <class Params>
const Params* block_of(Input& input, Params params) {
  if (input.range(0, 31) == 0) return nullptr;
  params.flags = input.range(0, 31) != 0 ? 0 : input.number<uint32_t>(0, 1);
  params.next = input.range(0, 31) != 0 ? nullptr : &input;
  // A size that the library refuses without looking further need not be there.
  const size_t bytes = std::max<size_t>(params.struct_size <= 4096 ? params.struct_size : 0, 16);
  auto* block = static_cast<char*>(input.block(static_cast<int64_t>(bytes)));
  if (block == nullptr) return nullptr;
  if (input.flag()) std::memset(block, 0, bytes);
  std::memcpy(block, &params, std::min(bytes, sizeof(Params)));
  return reinterpret_cast<const Params*>(block);
}

// A status the header names, and a message with every failure.
void check(int32_t status) {
  require(std::strcmp(kdtree_status_name(status), "KDTREE_UNKNOWN_STATUS") != 0);
  require(status != KDTREE_INTERNAL_ERROR);
  char text[64];
  require(status == KDTREE_OK || kdtree_last_error(text, sizeof(text)) > 0);
}

template <class Params, class Query, class Run>
void query_and_run(Input& input, const Params& params, Query query, Run run) {
  const Params* block = block_of(input, params);
  size_t bytes = 0;
  const int32_t status = query(block, input.range(0, 63) != 0 ? &bytes : nullptr);
  check(status);
  void* workspace = input.workspace(bytes);
  check(run(block, workspace, workspace != nullptr ? bytes : 0, nullptr));
}

void top_k(Input& input) {
  auto p = KDTREE_INIT(kdtree_top_k_params);
  p.rows = input.number<int64_t>();
  p.vocab = input.number<int32_t>(0, 40);
  p.row_stride = input.flag() ? 0 : input.number<int64_t>(-1, 60);
  p.k = input.number<int32_t>(0, 8);
  p.logits_dtype = input.flag() ? KDTREE_DTYPE_F32 : input.number<int32_t>(1, 4);
  p.reserved0 = input.number<int32_t>();
  set_struct_size(input, p);
  const auto bytes =
      checked_extent_bytes(p.rows, p.row_stride != 0 ? p.row_stride : p.vocab, p.vocab, sizeof(float));
  p.logits = input.block(bytes.value_or(-1));
  p.tokens = input.array<int32_t>(saturating_mul(p.rows, p.k));
  p.log_probs = input.array<float>(saturating_mul(p.rows, p.k));
  query_and_run(input, p, kdtree_top_k_workspace_size, kdtree_top_k);
}

void tree_build(Input& input) {
  auto p = KDTREE_INIT(kdtree_tree_build_params);
  p.batch = input.range(-2, 8);
  p.depth = std::min(input.number<int32_t>(-1, 6), 1 << 16);  // a size query walks the levels
  p.k = input.number<int32_t>(0, 6);
  p.node_budget = input.number<int32_t>(-1, 40);
  set_struct_size(input, p);
  if (input.flag()) p.node_budgets = input.small_array<int32_t>(p.batch, 0, 20);
  p.capacity = input.number<int64_t>(0, 200);
  const int64_t candidates = saturating_mul(saturating_mul(p.batch, p.depth), p.k);
  p.tokens = input.small_array<int32_t>(candidates, 0, 20);
  auto* log_probs = input.array<float>(candidates);
  // Mostly non-increasing rows.
  for (int64_t i = 0; log_probs != nullptr && input.range(0, 7) != 0 && i < candidates; ++i)
    log_probs[i] = i % p.k == 0 ? -0.5f : log_probs[i - 1] - static_cast<float>(input.range(0, 3));
  p.log_probs = log_probs;
  p.root_tokens = input.array<int32_t>(p.batch);
  p.qo_indptr = input.array<int32_t>(int64_t{p.batch} + 1);
  p.out_tokens = input.array<int32_t>(p.capacity);
  p.out_parents = input.array<int32_t>(p.capacity);
  p.out_depths = input.array<int32_t>(p.capacity);
  p.out_log_weights = input.array<double>(p.capacity);
  query_and_run(input, p, kdtree_tree_build_workspace_size, kdtree_tree_build);
}

void tree_validate(Input& input) {
  auto p = KDTREE_INIT(kdtree_tree_validate_params);
  int64_t rows = 0;
  p.batch = input.number<int32_t>(-1, 4);
  set_struct_size(input, p);
  p.qo_indptr = input.indptr<int32_t>(p.batch, 8, rows);
  p.parents = input.small_array<int32_t>(rows, -2, 8);
  p.depths = input.small_array<int32_t>(rows, 0, 3);
  p.tokens = input.small_array<int32_t>(rows, 0, 3);
  check(kdtree_tree_validate(block_of(input, p)));
}

void tree_compile(Input& input) {
  auto p = KDTREE_INIT(kdtree_tree_compile_params);
  int64_t rows = 0;
  p.bits_stride = input.number<int64_t>(-1, 3);
  p.batch = input.number<int32_t>(-1, 4);
  set_struct_size(input, p);
  p.qo_indptr = input.indptr<int32_t>(p.batch, 8, rows);
  p.parents = input.flag() ? nullptr : input.small_array<int32_t>(rows, -1, 3);
  p.start_positions = input.small_array<int64_t>(p.batch, 0, 9);
  p.depths = input.array<int32_t>(rows);
  p.positions = input.array<int64_t>(rows);
  p.ancestor_bits = input.array<uint64_t>(saturating_mul(rows, std::max<int64_t>(p.bits_stride, 1)));
  p.retrieve_index = input.array<int64_t>(rows);
  p.retrieve_next_token = input.array<int64_t>(rows);
  p.retrieve_next_sibling = input.array<int64_t>(rows);
  check(kdtree_tree_compile(block_of(input, p)));
}

void tree_from_retrieve(Input& input) {
  auto p = KDTREE_INIT(kdtree_tree_from_retrieve_params);
  int64_t rows = 0;
  p.batch = input.number<int32_t>(-1, 4);
  set_struct_size(input, p);
  p.qo_indptr = input.indptr<int32_t>(p.batch, 8, rows);
  p.retrieve_index = input.flag() ? nullptr : input.array<int64_t>(rows);
  p.retrieve_next_token = input.small_array<int64_t>(rows, -1, 8);
  p.retrieve_next_sibling = input.small_array<int64_t>(rows, -1, 8);
  p.parents = input.array<int32_t>(rows);
  check(kdtree_tree_from_retrieve(block_of(input, p)));
}

void tree_accept(Input& input) {
  auto p = KDTREE_INIT(kdtree_tree_accept_params);
  int64_t rows = 0;
  p.batch = input.number<int32_t>(-1, 4);
  p.num_eos = input.number<int32_t>(-1, 3);
  p.path_stride = input.number<int64_t>(-1, 10);
  set_struct_size(input, p);
  p.qo_indptr = input.indptr<int32_t>(p.batch, 8, rows);
  p.tokens = input.small_array<int32_t>(rows, 0, 3);
  p.parents = input.small_array<int32_t>(rows, -1, 1);
  p.target_tokens = input.small_array<int32_t>(rows, 0, 3);
  p.eos_tokens = input.array<int32_t>(p.num_eos);
  p.max_tokens = input.small_array<int32_t>(p.batch, 0, 4);
  const int64_t cells = saturating_mul(p.batch, p.path_stride);
  p.accept_path = input.array<int32_t>(cells);
  p.accept_count = input.array<int32_t>(p.batch);
  p.emitted_tokens = input.array<int32_t>(cells);
  p.next_root = input.array<int32_t>(p.batch);
  p.finish_reasons = input.array<int32_t>(p.batch);
  check(kdtree_tree_accept(block_of(input, p)));
}

void compaction_plan(Input& input) {
  auto p = KDTREE_INIT(kdtree_compaction_plan_params);
  int64_t rows = 0;
  p.batch = input.number<int32_t>(-1, 4);
  p.path_stride = input.number<int64_t>(-1, 10);
  p.page_table_stride = input.number<int64_t>(-1, 6);
  p.page_size = input.number<int32_t>(-1, 6);
  p.slot_dtype = input.flag() ? KDTREE_DTYPE_I64 : input.number<int32_t>(15, 18);
  p.capacity = input.number<int64_t>(-1, 40);
  set_struct_size(input, p);
  p.qo_indptr = input.indptr<int32_t>(p.batch, 8, rows);
  p.accept_path = input.small_array<int32_t>(saturating_mul(p.batch, p.path_stride), -1, 8);
  p.accept_count = input.small_array<int32_t>(p.batch, -1, 6);
  p.draft_slots = input.small_array<int64_t>(rows, -1, 40);
  p.start_positions = input.small_array<int64_t>(p.batch, -1, 20);
  p.page_table = input.small_array<int32_t>(saturating_mul(p.batch, p.page_table_stride), -1, 9);
  p.src = input.array<int64_t>(p.capacity);
  p.dst = input.array<int64_t>(p.capacity);
  p.move_indptr = input.array<int32_t>(int64_t{p.batch} + 1);
  query_and_run(input, p, kdtree_compaction_plan_workspace_size, kdtree_compaction_plan);
}

void kv_compact(Input& input) {
  auto p = KDTREE_INIT(kdtree_kv_compact_params);
  p.moves = input.number<int64_t>(-1, 10);
  p.slots = input.number<int64_t>(-1, 12);
  p.row_bytes = input.number<int64_t>(-1, 40);
  p.row_stride_bytes = input.flag() ? 0 : input.number<int64_t>(-1, 60);
  p.num_layers = input.number<int32_t>(-1, 3);
  set_struct_size(input, p);
  const int64_t stride = p.row_stride_bytes != 0 ? p.row_stride_bytes : p.row_bytes;
  void** layers = input.array<void*>(p.num_layers);
  for (int32_t layer = 0; layers != nullptr && layer < p.num_layers; ++layer)
    layers[layer] = input.block(checked_extent_bytes(p.slots, stride, p.row_bytes, 1).value_or(-1));
  p.layers = layers;
  p.src = input.small_array<int64_t>(p.moves, -1, 12);
  p.dst = input.small_array<int64_t>(p.moves, -1, 12);
  query_and_run(input, p, kdtree_kv_compact_workspace_size, kdtree_kv_compact);
}

// Bytes of an array [rows, columns, width]; -1 where they overflow.
int64_t extent(int32_t dtype, int64_t rows, int64_t row_stride, int64_t columns, int64_t column_stride,
               int64_t width) {
  const auto row = checked_extent_bytes(columns, column_stride, width, 1);
  const int64_t element = kdtree::dtype_size(static_cast<kdtree::DType>(dtype));
  return row ? checked_extent_bytes(rows, row_stride, *row, element).value_or(-1) : -1;
}

int64_t or_default(int64_t stride, int64_t contiguous) {
  return stride != 0 ? stride : contiguous;
}

int64_t dimension(Input& input) {
  return input.range(0, 15) != 0 ? 16 * input.range(0, 2) : input.range(-16, 5000);
}

int64_t stride(Input& input) {
  return input.range(0, 3) != 0 ? 0 : input.number<int64_t>(-1, 100);
}

const void* slots(Input& input, const kdtree_verify_attn_params& p, int64_t count) {
  if (p.kv_indices_dtype == KDTREE_DTYPE_I64) return input.small_array<int64_t>(count, 0, 19);
  return input.small_array<int32_t>(count, 0, 19);
}

template <class Index>
void verify_attn_arrays(Input& input, kdtree_verify_attn_params& p) {
  int64_t rows = 0;
  int64_t prefix = 0;
  const auto* qo_indptr = input.indptr<Index>(p.batch, 6, rows);
  const auto* kv_indptr = input.indptr<Index>(p.batch, 10, prefix);
  p.qo_indptr = qo_indptr;
  p.kv_indptr = kv_indptr;
  const int64_t width = int64_t{p.latent_dim} + p.rope_dim;
  const int64_t heads = p.heads;
  p.q = input.block(extent(p.q_dtype, rows, or_default(p.q_token_stride, saturating_mul(heads, width)), heads,
                           or_default(p.q_head_stride, width), width));
  p.out = input.block(extent(p.out_dtype, rows,
                             or_default(p.out_token_stride, saturating_mul(heads, p.latent_dim)), heads,
                             or_default(p.out_head_stride, p.latent_dim), p.latent_dim));
  p.lse =
      input.block(extent(p.lse_dtype != 0 ? p.lse_dtype : KDTREE_DTYPE_F32, rows,
                         or_default(p.lse_token_stride, heads), heads, or_default(p.lse_head_stride, 1), 1));
  p.kv = input.block(extent(p.kv_dtype, p.kv_slots, or_default(p.kv_row_stride, width), 1, 0, width));
  p.draft_kv = input.block(extent(p.kv_dtype, rows, or_default(p.draft_row_stride, width), 1, 0, width));
  p.kv_indices = slots(input, p, prefix);
  p.draft_slots = slots(input, p, rows);
  p.parents = input.small_array<int32_t>(rows, -2, 3);
  int64_t most_nodes = 0;
  int64_t mask_bytes = 0;
  auto* mask_indptr = input.array<int64_t>(p.batch);
  for (int32_t r = 0; rows > 0 && kv_indptr != nullptr && r < p.batch; ++r) {
    const int64_t nodes = int64_t{qo_indptr[r + 1]} - qo_indptr[r];
    most_nodes = std::max(most_nodes, nodes);
    if (mask_indptr != nullptr) mask_indptr[r] = mask_bytes;
    const int64_t columns = prefix > 0 ? int64_t{kv_indptr[r + 1]} - kv_indptr[r] + nodes : nodes;
    const int64_t row = or_default(p.mask_row_stride, columns);
    mask_bytes = saturating_add(mask_bytes, saturating_mul(nodes, std::max<int64_t>(row, 0)));
  }
  const int64_t words = or_default(p.bits_stride, (most_nodes + 63) / 64);
  p.ancestor_bits = input.array<uint64_t>(saturating_mul(rows, std::max<int64_t>(words, 0)));
  p.mask = input.small_array<uint8_t>(mask_bytes, 0, 1);
  p.mask_indptr = mask_indptr;
  if (input.flag()) {
    check(kdtree_tree_from_mask(block_of(input, p), input.array<int32_t>(rows)));
  } else {
    query_and_run(input, p, kdtree_verify_attn_workspace_size, kdtree_verify_attn);
  }
}

void verify_attn(Input& input) {
  auto p = KDTREE_INIT(kdtree_verify_attn_params);
  p.batch = input.number<int32_t>(-1, 3);
  p.heads = input.number<int32_t>(0, 3);
  p.latent_dim = static_cast<int32_t>(dimension(input));
  p.rope_dim = static_cast<int32_t>(dimension(input));
  p.backend = input.number<int32_t>(0, 2);
  p.plan = input.number<int32_t>(0, 1);
  p.scale = input.real();
  p.logit_cap = input.real();
  p.kv_scale = input.real();
  p.q_dtype = input.number<int32_t>(1, 4);
  p.out_dtype = input.number<int32_t>(1, 4);
  p.lse_dtype = input.flag() ? 0 : input.number<int32_t>(0, 4);
  p.kv_dtype = input.number<int32_t>(1, 5);
  p.indptr_dtype = input.range(0, 15) != 0 ? KDTREE_DTYPE_I64 : input.number<int32_t>(15, 18);
  p.kv_indices_dtype = input.number<int32_t>(16, 17);
  p.q_token_stride = stride(input);
  p.q_head_stride = stride(input);
  p.out_token_stride = stride(input);
  p.out_head_stride = stride(input);
  p.lse_token_stride = stride(input);
  p.lse_head_stride = stride(input);
  p.kv_row_stride = stride(input);
  p.draft_row_stride = stride(input);
  p.bits_stride = input.flag() ? 0 : input.number<int64_t>(-1, 2);
  p.mask_row_stride = stride(input);
  p.mask_column_offset = input.flag() ? 0 : input.number<int64_t>(-1, 9);
  p.mask_skip_prefix = input.number<int32_t>(0, 1);
  p.kv_slots = input.number<int64_t>(0, 20);
  p.draft_location = input.number<int32_t>(0, 1);
  p.tree_encoding = input.number<int32_t>(0, 3);

  set_struct_size(input, p);
  if (p.indptr_dtype == KDTREE_DTYPE_I32) {
    verify_attn_arrays<int32_t>(input, p);
  } else {
    verify_attn_arrays<int64_t>(input, p);
  }
}

void backend_info(Input& input) {
  // Written through, so the block is the caller's own.
  auto info = KDTREE_INIT(kdtree_backend_info);
  set_struct_size(input, info);
  const auto* block = block_of(input, info);
  check(kdtree_get_backend_info(input.number<int32_t>(-1, kdtree_backend_count()),
                                const_cast<kdtree_backend_info*>(block)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr void (*kCalls[])(Input&) = {
      top_k,       tree_build,      tree_validate, tree_compile, tree_from_retrieve,
      tree_accept, compaction_plan, kv_compact,    verify_attn,  backend_info};
  Input input(data, size);
  kCalls[input.range<size_t>(0, std::size(kCalls) - 1)](input);
  return 0;
}
