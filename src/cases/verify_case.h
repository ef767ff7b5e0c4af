// Random verify problems from a seed: what the shared case table of the tests, `kdtree make-case` and
// `kdtree bench` are made of.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/owned_problem.h"
#include "core/status.h"
#include "tree/draft_tree.h"

namespace kdtree {

enum class TreeShape { chain, star, comb, binary, random };

Result<TreeShape> parse_tree_shape(const std::string& name);
const char* tree_shape_name(TreeShape shape);

struct RequestSpec {
  int64_t prefix_length = 0;
  int64_t nodes = 1;
  TreeShape shape = TreeShape::random;
  int64_t padding_rows = 0;  // of `nodes`, the last ones that are padding
};

struct CaseSpec {
  std::string name;
  uint64_t seed = 1;
  int32_t heads = 8;
  int32_t latent_dim = 512;
  int32_t rope_dim = 64;
  DType q_dtype = DType::bf16;
  DType kv_dtype = DType::bf16;
  DType out_dtype = DType::bf16;
  DType index_dtype = DType::i32;   // kv_indices, draft_slots
  DType indptr_dtype = DType::i32;  // qo_indptr, kv_indptr
  int32_t tree_encoding = KDTREE_TREE_ANCESTOR_BITS;
  int32_t draft_location = KDTREE_DRAFT_IN_POOL;
  bool contiguous = false;     // prefixes lie at the pool's beginning, without kv_indices
  int64_t page_size = 1;       // slots of a request are runs of this length, in random order
  int64_t spare_slots = 7;     // pool rows that no request uses: NaN, to catch reads of unwritten slots
  int64_t stride_padding = 0;  // elements added to each row of q, kv, draft_kv, out and lse
  float logit_cap = 0.0f;
  float scale = 0.0f;  // 0 = (latent_dim + rope_dim) based default of the generator
  bool want_lse = true;
  std::vector<RequestSpec> requests;
};

struct VerifyCase {
  CaseSpec spec;
  OwnedProblem problem;
  std::vector<DraftTree> trees;  // one a request, padding rows left out
};

// Deterministic in `spec` on every platform. Errors: KDTREE_INVALID_ARGUMENT for a spec that no problem fits.
// `progress` sees the KV rows made; when it stops the work, the case is incomplete.
Result<VerifyCase> make_verify_case(const CaseSpec& spec, const Progress& progress = {});

}  // namespace kdtree
