/* Builds the smallest tree through the installed library. */
#include <kdtree/kdtree.h>
#include <stdio.h>

int main(void) {
  const int32_t qo_indptr[] = {0, 3};
  const int32_t parents[] = {-1, 0, 0};
  int32_t depths[3] = {-1, -1, -1};
  kdtree_tree_compile_params params = KDTREE_INIT(kdtree_tree_compile_params);
  params.qo_indptr = qo_indptr;
  params.parents = parents;
  params.batch = 1;
  params.depths = depths;

  if (kdtree_abi_version() != KDTREE_ABI_VERSION) {
    fprintf(stderr, "ABI version %u, expected %u\n", (unsigned)kdtree_abi_version(), KDTREE_ABI_VERSION);
    return 1;
  }
  if (kdtree_tree_compile(&params) != KDTREE_OK || depths[0] != 0 || depths[1] != 1 || depths[2] != 1) {
    char message[256];
    kdtree_last_error(message, sizeof message);
    fprintf(stderr, "kdtree_tree_compile: depths %d %d %d, message '%s'\n", depths[0], depths[1], depths[2],
            message);
    return 1;
  }
  printf("kdtree %s works\n", kdtree_version());
  return 0;
}
