/* kdtree-engine: tree-speculative decoding for multi-head latent attention (MLA).
 *
 * The C ABI, and the only installed header. Compiles as C99, C++17 and C++20.
 *
 * Conventions
 *   - Every parameter block starts with {struct_size, flags, next}. KDTREE_INIT(type)
 *     makes a zeroed block with its size set; zero in any other field means "the default". Fields are
 * appended, never moved, so a caller built against an older header keeps working. `flags` and `next` are
 * reserved: zero.
 *   - Functions return KDTREE_OK or a status code; kdtree_last_error() then holds a message for the
 *     calling thread that names the field, the value seen and what was expected. Nothing aborts and
 *     no exception crosses this boundary. After an error the outputs hold unspecified values; the
 *     inputs are untouched.
 *   - Ragged batches: request r owns rows qo_indptr[r] .. qo_indptr[r+1]-1 of every [T, ...] array,
 *     T = qo_indptr[b]. Inside a request nodes are numbered from 0 (its root); parents are such
 *     local numbers. Topological order is required: parent < child.
 *   - Strides count elements, not bytes, unless the name says bytes. A stride of 0 means contiguous.
 *   - Scratch memory: ask *_workspace_size, pass at least that many bytes (64-byte aligned) and reuse
 *     them. Calls with a workspace neither allocate nor keep pointers. Host functions ignore `stream`.
 *   - Every function may be called from any thread; two concurrent calls must not share a workspace
 *     or an output.
 */
#ifndef KDTREE_KDTREE_H_
#define KDTREE_KDTREE_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define KDTREE_API
#else
#define KDTREE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
#define KDTREE_NOEXCEPT noexcept
extern "C" {
#else
#define KDTREE_NOEXCEPT
#endif

/* ---- version ------------------------------------------------------------------------------- */

#define KDTREE_VERSION_MAJOR 0
#define KDTREE_VERSION_MINOR 1
#define KDTREE_VERSION_PATCH 0
/* Grows by one whenever an existing symbol or field changes meaning; appending does not change it. */
#define KDTREE_ABI_VERSION 1u

/* The KDTREE_ABI_VERSION the library was built with. Refuse to go on when it differs from yours. */
KDTREE_API uint32_t kdtree_abi_version(void) KDTREE_NOEXCEPT;
/* "0.1.0". Static storage. */
KDTREE_API const char* kdtree_version(void) KDTREE_NOEXCEPT;

/* ---- parameter blocks ---------------------------------------------------------------------- */

/* Fields every parameter block starts with. */
#define KDTREE_STRUCT_HEADER \
  uint32_t struct_size;      \
  uint32_t flags;            \
  const void* next

/* A zeroed block with its size set: `kdtree_top_k_params p = KDTREE_INIT(kdtree_top_k_params);` */
#ifdef __cplusplus
} /* extern "C" */
template <class Params>
inline Params kdtree_init() noexcept {
  Params params{};
  params.struct_size = static_cast<uint32_t>(sizeof(Params));
  return params;
}
#define KDTREE_INIT(type) kdtree_init<type>()
extern "C" {
#else
#define KDTREE_INIT(type) \
  { .struct_size = (uint32_t)sizeof(type) }
#endif

/* ---- status -------------------------------------------------------------------------------- */

#define KDTREE_OK 0
/* 1000: the arguments are wrong */
#define KDTREE_INVALID_ARGUMENT 1000 /* a field's value; the message names it */
#define KDTREE_INVALID_STRUCT 1001   /* struct_size, flags or next */
#define KDTREE_INVALID_TREE 1002     /* cycle, forward parent, duplicate sibling, wrong depth */
#define KDTREE_NOT_A_NUMBER 1003     /* NaN (or +inf) where a number is needed */
#define KDTREE_INVALID_FILE 1004     /* malformed file contents */
/* 2000: right, but not here */
#define KDTREE_UNSUPPORTED 2000
#define KDTREE_BACKEND_UNAVAILABLE 2001
/* 3000: resources */
#define KDTREE_OUT_OF_MEMORY 3000
#define KDTREE_WORKSPACE_TOO_SMALL 3001
#define KDTREE_BUFFER_TOO_SMALL 3002
#define KDTREE_IO_ERROR 3003
/* 4000: CUDA */
#define KDTREE_CUDA_ERROR 4000
/* 9000: a defect of the library; please report it */
#define KDTREE_INTERNAL_ERROR 9000

/* "KDTREE_INVALID_TREE"; "KDTREE_UNKNOWN_STATUS" for a code this library does not define. Static. */
KDTREE_API const char* kdtree_status_name(int32_t status) KDTREE_NOEXCEPT;

/* Copies the calling thread's message of its last failed call, cut to `capacity` - 1 bytes and
 * NUL-terminated. A successful call leaves the message alone. Returns the full length without the NUL
 * (0 when no call has failed on this thread); `buffer` may be NULL when `capacity` is 0. */
KDTREE_API size_t kdtree_last_error(char* buffer, size_t capacity) KDTREE_NOEXCEPT;

/* ---- element types ------------------------------------------------------------------------- */

#define KDTREE_DTYPE_F32 1
#define KDTREE_DTYPE_F16 2
#define KDTREE_DTYPE_BF16 3
#define KDTREE_DTYPE_F64 4  /* oracle only */
#define KDTREE_DTYPE_E4M3 5 /* OCP FP8 E4M3 (no infinities); KV only, see kv_scale */
#define KDTREE_DTYPE_I32 16
#define KDTREE_DTYPE_I64 17

/* ---- draft trees --------------------------------------------------------------------------- */

/* Best k tokens of each row of logits, with their log-probabilities.
 * Order: larger logit first, the smaller token id among equals. -inf is never chosen: rows with fewer
 * than k finite logits are filled up with token -1, log-probability -inf.
 * log_prob = logit - logsumexp(row), the sum in double over fixed lanes: the same bits on every SIMD target.
 * Errors: KDTREE_NOT_A_NUMBER (NaN or +inf: names row and token), KDTREE_INVALID_ARGUMENT. */
typedef struct kdtree_top_k_params {
  KDTREE_STRUCT_HEADER;
  const void* logits;   /* [rows, vocab] f32 or bf16 */
  int64_t rows;         /* >= 0 */
  int64_t row_stride;   /* elements; 0 = vocab */
  int32_t logits_dtype; /* KDTREE_DTYPE_F32 | KDTREE_DTYPE_BF16 */
  int32_t vocab;        /* 1 .. 2^31-1 */
  int32_t k;            /* 1 .. vocab */
  int32_t reserved0;
  int32_t* tokens;  /* out [rows, k] */
  float* log_probs; /* out [rows, k]; NULL = not wanted, which saves a pass over the row */
} kdtree_top_k_params;

KDTREE_API int32_t kdtree_top_k_workspace_size(const kdtree_top_k_params* params,
                                               size_t* bytes) KDTREE_NOEXCEPT;
/* Capturable: no (host). */
KDTREE_API int32_t kdtree_top_k(const kdtree_top_k_params* params, void* workspace, size_t bytes,
                                void* stream) KDTREE_NOEXCEPT;

/* DDTree (arXiv 2604.12989): the node_budget most probable prefixes under the product of the
 * per-position distributions, found best-first. Node 0 is the root; the other nodes follow in order of
 * decreasing log-weight, ties in lexicographic order of the ranks along the path. A node's log-weight
 * is a double: child of p at depth d: w(p) + lp[d][0]; next sibling: (w - lp[d][r]) + lp[d][r+1].
 * A log-probability of -inf ends its position's list.
 * Errors: KDTREE_NOT_A_NUMBER, KDTREE_INVALID_ARGUMENT (increasing or positive log-probabilities; among the
 * candidates that become nodes, a token twice in one position or a negative one), KDTREE_BUFFER_TOO_SMALL
 * (names the nodes needed). */
typedef struct kdtree_tree_build_params {
  KDTREE_STRUCT_HEADER;
  const int32_t* tokens;       /* [b, depth, k] candidates, best first */
  const float* log_probs;      /* [b, depth, k] non-increasing in k, <= 0 */
  const int32_t* root_tokens;  /* [b] token of node 0: the last committed ("bonus") token */
  const int32_t* node_budgets; /* [b] nodes besides the root, >= 0; NULL = node_budget for all */
  int32_t batch;               /* >= 0 */
  int32_t depth;               /* positions, >= 0 */
  int32_t k;                   /* candidates a position, >= 1 */
  int32_t node_budget;         /* >= 0; used where node_budgets is NULL */
  int64_t capacity;            /* nodes that the [T] outputs hold */
  int32_t* qo_indptr;          /* out [b+1] */
  int32_t* out_tokens;         /* out [T] */
  int32_t* out_parents;        /* out [T], local; -1 for the root */
  int32_t* out_depths;         /* out [T], 0 for the root */
  double* out_log_weights;     /* out [T], 0 for the root; NULL = not wanted */
} kdtree_tree_build_params;

KDTREE_API int32_t kdtree_tree_build_workspace_size(const kdtree_tree_build_params* params,
                                                    size_t* bytes) KDTREE_NOEXCEPT;
/* Capturable: no (host). */
KDTREE_API int32_t kdtree_tree_build(const kdtree_tree_build_params* params, void* workspace, size_t bytes,
                                     void* stream) KDTREE_NOEXCEPT;

/* Checks trees: parent[0] == -1, 0 <= parent[i] < i for every other node, depths (when given) one more
 * than the parent's, tokens (when given) distinct among siblings.
 * Errors: KDTREE_INVALID_TREE naming request and node. */
typedef struct kdtree_tree_validate_params {
  KDTREE_STRUCT_HEADER;
  const int32_t* qo_indptr; /* [b+1] */
  const int32_t* parents;   /* [T] */
  const int32_t* depths;    /* [T] or NULL */
  const int32_t* tokens;    /* [T] or NULL */
  int32_t batch;
  int32_t reserved0;
} kdtree_tree_validate_params;

KDTREE_API int32_t kdtree_tree_validate(const kdtree_tree_validate_params* params) KDTREE_NOEXCEPT;

/* Parents to everything a verify pass needs. Each output may be NULL (not wanted).
 * The trees are validated first (as kdtree_tree_validate without depths and tokens). */
typedef struct kdtree_tree_compile_params {
  KDTREE_STRUCT_HEADER;
  const int32_t* qo_indptr;       /* [b+1] */
  const int32_t* parents;         /* [T] local; NULL = every request is a chain */
  const int64_t* start_positions; /* [b] position of the root (= committed length), >= 0; NULL = 0 */
  int32_t batch;
  int32_t reserved0;
  int64_t bits_stride;            /* 64-bit words a row of ancestor_bits; 0 = ceil(max N / 64) */
  int32_t* depths;                /* out [T] */
  int64_t* positions;             /* out [T]: start_positions[r] + depth */
  uint64_t* ancestor_bits;        /* out [T, bits_stride]: bits[i] = bits[parent] | 1 << i */
  int64_t* retrieve_index;        /* out [T]: the global row, qo_indptr[r] + i (SGLang) */
  int64_t* retrieve_next_token;   /* out [T]: first child, local; -1 none (SGLang) */
  int64_t* retrieve_next_sibling; /* out [T]: next sibling, local; -1 none (SGLang) */
} kdtree_tree_compile_params;

/* Capturable: no (host). */
KDTREE_API int32_t kdtree_tree_compile(const kdtree_tree_compile_params* params) KDTREE_NOEXCEPT;

/* SGLang's child/sibling links back to parents. Every node must be reachable from node 0, once.
 * Errors: KDTREE_INVALID_TREE (cycle, shared or unreachable node, child before its parent). */
typedef struct kdtree_tree_from_retrieve_params {
  KDTREE_STRUCT_HEADER;
  const int32_t* qo_indptr;             /* [b+1] */
  const int64_t* retrieve_index;        /* [T], must be the global row; NULL = not checked */
  const int64_t* retrieve_next_token;   /* [T] local, -1 none */
  const int64_t* retrieve_next_sibling; /* [T] local, -1 none */
  int32_t batch;
  int32_t reserved0;
  int32_t* parents; /* out [T] */
} kdtree_tree_from_retrieve_params;

KDTREE_API int32_t kdtree_tree_from_retrieve(const kdtree_tree_from_retrieve_params* params) KDTREE_NOEXCEPT;

/* The longest path the target agrees with. One target token a row: its argmax (greedy) or an
 * independent draw from the target's distribution at that row (sampled); both are lossless, because
 * every emitted token is the target's own on its own path.
 * Walk: from the root to the child whose token is the current row's target token, until none is; that
 * last target token is the bonus. Emitted: the path's tokens after the root, then the bonus.
 * Truncation: after an EOS token, or after max_tokens tokens, the rest is dropped. Always
 * accept_count == number of emitted tokens (the field's tau): rows path[0 .. accept_count-1] are to be
 * committed, and the last emitted token is the next round's root. */
typedef struct kdtree_tree_accept_params {
  KDTREE_STRUCT_HEADER;
  const int32_t* qo_indptr;     /* [b+1] */
  const int32_t* tokens;        /* [T] */
  const int32_t* parents;       /* [T] */
  const int32_t* target_tokens; /* [T] */
  const int32_t* eos_tokens;    /* [num_eos]; may be NULL when num_eos is 0 */
  const int32_t* max_tokens;    /* [b] tokens that may still be emitted, >= 1; NULL = no limit */
  int32_t batch;
  int32_t num_eos;
  int64_t path_stride;     /* columns of accept_path, >= longest accepted path */
  int32_t* accept_path;    /* out [b, path_stride] local node numbers, root first, padded with -1 */
  int32_t* accept_count;   /* out [b] */
  int32_t* emitted_tokens; /* out [b, path_stride], padded with -1 */
  int32_t* next_root;      /* out [b] the last emitted token */
  int32_t* finish_reasons; /* out [b] KDTREE_FINISH_*; NULL = not wanted */
} kdtree_tree_accept_params;

#define KDTREE_FINISH_NONE 0
#define KDTREE_FINISH_EOS 1    /* the last emitted token ends the text */
#define KDTREE_FINISH_LENGTH 2 /* max_tokens reached (and the last token is not an EOS) */

/* Capturable: no (host). */
KDTREE_API int32_t kdtree_tree_accept(const kdtree_tree_accept_params* params) KDTREE_NOEXCEPT;

/* Which KV rows move where so that the accepted path becomes contiguous committed positions.
 * Row path[j] of request r (in slot draft_slots[qo_indptr[r] + path[j]]) goes to position start + j.
 * That position's slot: page_table[r][p / page_size] * page_size + p % page_size; without a page table,
 * slot j of the request's own draft window. Moves onto themselves are left out.
 * Errors: KDTREE_INVALID_ARGUMENT (a path that does not start at node 0 or does not increase, a negative
 * slot, two rows with one destination), KDTREE_BUFFER_TOO_SMALL. */
typedef struct kdtree_compaction_plan_params {
  KDTREE_STRUCT_HEADER;
  const int32_t* qo_indptr;       /* [b+1] */
  const int32_t* accept_path;     /* [b, path_stride] */
  const int32_t* accept_count;    /* [b] */
  const void* draft_slots;        /* [T] i32 or i64 */
  const int64_t* start_positions; /* [b]; required with page_table */
  const int32_t* page_table;      /* [b, page_table_stride] page numbers, or NULL */
  int64_t path_stride;
  int64_t page_table_stride;
  int32_t page_size; /* >= 1 with page_table */
  int32_t batch;
  int32_t slot_dtype; /* KDTREE_DTYPE_I32 | KDTREE_DTYPE_I64 */
  int32_t reserved0;
  int64_t capacity;     /* moves that src and dst hold; sum of accept_count always suffices */
  int64_t* src;         /* out [moves] */
  int64_t* dst;         /* out [moves] */
  int32_t* move_indptr; /* out [b+1] moves of request r */
} kdtree_compaction_plan_params;

KDTREE_API int32_t kdtree_compaction_plan_workspace_size(const kdtree_compaction_plan_params* params,
                                                         size_t* bytes) KDTREE_NOEXCEPT;
KDTREE_API int32_t kdtree_compaction_plan(const kdtree_compaction_plan_params* params, void* workspace,
                                          size_t bytes, void* stream) KDTREE_NOEXCEPT;

/* Executes a plan on host pools: for each layer, rows src[i] are copied to dst[i] as if all were read
 * before any is written (sources and destinations may overlap).
 * Errors: KDTREE_INVALID_ARGUMENT (a slot outside [0, slots)). */
typedef struct kdtree_kv_compact_params {
  KDTREE_STRUCT_HEADER;
  void* const* layers; /* [num_layers] base of each layer's pool */
  const int64_t* src;  /* [moves] */
  const int64_t* dst;  /* [moves], distinct */
  int64_t moves;
  int64_t slots;            /* rows of each pool */
  int64_t row_bytes;        /* bytes copied a row */
  int64_t row_stride_bytes; /* bytes between rows; 0 = row_bytes */
  int32_t num_layers;
  int32_t reserved0;
} kdtree_kv_compact_params;

KDTREE_API int32_t kdtree_kv_compact_workspace_size(const kdtree_kv_compact_params* params,
                                                    size_t* bytes) KDTREE_NOEXCEPT;
KDTREE_API int32_t kdtree_kv_compact(const kdtree_kv_compact_params* params, void* workspace, size_t bytes,
                                     void* stream) KDTREE_NOEXCEPT;

/* ---- verify attention ---------------------------------------------------------------------- */

/* Backends of the operation. KDTREE_FORCE_BACKEND=<name> in the environment overrides `auto`. */
#define KDTREE_BACKEND_AUTO 0             /* the fastest here that supports the problem */
#define KDTREE_BACKEND_ORACLE 1           /* "oracle": fp64 on the host */
#define KDTREE_BACKEND_CPU 2              /* "cpu": SIMD on all threads of the host */
#define KDTREE_BACKEND_CUDA_NAIVE 3       /* "cuda-naive" */
#define KDTREE_BACKEND_CUDA_FLASH 4       /* "cuda-flash": contiguous KV */
#define KDTREE_BACKEND_CUDA_FLASH_PAGED 5 /* "cuda-flash-paged": slots, ragged batch */
#define KDTREE_BACKEND_CUDA_SM90 6        /* "cuda-sm90": wgmma */

/* How a request's tree is given. */
#define KDTREE_TREE_CHAIN 0         /* node i is the child of i - 1 (causal); no array */
#define KDTREE_TREE_PARENTS 1       /* `parents` */
#define KDTREE_TREE_ANCESTOR_BITS 2 /* `ancestor_bits` */
#define KDTREE_TREE_BOOL_MASK 3     /* `mask`, one byte a cell (SGLang's custom_mask) */
/* A parent of KDTREE_PARENT_PADDING, an all-zero row of ancestor bits, or an all-zero row of mask tree
 * columns marks a padding row: it sees nothing (output 0, LSE -inf), its query may hold
 * anything, and no node may descend from it. */
#define KDTREE_PARENT_PADDING (-2)

/* Where the draft nodes' KV rows are. */
#define KDTREE_DRAFT_IN_POOL 0  /* row draft_slots[t] of kv */
#define KDTREE_DRAFT_SEPARATE 1 /* row t of draft_kv */

#define KDTREE_MEMORY_HOST 0 /* backends oracle and cpu */
#define KDTREE_MEMORY_CUDA 1 /* backends cuda-*: memory of the current device, or managed */

#define KDTREE_PLAN_BALANCED 0  /* fastest; bit-reproducible for the same batch */
#define KDTREE_PLAN_INVARIANT 1 /* a row's bits do not depend on other rows, nodes or requests */

/* Absorbed MLA attention of all draft trees of a ragged batch over a paged latent KV cache.
 * D = latent_dim + rope_dim (576 = 512 + 64 in DeepSeek V3 and Kimi K2); V is the first latent_dim
 * columns of a KV row. Row t = node i of request r attends to the request's whole prefix, to i's
 * ancestors and to itself:
 *   s = scale * <q, k>;  s = logit_cap * tanh(s / logit_cap) if logit_cap > 0
 *   out = softmax(s) V;  lse = ln sum exp(s)
 * Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1 and appendix B, with W_uk absorbed into q. */
typedef struct kdtree_verify_attn_params {
  KDTREE_STRUCT_HEADER;
  /* sizes */
  int32_t batch;      /* b >= 0 */
  int32_t heads;      /* H: 1 .. 1024 */
  int32_t latent_dim; /* multiple of 16, 16 .. 4096 */
  int32_t rope_dim;   /* multiple of 16, 0 .. 4096 */
  int32_t backend;    /* KDTREE_BACKEND_* */
  int32_t plan;       /* KDTREE_PLAN_* */
  float scale;        /* > 0; (nope_dim + rope_dim)^-1/2 * mscale^2, never D^-1/2 */
  float logit_cap;    /* >= 0; 0 = none */
  /* query and output */
  int32_t q_dtype;          /* f32 | f16 | bf16 (f64: oracle) */
  int32_t out_dtype;        /* f32 | f16 | bf16 (f64: oracle) */
  const void* q;            /* [T, H, D] */
  void* out;                /* [T, H, latent_dim] */
  int64_t q_token_stride;   /* 0 = H * D */
  int64_t q_head_stride;    /* 0 = D */
  int64_t out_token_stride; /* 0 = H * latent_dim */
  int64_t out_head_stride;  /* 0 = latent_dim */
  void* lse;                /* [T, H] natural log, f32 (f64 when lse_dtype says so: oracle); or NULL */
  int64_t lse_token_stride; /* 0 = H */
  int64_t lse_head_stride;  /* 0 = 1 */
  int32_t lse_dtype;        /* 0 = f32 */
  /* ragged batch */
  int32_t indptr_dtype;  /* i32 | i64: qo_indptr, kv_indptr */
  const void* qo_indptr; /* [b+1] rows of request r; starts at 0 */
  const void* kv_indptr; /* [b+1] prefix slots of request r; starts at 0; empty prefixes allowed */
  /* KV pool. Rows that kv_indices and draft_slots name are finite: one that is not may reach rows that do not
   * see it (0 * inf). All others, and those of padding rows, may hold anything. */
  const void* kv; /* [kv_slots, D] */
  int64_t kv_slots;
  int64_t kv_row_stride;    /* 0 = D */
  int32_t kv_dtype;         /* f32 | f16 | bf16 | e4m3 (f64: oracle); draft_kv has it too */
  float kv_scale;           /* stored value * kv_scale = value, e4m3 only; 0 = 1 */
  const void* kv_indices;   /* [kv_indptr[b]] prefix slots, in position order; may be over-allocated; NULL =
                             contiguous: entry i is row i of kv */
  int32_t kv_indices_dtype; /* i32 | i64: kv_indices, draft_slots */
  int32_t draft_location;   /* KDTREE_DRAFT_* */
  const void* draft_slots;  /* [T] with KDTREE_DRAFT_IN_POOL */
  const void* draft_kv;     /* [T, D] with KDTREE_DRAFT_SEPARATE; finite but for padding rows */
  int64_t draft_row_stride; /* 0 = D */
  /* tree */
  int32_t tree_encoding;         /* KDTREE_TREE_* */
  int32_t mask_skip_prefix;      /* 1: prefix columns are not read; 0: they are, and must all be set */
  const int32_t* parents;        /* [T] local, -1 root */
  const uint64_t* ancestor_bits; /* [T, bits_stride] */
  int64_t bits_stride;        /* words a row; 0 = ceil(max N / 64); with KDTREE_MEMORY_CUDA and max_nodes over
                                 64: as many as max_nodes needs */
  const uint8_t* mask;        /* request r's rows start at mask + mask_indptr[r] */
  const int64_t* mask_indptr; /* [b] (or SGLang's [b+1]) byte offsets */
  int64_t mask_row_stride;    /* bytes between rows; 0 = SGLang's layout: rows of prefix + N columns */
  int64_t mask_column_offset; /* column of node 0, or -1 = the request's prefix length (which a
                                 mask_row_stride of 0 implies) */
  /* memory */
  int32_t memory; /* KDTREE_MEMORY_*: where all arrays are, the workspace included */
  /* bounds of what the arrays say, for KDTREE_MEMORY_CUDA, where the host cannot read them */
  int32_t max_nodes;  /* N of every request at most */
  int64_t max_rows;   /* T at most; q, out, lse, parents and draft_slots have that many rows */
  int64_t max_prefix; /* prefix length of every request at most; 0: there are no prefixes */
} kdtree_verify_attn_params;

/* Scratch bytes the chosen backend needs for these sizes. Host backends read the indptr arrays. cpu: room for
 * all threads that the calling thread may use; with less it uses fewer, down to one. */
KDTREE_API int32_t kdtree_verify_attn_workspace_size(const kdtree_verify_attn_params* params,
                                                     size_t* bytes) KDTREE_NOEXCEPT;
/* Runs it. Capturable: host backends no, CUDA backends yes. Errors: KDTREE_INVALID_ARGUMENT,
 * KDTREE_INVALID_TREE, KDTREE_UNSUPPORTED (a dtype or size the backend lacks), KDTREE_BACKEND_UNAVAILABLE
 * (with the reason), KDTREE_WORKSPACE_TOO_SMALL. */
KDTREE_API int32_t kdtree_verify_attn(const kdtree_verify_attn_params* params, void* workspace, size_t bytes,
                                      void* stream) KDTREE_NOEXCEPT;

/* Reads the trees of `params`, in whichever encoding, into parents, and checks that they are trees. Looks at
 * batch, the indptr arrays and the tree fields alone. Padding rows become KDTREE_PARENT_PADDING; the
 * functions on trees (validate, compile, accept) take trees without padding rows and with a root. `parents`
 * [T]. */
KDTREE_API int32_t kdtree_tree_from_mask(const kdtree_verify_attn_params* params,
                                         int32_t* parents) KDTREE_NOEXCEPT;

/* ---- capabilities -------------------------------------------------------------------------- */

typedef struct kdtree_backend_info {
  KDTREE_STRUCT_HEADER;
  int32_t backend;   /* KDTREE_BACKEND_* */
  int32_t available; /* 1 or 0 */
  char name[32];
  char reason[256]; /* why it is not available, or what it runs on */
} kdtree_backend_info;

/* Backends are numbered 0 .. count-1, slowest first. */
KDTREE_API int32_t kdtree_backend_count(void) KDTREE_NOEXCEPT;
/* Writes at most info->struct_size bytes. */
KDTREE_API int32_t kdtree_get_backend_info(int32_t index, kdtree_backend_info* info) KDTREE_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* KDTREE_KDTREE_H_ */
