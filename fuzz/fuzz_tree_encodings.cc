// Trees of every encoding through the C ABI: nothing is read or written outside the arrays, and a tree that
// is valid comes back from each encoding as it was.
#include <algorithm>
#include <limits>

#include "fuzz/fuzz_input.h"

namespace {

using kdtree::fuzz::Input;
using kdtree::fuzz::require;

struct Batch {
  int32_t requests;
  int64_t rows;
  int64_t words;  // of a row of ancestor bits
  int32_t* qo_indptr;
  int32_t* parents;
};

bool same(const int32_t* a, const int32_t* b, int64_t count) {
  return std::equal(a, a + count, b);
}

bool is_valid(const Batch& batch, Input& input) {
  auto p = KDTREE_INIT(kdtree_tree_validate_params);
  p.qo_indptr = batch.qo_indptr;
  p.parents = batch.parents;
  p.batch = batch.requests;
  const bool valid = kdtree_tree_validate(&p) == KDTREE_OK;
  if (input.flag()) p.depths = input.small_array<int32_t>(batch.rows, 0, 4);
  if (input.flag()) p.tokens = input.small_array<int32_t>(batch.rows, 0, 4);
  (void)kdtree_tree_validate(&p);
  return valid;
}

// Compiled, and read back from the child and sibling links and from the bits.
void check_round_trips(const Batch& batch, Input& input) {
  auto compile = KDTREE_INIT(kdtree_tree_compile_params);
  compile.qo_indptr = batch.qo_indptr;
  compile.parents = batch.parents;
  compile.batch = batch.requests;
  compile.bits_stride = batch.words;
  compile.start_positions = input.array<int64_t>(batch.requests);
  compile.depths = input.array<int32_t>(batch.rows);
  compile.positions = input.array<int64_t>(batch.rows);
  // A stride of 0 means as many words as the largest tree needs.
  const int64_t words = batch.words != 0 ? batch.words : (batch.rows + 63) / 64;
  compile.ancestor_bits = input.array<uint64_t>(batch.rows * words);
  compile.retrieve_index = input.array<int64_t>(batch.rows);
  compile.retrieve_next_token = input.array<int64_t>(batch.rows);
  compile.retrieve_next_sibling = input.array<int64_t>(batch.rows);
  if (kdtree_tree_compile(&compile) != KDTREE_OK) return;

  int32_t* parents = input.array<int32_t>(batch.rows);
  if (parents == nullptr) return;
  auto links = KDTREE_INIT(kdtree_tree_from_retrieve_params);
  links.qo_indptr = batch.qo_indptr;
  links.retrieve_index = compile.retrieve_index;
  links.retrieve_next_token = compile.retrieve_next_token;
  links.retrieve_next_sibling = compile.retrieve_next_sibling;
  links.batch = batch.requests;
  links.parents = parents;
  if (compile.retrieve_next_token != nullptr) {
    require(kdtree_tree_from_retrieve(&links) == KDTREE_OK);
    require(same(parents, batch.parents, batch.rows));
  }

  if (compile.ancestor_bits == nullptr) return;
  int64_t* no_prefixes = input.array<int64_t>(int64_t{batch.requests} + 1);
  int64_t* wide_indptr = input.array<int64_t>(int64_t{batch.requests} + 1);
  if (no_prefixes == nullptr || wide_indptr == nullptr) return;
  std::fill_n(no_prefixes, batch.requests + 1, 0);
  std::copy_n(batch.qo_indptr, batch.requests + 1, wide_indptr);
  auto bits = KDTREE_INIT(kdtree_verify_attn_params);
  bits.batch = batch.requests;
  bits.indptr_dtype = KDTREE_DTYPE_I64;
  bits.qo_indptr = wide_indptr;
  bits.kv_indptr = no_prefixes;
  bits.tree_encoding = KDTREE_TREE_ANCESTOR_BITS;
  bits.ancestor_bits = compile.ancestor_bits;
  bits.bits_stride = batch.words;
  require(kdtree_tree_from_mask(&bits, parents) == KDTREE_OK);
  require(same(parents, batch.parents, batch.rows));
}

void read_links(const Batch& batch, Input& input) {
  auto p = KDTREE_INIT(kdtree_tree_from_retrieve_params);
  p.qo_indptr = batch.qo_indptr;
  p.batch = batch.requests;
  if (input.flag()) p.retrieve_index = input.small_array<int64_t>(batch.rows, 0, batch.rows);
  p.retrieve_next_token = input.small_array<int64_t>(batch.rows, -1, batch.rows);
  p.retrieve_next_sibling = input.small_array<int64_t>(batch.rows, -1, batch.rows);
  p.parents = input.array<int32_t>(batch.rows);
  (void)kdtree_tree_from_retrieve(&p);
}

// A mask whose rows lie in exactly the bytes that the layout says.
void read_mask(const Batch& batch, Input& input) {
  auto p = KDTREE_INIT(kdtree_verify_attn_params);
  int64_t prefix = 0;
  int32_t* kv_indptr = input.indptr<int32_t>(batch.requests, 3, prefix);
  p.batch = batch.requests;
  p.indptr_dtype = KDTREE_DTYPE_I32;
  p.qo_indptr = batch.qo_indptr;
  p.kv_indptr = kv_indptr;
  p.tree_encoding = KDTREE_TREE_BOOL_MASK;
  p.mask_skip_prefix = input.number<int32_t>(0, 1);
  p.mask_row_stride = input.range(0, 1) == 0 ? 0 : input.number<int64_t>(0, 100);
  p.mask_column_offset = p.mask_row_stride == 0 ? 0 : input.number<int64_t>(-1, 10);
  int64_t* mask_indptr = input.array<int64_t>(batch.requests);
  int64_t bytes = 0;
  for (int32_t r = 0; batch.rows > 0 && kv_indptr != nullptr && mask_indptr != nullptr && r < batch.requests;
       ++r) {
    mask_indptr[r] = bytes;
    const int64_t nodes = batch.qo_indptr[r + 1] - batch.qo_indptr[r];
    const int64_t row =
        p.mask_row_stride != 0 ? p.mask_row_stride : int64_t{kv_indptr[r + 1]} - kv_indptr[r] + nodes;
    bytes = kdtree::saturating_add(bytes, kdtree::saturating_mul(nodes, std::max<int64_t>(row, 0)));
  }
  p.mask_indptr = mask_indptr;
  p.mask = input.small_array<uint8_t>(bytes, 0, 1);
  (void)kdtree_tree_from_mask(&p, input.array<int32_t>(batch.rows));

  p.tree_encoding = KDTREE_TREE_ANCESTOR_BITS;
  p.bits_stride = std::max<int64_t>(batch.words, 1);
  p.ancestor_bits = input.array<uint64_t>(batch.rows * p.bits_stride);
  (void)kdtree_tree_from_mask(&p, input.array<int32_t>(batch.rows));
}

void accept_and_plan(const Batch& batch, Input& input) {
  auto accept = KDTREE_INIT(kdtree_tree_accept_params);
  accept.qo_indptr = batch.qo_indptr;
  accept.batch = batch.requests;
  accept.parents = batch.parents;
  accept.tokens = input.small_array<int32_t>(batch.rows, 0, 4);
  accept.target_tokens = input.small_array<int32_t>(batch.rows, 0, 4);
  accept.num_eos = input.range(0, 2);
  accept.eos_tokens = input.small_array<int32_t>(accept.num_eos, 0, 4);
  if (input.flag()) accept.max_tokens = input.small_array<int32_t>(batch.requests, 1, 5);
  accept.path_stride = input.range(0, 20);
  const int64_t cells = batch.requests * accept.path_stride;
  accept.accept_path = input.array<int32_t>(cells);
  accept.accept_count = input.array<int32_t>(batch.requests);
  accept.emitted_tokens = input.array<int32_t>(cells);
  accept.next_root = input.array<int32_t>(batch.requests);
  if (input.flag()) accept.finish_reasons = input.array<int32_t>(batch.requests);
  const bool accepted = kdtree_tree_accept(&accept) == KDTREE_OK;
  if (accepted && batch.requests > 0) {
    for (int32_t r = 0; r < batch.requests; ++r)
      require(accept.accept_count[r] >= 0 && accept.accept_count[r] <= accept.path_stride);
  }

  // The plan of an accepted path, or of whatever the input holds.
  auto plan = KDTREE_INIT(kdtree_compaction_plan_params);
  plan.qo_indptr = batch.qo_indptr;
  plan.batch = batch.requests;
  plan.path_stride = accept.path_stride;
  plan.accept_path = accepted ? accept.accept_path : input.small_array<int32_t>(cells, -1, 5);
  plan.accept_count = accepted ? accept.accept_count : input.small_array<int32_t>(batch.requests, 0, 5);
  plan.slot_dtype = KDTREE_DTYPE_I64;
  plan.draft_slots = input.small_array<int64_t>(batch.rows, 0, 100);
  if (input.flag()) {
    plan.page_table_stride = input.range(1, 5);
    plan.page_table = input.small_array<int32_t>(batch.requests * plan.page_table_stride, 0, 9);
    plan.page_size = input.range(1, 8);
    plan.start_positions = input.small_array<int64_t>(batch.requests, 0, 20);
  }
  plan.capacity = input.range(0, 40);
  plan.src = input.array<int64_t>(plan.capacity);
  plan.dst = input.array<int64_t>(plan.capacity);
  plan.move_indptr = input.array<int32_t>(int64_t{batch.requests} + 1);
  size_t bytes = 0;
  if (kdtree_compaction_plan_workspace_size(&plan, &bytes) != KDTREE_OK) return;
  void* workspace = input.workspace(bytes);
  if (kdtree_compaction_plan(&plan, workspace, bytes, nullptr) == KDTREE_OK) {
    require(plan.move_indptr[batch.requests] <= plan.capacity);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  Batch batch{};
  batch.requests = input.range(0, 3);
  batch.qo_indptr = input.indptr<int32_t>(batch.requests, input.flag() ? 70 : 6, batch.rows);
  batch.words = input.range(0, 2);
  batch.parents = input.array<int32_t>(batch.rows);
  // Mostly trees: each parent before its child.
  for (int32_t r = 0; batch.rows > 0 && batch.parents != nullptr && r < batch.requests; ++r) {
    for (int32_t t = batch.qo_indptr[r]; t < batch.qo_indptr[r + 1]; ++t) {
      const int32_t node = t - batch.qo_indptr[r];
      batch.parents[t] = node == 0 ? -1 : input.range(0, node - 1);
      if (input.range(0, 63) == 0) batch.parents[t] = input.number<int32_t>();
    }
  }
  if (is_valid(batch, input)) check_round_trips(batch, input);
  read_links(batch, input);
  read_mask(batch, input);
  accept_and_plan(batch, input);
  return 0;
}
