/* Compiled as C and as C++ by tests/abi/header: everything in the header that is not a plain declaration. */
#include "kdtree/kdtree.h"

typedef struct every_block {
  kdtree_top_k_params top_k;
  kdtree_tree_build_params tree_build;
  kdtree_tree_validate_params tree_validate;
  kdtree_tree_compile_params tree_compile;
  kdtree_tree_from_retrieve_params tree_from_retrieve;
  kdtree_tree_accept_params tree_accept;
  kdtree_compaction_plan_params compaction_plan;
  kdtree_kv_compact_params kv_compact;
  kdtree_verify_attn_params verify_attn;
  kdtree_backend_info backend_info;
} every_block;

int32_t use_header(void);

int32_t use_header(void) {
  kdtree_verify_attn_params params = KDTREE_INIT(kdtree_verify_attn_params);
  size_t bytes = sizeof(every_block);
  params.tree_encoding = KDTREE_TREE_PARENTS;
  if (kdtree_abi_version() != KDTREE_ABI_VERSION) return KDTREE_UNSUPPORTED;
  return kdtree_verify_attn_workspace_size(&params, &bytes) + KDTREE_PARENT_PADDING;
}
