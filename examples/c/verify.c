/* One round of tree-speculative decoding through the C ABI, on the CPU:
 *
 *   candidates -> draft tree -> ancestor bits -> verify attention -> accepted path -> compaction
 *
 * The target "model" of this example counts: after token t comes t + 1. The attention is real, over random
 * queries and keys, and is checked against a plain loop. Build it with
 *
 *   cc -std=c99 verify.c $(pkg-config --cflags --libs kdtree) -lm -o verify
 */
#include <kdtree/kdtree.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every call that returns a status goes through here. */
#define CHECK(call)                                                                  \
  do {                                                                               \
    const int32_t status = (call);                                                   \
    if (status != KDTREE_OK) {                                                       \
      char message[512];                                                             \
      kdtree_last_error(message, sizeof message);                                    \
      fprintf(stderr, "%s\n  %s: %s\n", #call, kdtree_status_name(status), message); \
      exit(EXIT_FAILURE);                                                            \
    }                                                                                \
  } while (0)

/* What the drafter proposes: the 3 best tokens for each of the next 3 positions. */
enum { DEPTH = 3, K = 3, BUDGET = 8, MAX_NODES = BUDGET + 1 };

/* A small latent KV cache: pages of 8 rows. */
enum { HEADS = 4, LATENT = 32, ROPE = 16, ROW = LATENT + ROPE };
enum { PAGE_SIZE = 8, PAGES = 12, SLOTS = PAGES * PAGE_SIZE, PREFIX = 37 };
static const int32_t page_table[] = {5, 2, 9, 0, 7, 3};
static const int64_t first_draft_slot = 10 * PAGE_SIZE; /* two pages for the nodes of the tree */

static float kv[SLOTS][ROW];
static float q[MAX_NODES][HEADS][ROW];
static float out[MAX_NODES][HEADS][LATENT];
static float lse[MAX_NODES][HEADS];

static const float scale = 0.125f;

static void fill_random(float* values, size_t count) {
  for (size_t i = 0; i < count; ++i)
    values[i] = (float)rand() / (float)RAND_MAX - 0.5f;
}

static int32_t slot_of_position(int64_t position) {
  return page_table[position / PAGE_SIZE] * PAGE_SIZE + (int32_t)(position % PAGE_SIZE);
}

/* Grows one scratch buffer to what a *_workspace_size call asked for. A server does this once, for its
 * largest batch, and passes the same bytes to every later call. Workspaces are aligned to 64 bytes. */
static struct {
  void* block;
  void* aligned;
  size_t bytes;
} workspace;

static void reserve_workspace(size_t bytes) {
  if (bytes <= workspace.bytes) return;
  free(workspace.block);
  workspace.block = malloc(bytes + 63);
  if (workspace.block == NULL) {
    fprintf(stderr, "out of memory: %zu bytes of workspace\n", bytes);
    exit(EXIT_FAILURE);
  }
  workspace.aligned = (void*)(((uintptr_t)workspace.block + 63) & ~(uintptr_t)63);
  workspace.bytes = bytes;
}

/* softmax(scale q k) v of one row and head, over the prefix and the row's ancestors: the definition.
 * Returns the largest difference from what the library answered. */
static double difference_from_definition(int32_t node, int32_t head, const int32_t* parents) {
  double weight[PREFIX + MAX_NODES];
  const float* rows[PREFIX + MAX_NODES];
  double total = 0, worst = 0;
  int count = 0;
  for (int p = 0; p < PREFIX; ++p)
    rows[count++] = kv[slot_of_position(p)];
  for (int32_t i = node; i >= 0; i = parents[i])
    rows[count++] = kv[first_draft_slot + i];

  for (int c = 0; c < count; ++c) {
    double score = 0;
    for (int d = 0; d < ROW; ++d)
      score += (double)q[node][head][d] * rows[c][d];
    weight[c] = exp(scale * score);
    total += weight[c];
  }
  for (int d = 0; d < LATENT; ++d) {
    double value = 0;
    for (int c = 0; c < count; ++c)
      value += weight[c] / total * rows[c][d];
    worst = fmax(worst, fabs(value - out[node][head][d]));
  }
  return fmax(worst, fabs(log(total) - lse[node][head]));
}

int main(void) {
  size_t bytes = 0;

  if (kdtree_abi_version() != KDTREE_ABI_VERSION) {
    fprintf(stderr, "kdtree.h has ABI version %u, the library %u\n", KDTREE_ABI_VERSION,
            (unsigned)kdtree_abi_version());
    return EXIT_FAILURE;
  }
  printf("kdtree %s\n", kdtree_version());

  /* 1. The draft tree: the most probable prefixes, at most BUDGET nodes besides the root. A batch of one
   * request here; arrays of a larger batch are concatenated, and qo_indptr says where each request starts. */
  const int32_t candidates[DEPTH][K] = {{43, 60, 80}, {61, 44, 81}, {45, 62, 82}};
  const double probability[DEPTH][K] = {{0.7, 0.2, 0.1}, {0.5, 0.4, 0.1}, {0.8, 0.1, 0.1}};
  float log_probs[DEPTH][K];
  for (int d = 0; d < DEPTH; ++d)
    for (int r = 0; r < K; ++r)
      log_probs[d][r] = (float)log(probability[d][r]);

  const int32_t root_token = 42; /* the last token that is certain */
  int32_t qo_indptr[2], tokens[MAX_NODES], parents[MAX_NODES], depths[MAX_NODES];

  kdtree_tree_build_params build = KDTREE_INIT(kdtree_tree_build_params);
  build.tokens = candidates[0];
  build.log_probs = log_probs[0];
  build.root_tokens = &root_token;
  build.batch = 1;
  build.depth = DEPTH;
  build.k = K;
  build.node_budget = BUDGET;
  build.capacity = MAX_NODES;
  build.qo_indptr = qo_indptr;
  build.out_tokens = tokens;
  build.out_parents = parents;
  build.out_depths = depths;
  CHECK(kdtree_tree_build_workspace_size(&build, &bytes));
  reserve_workspace(bytes);
  CHECK(kdtree_tree_build(&build, workspace.aligned, workspace.bytes, NULL));

  const int32_t nodes = qo_indptr[1];
  printf("draft tree of %d nodes:\n", nodes);
  for (int32_t i = 0; i < nodes; ++i)
    printf("  %*snode %d: token %d, parent %d\n", 2 * depths[i], "", i, tokens[i], parents[i]);

  /* 2. What the target's forward pass needs: a position for each row (for its rotary embedding) and the
   * ancestor bits, the tree's part of the attention mask. */
  const int64_t start = PREFIX; /* the root comes right after the committed prefix */
  int64_t positions[MAX_NODES];
  uint64_t ancestor_bits[MAX_NODES];

  kdtree_tree_compile_params compile = KDTREE_INIT(kdtree_tree_compile_params);
  compile.qo_indptr = qo_indptr;
  compile.parents = parents;
  compile.start_positions = &start;
  compile.batch = 1;
  compile.bits_stride = 1; /* 64-bit words a row */
  compile.positions = positions;
  compile.ancestor_bits = ancestor_bits;
  CHECK(kdtree_tree_compile(&compile));

  /* 3. Verify attention: every node against the whole prefix and its own ancestors. The engine has written
   * the nodes' KV rows to slots of the pool, wherever there was room. */
  fill_random(kv[0], sizeof kv / sizeof(float));
  fill_random(q[0][0], sizeof q / sizeof(float));
  const int32_t kv_indptr[2] = {0, PREFIX};
  int32_t prefix_slots[PREFIX], draft_slots[MAX_NODES];
  for (int p = 0; p < PREFIX; ++p)
    prefix_slots[p] = slot_of_position(p);
  for (int32_t i = 0; i < nodes; ++i)
    draft_slots[i] = (int32_t)first_draft_slot + i;

  kdtree_verify_attn_params verify = KDTREE_INIT(kdtree_verify_attn_params);
  verify.batch = 1;
  verify.heads = HEADS;
  verify.latent_dim = LATENT;
  verify.rope_dim = ROPE;
  verify.backend = KDTREE_BACKEND_CPU;
  verify.plan = KDTREE_PLAN_INVARIANT;
  verify.scale = scale;
  verify.q_dtype = KDTREE_DTYPE_F32;
  verify.out_dtype = KDTREE_DTYPE_F32;
  verify.q = q;
  verify.out = out;
  verify.lse = lse;
  verify.indptr_dtype = KDTREE_DTYPE_I32;
  verify.qo_indptr = qo_indptr;
  verify.kv_indptr = kv_indptr;
  verify.kv = kv;
  verify.kv_slots = SLOTS;
  verify.kv_dtype = KDTREE_DTYPE_F32;
  verify.kv_indices = prefix_slots;
  verify.kv_indices_dtype = KDTREE_DTYPE_I32;
  verify.draft_location = KDTREE_DRAFT_IN_POOL;
  verify.draft_slots = draft_slots;
  verify.tree_encoding = KDTREE_TREE_ANCESTOR_BITS;
  verify.ancestor_bits = ancestor_bits;
  CHECK(kdtree_verify_attn_workspace_size(&verify, &bytes));
  reserve_workspace(bytes);
  CHECK(kdtree_verify_attn(&verify, workspace.aligned, workspace.bytes, NULL));

  double worst = 0;
  for (int32_t i = 0; i < nodes; ++i)
    for (int32_t h = 0; h < HEADS; ++h)
      worst = fmax(worst, difference_from_definition(i, h, parents));
  printf("verify attention: %d rows, %d heads, largest difference from the definition %.1e\n", nodes, HEADS,
         worst);
  if (!(worst < 1e-5)) {
    fprintf(stderr, "that is more than rounding\n");
    return EXIT_FAILURE;
  }

  /* 4. The longest path that the target agrees with. The rest of the target's layers would turn `out` into
   * logits and those into one token a row; this target counts. */
  int32_t target_tokens[MAX_NODES];
  for (int32_t i = 0; i < nodes; ++i)
    target_tokens[i] = tokens[i] + 1;
  int32_t path[DEPTH + 1], emitted[DEPTH + 1], accepted = 0, next_root = 0;

  kdtree_tree_accept_params accept = KDTREE_INIT(kdtree_tree_accept_params);
  accept.qo_indptr = qo_indptr;
  accept.tokens = tokens;
  accept.parents = parents;
  accept.target_tokens = target_tokens;
  accept.batch = 1;
  accept.path_stride = DEPTH + 1;
  accept.accept_path = path;
  accept.accept_count = &accepted;
  accept.emitted_tokens = emitted;
  accept.next_root = &next_root;
  CHECK(kdtree_tree_accept(&accept));

  printf("accepted %d tokens:", accepted);
  for (int32_t j = 0; j < accepted; ++j)
    printf(" %d", emitted[j]);
  printf(" (path of nodes");
  for (int32_t j = 0; j < accepted; ++j)
    printf(" %d", path[j]);
  printf("), next root %d\n", next_root);

  /* 5. Compaction: the accepted rows become the next committed positions. */
  int64_t src[DEPTH + 1], dst[DEPTH + 1];
  int32_t move_indptr[2];

  kdtree_compaction_plan_params plan = KDTREE_INIT(kdtree_compaction_plan_params);
  plan.qo_indptr = qo_indptr;
  plan.accept_path = path;
  plan.accept_count = &accepted;
  plan.draft_slots = draft_slots;
  plan.slot_dtype = KDTREE_DTYPE_I32;
  plan.start_positions = &start;
  plan.page_table = page_table;
  plan.page_table_stride = (int64_t)(sizeof page_table / sizeof page_table[0]);
  plan.path_stride = DEPTH + 1;
  plan.page_size = PAGE_SIZE;
  plan.batch = 1;
  plan.capacity = DEPTH + 1;
  plan.src = src;
  plan.dst = dst;
  plan.move_indptr = move_indptr;
  CHECK(kdtree_compaction_plan_workspace_size(&plan, &bytes));
  reserve_workspace(bytes);
  CHECK(kdtree_compaction_plan(&plan, workspace.aligned, workspace.bytes, NULL));

  void* const layers[1] = {kv}; /* a model has one pool a layer, and the same moves for all of them */
  kdtree_kv_compact_params compact = KDTREE_INIT(kdtree_kv_compact_params);
  compact.layers = layers;
  compact.num_layers = 1;
  compact.src = src;
  compact.dst = dst;
  compact.moves = move_indptr[1];
  compact.slots = SLOTS;
  compact.row_bytes = sizeof kv[0];
  CHECK(kdtree_kv_compact_workspace_size(&compact, &bytes));
  reserve_workspace(bytes);
  CHECK(kdtree_kv_compact(&compact, workspace.aligned, workspace.bytes, NULL));

  printf("committed:");
  for (int32_t j = 0; j < accepted; ++j) {
    const int32_t slot = slot_of_position(start + j);
    printf(" position %d in slot %d%s", PREFIX + j, slot, j + 1 < accepted ? "," : "\n");
    if (memcmp(kv[slot], kv[draft_slots[path[j]]], sizeof kv[0]) != 0) {
      fprintf(stderr, "slot %d does not hold the row of node %d\n", slot, path[j]);
      return EXIT_FAILURE;
    }
  }

  free(workspace.block);
  return accepted == 4 && next_root == 46 ? EXIT_SUCCESS : EXIT_FAILURE;
}
