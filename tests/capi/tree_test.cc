// Tree operations through the C ABI: ragged batches equal the single-tree functions, request by request.
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "cases/random.h"
#include "tests/capi/calls.h"
#include "tree/best_first.h"
#include "tree/draft_tree.h"

namespace kdtree {
namespace {

using testing::last_error;
using testing::Workspace;
using Ints = std::vector<int32_t>;
using Longs = std::vector<int64_t>;

// The same round that a server runs: logits, candidates, trees, masks, acceptance, moves.
struct Batch {
  static constexpr int32_t kBatch = 3;
  static constexpr int32_t kDepth = 4;
  static constexpr int32_t kTopK = 5;
  static constexpr int32_t kVocab = 50;
  std::vector<float> logits = std::vector<float>(kBatch * kDepth * kVocab);
  Ints candidates = Ints(kBatch * kDepth * kTopK);
  std::vector<float> log_probs = std::vector<float>(kBatch * kDepth * kTopK);
  Ints roots = {7, 8, 9};
  Ints budgets = {0, 6, 17};
  Ints indptr = Ints(kBatch + 1);
  Ints tokens = Ints(64), parents = Ints(64), depths = Ints(64);
  std::vector<double> weights = std::vector<double>(64);

  kdtree_top_k_params top_k() {
    auto p = KDTREE_INIT(kdtree_top_k_params);
    p.logits = logits.data();
    p.rows = kBatch * kDepth;
    p.logits_dtype = KDTREE_DTYPE_F32;
    p.vocab = kVocab;
    p.k = kTopK;
    p.tokens = candidates.data();
    p.log_probs = log_probs.data();
    return p;
  }

  kdtree_tree_build_params build() {
    auto p = KDTREE_INIT(kdtree_tree_build_params);
    p.tokens = candidates.data();
    p.log_probs = log_probs.data();
    p.root_tokens = roots.data();
    p.node_budgets = budgets.data();
    p.batch = kBatch;
    p.depth = kDepth;
    p.k = kTopK;
    p.capacity = 64;
    p.qo_indptr = indptr.data();
    p.out_tokens = tokens.data();
    p.out_parents = parents.data();
    p.out_depths = depths.data();
    p.out_log_weights = weights.data();
    return p;
  }

  Batch() {
    Random random(61);
    for (float& x : logits)
      x = static_cast<float>(2.0 * random.normal());
    const auto k = top_k();
    Workspace workspace(kdtree_top_k_workspace_size, k);
    EXPECT_EQ(kdtree_top_k(&k, workspace.data(), workspace.bytes(), nullptr), KDTREE_OK) << last_error();
    const auto b = build();
    Workspace more(kdtree_tree_build_workspace_size, b);
    EXPECT_EQ(kdtree_tree_build(&b, more.data(), more.bytes(), nullptr), KDTREE_OK) << last_error();
  }

  int32_t rows() const { return indptr.back(); }
};

TEST(CapiTree, BuildEqualsTheSingleBuilder) {
  const Batch batch;
  EXPECT_EQ(batch.indptr, (Ints{0, 1, 8, 26}));
  for (int32_t r = 0; r < Batch::kBatch; ++r) {
    const auto first = static_cast<size_t>(r * Batch::kDepth * Batch::kTopK);
    const CandidateView candidates{&batch.candidates[first], &batch.log_probs[first], Batch::kDepth,
                                   Batch::kTopK};
    const auto i = static_cast<size_t>(r);
    const auto tree = build_best_first(candidates, batch.roots[i], batch.budgets[i]);
    ASSERT_TRUE(tree);
    const auto begin = static_cast<size_t>(batch.indptr[i]);
    for (size_t n = 0; n < static_cast<size_t>(tree->size()); ++n) {
      EXPECT_EQ(batch.tokens[begin + n], tree->token[n]);
      EXPECT_EQ(batch.parents[begin + n], tree->parent[n]);
      EXPECT_EQ(batch.depths[begin + n], tree->depth[n]);
      EXPECT_EQ(batch.weights[begin + n], tree->log_weight[n]);
    }
  }
}

TEST(CapiTree, BuildErrors) {
  Batch batch;
  auto p = batch.build();
  Workspace workspace(kdtree_tree_build_workspace_size, p);
  const auto run = [&] { return kdtree_tree_build(&p, workspace.data(), workspace.bytes(), nullptr); };
  p.capacity = 25;
  EXPECT_EQ(run(), KDTREE_BUFFER_TOO_SMALL);
  EXPECT_EQ(last_error(), "capacity is 25 nodes, expected at least 26 (and below 2^31)");
  p = batch.build();
  EXPECT_EQ(kdtree_tree_build(&p, workspace.data(), workspace.bytes() - 1, nullptr),
            KDTREE_WORKSPACE_TOO_SMALL);
  EXPECT_EQ(kdtree_tree_build(&p, nullptr, 0, nullptr), KDTREE_WORKSPACE_TOO_SMALL);
  batch.budgets[1] = -4;
  EXPECT_EQ(run(), KDTREE_INVALID_ARGUMENT);
  EXPECT_EQ(last_error(), "node_budget of request 1 is -4, expected >= 0");
  batch.budgets[1] = 6;
  batch.log_probs[static_cast<size_t>(Batch::kDepth * Batch::kTopK)] =
      std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(run(), KDTREE_NOT_A_NUMBER);
  EXPECT_EQ(last_error(), "request 1: log_probs[0][0] is NaN, expected a log-probability");
  batch.log_probs[static_cast<size_t>(Batch::kDepth * Batch::kTopK)] = -0.5f;
  for (auto spoil : std::vector<void (*)(kdtree_tree_build_params&)>{
           [](auto& q) { q.tokens = nullptr; }, [](auto& q) { q.log_probs = nullptr; },
           [](auto& q) { q.root_tokens = nullptr; }, [](auto& q) { q.qo_indptr = nullptr; },
           [](auto& q) { q.out_tokens = nullptr; }, [](auto& q) { q.out_parents = nullptr; },
           [](auto& q) { q.out_depths = nullptr; }, [](auto& q) { q.batch = -1; },
           [](auto& q) { q.depth = -1; }, [](auto& q) { q.k = 0; }}) {
    p = batch.build();
    spoil(p);
    EXPECT_EQ(run(), KDTREE_INVALID_ARGUMENT);
  }
  // One budget for all; no positions; no requests.
  p = batch.build();
  p.node_budgets = nullptr;
  p.node_budget = 0;
  EXPECT_EQ(run(), KDTREE_OK);
  EXPECT_EQ(batch.indptr, (Ints{0, 1, 2, 3}));
  p.node_budget = 9;
  p.depth = 0;
  p.tokens = nullptr;
  p.log_probs = nullptr;
  EXPECT_EQ(run(), KDTREE_OK) << last_error();
  EXPECT_EQ(batch.indptr, (Ints{0, 1, 2, 3}));
  p.batch = 0;
  EXPECT_EQ(run(), KDTREE_OK);
}

TEST(CapiTree, TopKErrorsNameTheRow) {
  Batch batch;
  auto p = batch.top_k();
  Workspace workspace(kdtree_top_k_workspace_size, p);
  const auto run = [&] { return kdtree_top_k(&p, workspace.data(), workspace.bytes(), nullptr); };
  batch.logits[2 * Batch::kVocab + 3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(run(), KDTREE_NOT_A_NUMBER);
  EXPECT_EQ(last_error(), "row 2: logits: token 3 is nan, expected a number or -inf");
  p.k = 51;
  EXPECT_EQ(run(), KDTREE_INVALID_ARGUMENT);
  EXPECT_EQ(last_error(), "k is 51, expected 1 .. 50 (vocab)");
  p = batch.top_k();
  p.row_stride = 49;
  EXPECT_EQ(run(), KDTREE_INVALID_ARGUMENT);
  EXPECT_EQ(last_error(), "row_stride is 49, expected >= 50");
  p = batch.top_k();
  p.logits_dtype = KDTREE_DTYPE_F16;
  EXPECT_EQ(run(), KDTREE_INVALID_ARGUMENT);
  EXPECT_EQ(last_error(), "logits_dtype is 2 (f16), expected f32 (1) or bf16 (3)");
  p = batch.top_k();
  p.logits = nullptr;
  EXPECT_EQ(run(), KDTREE_INVALID_ARGUMENT);
  p.rows = 0;
  EXPECT_EQ(run(), KDTREE_OK);
  p.rows = -1;
  EXPECT_EQ(run(), KDTREE_INVALID_ARGUMENT);
}

// Address space without memory behind it: pages that are read are the kernel's zero page.
class Sparse {
 public:
  explicit Sparse(size_t bytes)
      : bytes_(bytes),
        base_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                   0)) {
    EXPECT_NE(base_, MAP_FAILED);
  }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  ~Sparse() { munmap(base_, bytes_); }
  template <class T>
  T* as() {
    return static_cast<T*>(base_);
  }

 private:
  size_t bytes_;
  void* base_;
};

TEST(CapiTree, TopKRowsBeyondFourGigabytes) {
  constexpr int64_t kStride = int64_t{3} << 29;  // 1.6e9 elements, 6 GiB
  Sparse memory(static_cast<size_t>(2 * kStride) * 4);
  memory.as<float>()[kStride + 77] = 2.5f;
  memory.as<float>()[5] = 1.5f;
  Ints tokens(2);
  auto p = KDTREE_INIT(kdtree_top_k_params);
  p.logits = memory.as<float>();
  p.rows = 2;
  p.row_stride = kStride;
  p.logits_dtype = KDTREE_DTYPE_F32;
  p.vocab = 100;
  p.k = 1;
  p.tokens = tokens.data();  // and no log-probabilities
  Workspace workspace(kdtree_top_k_workspace_size, p);
  ASSERT_EQ(kdtree_top_k(&p, workspace.data(), workspace.bytes(), nullptr), KDTREE_OK) << last_error();
  EXPECT_EQ(tokens, (Ints{5, 77}));
  p.row_stride = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(kdtree_top_k(&p, workspace.data(), workspace.bytes(), nullptr), KDTREE_INVALID_ARGUMENT);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they take a minute over it
TEST(CapiTree, TheLargestVocabulary) {
  constexpr int32_t kVocab = std::numeric_limits<int32_t>::max();
  Sparse memory(static_cast<size_t>(kVocab) * 2);
  memory.as<uint16_t>()[kVocab - 2] = 0x3f80;  // 1.0
  Ints tokens(1);
  auto p = KDTREE_INIT(kdtree_top_k_params);
  p.logits = memory.as<uint16_t>();
  p.rows = 1;
  p.logits_dtype = KDTREE_DTYPE_BF16;
  p.vocab = kVocab;
  p.k = 1;
  p.tokens = tokens.data();
  Workspace workspace(kdtree_top_k_workspace_size, p);
  ASSERT_EQ(kdtree_top_k(&p, workspace.data(), workspace.bytes(), nullptr), KDTREE_OK) << last_error();
  EXPECT_EQ(tokens[0], kVocab - 2);
}
#endif

TEST(CapiTree, TopKReadsStridedRows) {
  Batch batch;
  Ints all = batch.candidates;
  auto p = batch.top_k();
  p.row_stride = 2 * Batch::kVocab;
  p.rows = 2;
  Workspace workspace(kdtree_top_k_workspace_size, p);
  ASSERT_EQ(kdtree_top_k(&p, workspace.data(), workspace.bytes(), nullptr), KDTREE_OK);
  for (size_t r = 0; r < 2; ++r) {
    for (size_t i = 0; i < Batch::kTopK; ++i) {
      EXPECT_EQ(batch.candidates[r * Batch::kTopK + i], all[2 * r * Batch::kTopK + i]);
    }
  }
}

TEST(CapiTree, CompileGivesDepthsPositionsBitsAndLinks) {
  Batch batch;
  const auto rows = static_cast<size_t>(batch.rows());
  const Longs starts = {100, 0, 40};
  Ints depths(rows, -9);
  Longs positions(rows), index(rows), next_token(rows), next_sibling(rows);
  std::vector<uint64_t> bits(rows * 2, ~uint64_t{0});
  auto p = KDTREE_INIT(kdtree_tree_compile_params);
  p.qo_indptr = batch.indptr.data();
  p.parents = batch.parents.data();
  p.start_positions = starts.data();
  p.batch = Batch::kBatch;
  p.bits_stride = 2;
  p.depths = depths.data();
  p.positions = positions.data();
  p.ancestor_bits = bits.data();
  p.retrieve_index = index.data();
  p.retrieve_next_token = next_token.data();
  p.retrieve_next_sibling = next_sibling.data();
  ASSERT_EQ(kdtree_tree_compile(&p), KDTREE_OK) << last_error();
  for (size_t r = 0; r < 3; ++r) {
    for (auto row = static_cast<size_t>(batch.indptr[r]); row < static_cast<size_t>(batch.indptr[r + 1]);
         ++row) {
      const auto begin = static_cast<size_t>(batch.indptr[r]);
      EXPECT_EQ(depths[row], batch.depths[row]);
      EXPECT_EQ(positions[row], starts[r] + batch.depths[row]);
      EXPECT_EQ(index[row], static_cast<int64_t>(row));
      uint64_t expected = 0;
      for (auto n = static_cast<int32_t>(row - begin); n >= 0;
           n = batch.parents[begin + static_cast<size_t>(n)]) {
        expected |= uint64_t{1} << n;
      }
      EXPECT_EQ(bits[2 * row], expected);
      EXPECT_EQ(bits[2 * row + 1], 0u);
    }
  }
  // And the links back to the same parents.
  Ints back(rows, -9);
  auto q = KDTREE_INIT(kdtree_tree_from_retrieve_params);
  q.qo_indptr = batch.indptr.data();
  q.retrieve_index = index.data();
  q.retrieve_next_token = next_token.data();
  q.retrieve_next_sibling = next_sibling.data();
  q.batch = Batch::kBatch;
  q.parents = back.data();
  ASSERT_EQ(kdtree_tree_from_retrieve(&q), KDTREE_OK) << last_error();
  EXPECT_EQ(back, Ints(batch.parents.begin(), batch.parents.begin() + static_cast<ptrdiff_t>(rows)));
  index[9] = 3;
  EXPECT_EQ(kdtree_tree_from_retrieve(&q), KDTREE_INVALID_TREE);
  EXPECT_EQ(last_error(), "request 2: retrieve_index of node 1 is 3, expected its row 9");

  for (const int64_t start : {int64_t{-1}, std::numeric_limits<int64_t>::max() - 3}) {
    const Longs wrong = {0, start, 0};
    p.start_positions = wrong.data();
    EXPECT_EQ(kdtree_tree_compile(&p), KDTREE_INVALID_ARGUMENT);
    EXPECT_EQ(last_error(), "request 1: start_positions is " + std::to_string(start) +
                                ", expected a position >= 0 with room for 7 nodes");
  }
  p.start_positions = starts.data();
  p.bits_stride = -1;
  EXPECT_EQ(kdtree_tree_compile(&p), KDTREE_INVALID_ARGUMENT);
  EXPECT_EQ(last_error(), "bits_stride is -1, expected >= 0");
  p.bits_stride = 2;
  p.retrieve_next_sibling = nullptr;
  EXPECT_EQ(kdtree_tree_compile(&p), KDTREE_INVALID_ARGUMENT);
  p.retrieve_next_token = nullptr;
  p.bits_stride = 0;  // as many words as the largest tree needs: one
  bits.assign(rows * 2, 7);
  ASSERT_EQ(kdtree_tree_compile(&p), KDTREE_OK) << last_error();
  EXPECT_EQ(bits[0], 1u);
  EXPECT_EQ(bits[1], 1u);  // request 1's root
  EXPECT_EQ(bits[2], 3u);
  EXPECT_EQ(bits[rows], 7u);
  p.ancestor_bits = nullptr;
  EXPECT_EQ(kdtree_tree_compile(&p), KDTREE_OK) << last_error();
}

TEST(CapiTree, CompileWithoutParentsMakesChains) {
  const Ints indptr = {0, 2, 5};
  Ints depths(5);
  Longs positions(5);
  auto p = KDTREE_INIT(kdtree_tree_compile_params);
  p.qo_indptr = indptr.data();
  p.batch = 2;
  p.depths = depths.data();
  p.positions = positions.data();
  ASSERT_EQ(kdtree_tree_compile(&p), KDTREE_OK) << last_error();
  EXPECT_EQ(depths, (Ints{0, 1, 0, 1, 2}));
  EXPECT_EQ(positions, (Longs{0, 1, 0, 1, 2}));
}

TEST(CapiTree, ValidateNamesRequestAndNode) {
  const Ints indptr = {0, 2, 5};
  const Ints parents = {-1, 0, -1, 0, 5};
  auto p = KDTREE_INIT(kdtree_tree_validate_params);
  p.qo_indptr = indptr.data();
  p.parents = parents.data();
  p.batch = 2;
  EXPECT_EQ(kdtree_tree_validate(&p), KDTREE_INVALID_TREE);
  EXPECT_EQ(last_error(), "request 1: node 2: parent is 5, expected 0 .. 1 (parents come first)");
  const Ints falling = {0, 3, 2};
  p.qo_indptr = falling.data();
  EXPECT_EQ(kdtree_tree_validate(&p), KDTREE_INVALID_ARGUMENT);
  EXPECT_EQ(last_error(), "qo_indptr[2] is 2 after 3, expected 0 .. 2147483647 more");
  p.qo_indptr = nullptr;
  EXPECT_EQ(kdtree_tree_validate(&p), KDTREE_INVALID_ARGUMENT);
  p.qo_indptr = indptr.data();
  p.parents = nullptr;
  EXPECT_EQ(kdtree_tree_validate(&p), KDTREE_INVALID_ARGUMENT);
}

TEST(CapiTree, AcceptARaggedBatch) {
  //             r0: one node | r1: 0-(4)->1-(5)->2 | r2: as r1, EOS 5 on the way | r3: limit of one token
  const Ints indptr = {0, 1, 4, 7, 10};
  const Ints tokens = {1, 1, 4, 5, 1, 4, 5, 1, 4, 5};
  const Ints parents = {-1, -1, 0, 1, -1, 0, 1, -1, 0, 1};
  const Ints target = {9, 4, 5, 6, 4, 99, 7, 4, 5, 6};
  const Ints eos = {99};
  const Ints max_tokens = {5, 5, 5, 1};
  Ints path(4 * 3, 77), emitted(4 * 3, 77), count(4), next_root(4), reasons(4, 77);
  auto p = KDTREE_INIT(kdtree_tree_accept_params);
  p.qo_indptr = indptr.data();
  p.tokens = tokens.data();
  p.parents = parents.data();
  p.target_tokens = target.data();
  p.eos_tokens = eos.data();
  p.num_eos = 1;
  p.max_tokens = max_tokens.data();
  p.batch = 4;
  p.path_stride = 3;
  p.accept_path = path.data();
  p.accept_count = count.data();
  p.emitted_tokens = emitted.data();
  p.next_root = next_root.data();
  p.finish_reasons = reasons.data();
  ASSERT_EQ(kdtree_tree_accept(&p), KDTREE_OK) << last_error();
  EXPECT_EQ(path, (Ints{0, -1, -1, 0, 1, 2, 0, 1, -1, 0, -1, -1}));
  EXPECT_EQ(emitted, (Ints{9, -1, -1, 4, 5, 6, 4, 99, -1, 4, -1, -1}));
  EXPECT_EQ(count, (Ints{1, 3, 2, 1}));
  EXPECT_EQ(next_root, (Ints{9, 6, 99, 4}));
  EXPECT_EQ(reasons, (Ints{KDTREE_FINISH_NONE, KDTREE_FINISH_NONE, KDTREE_FINISH_EOS, KDTREE_FINISH_LENGTH}));

  p.path_stride = 2;
  EXPECT_EQ(kdtree_tree_accept(&p), KDTREE_BUFFER_TOO_SMALL);
  EXPECT_EQ(last_error(), "request 1: accept_path holds 2 nodes, expected more: the path is longer");
  p.path_stride = 3;
  const Ints zero = {0, 1, 1, 1};
  p.max_tokens = zero.data();
  EXPECT_EQ(kdtree_tree_accept(&p), KDTREE_INVALID_ARGUMENT);
  EXPECT_EQ(last_error(), "request 0: max_tokens is 0, expected >= 1");
  p.max_tokens = nullptr;
  p.finish_reasons = nullptr;
  EXPECT_EQ(kdtree_tree_accept(&p), KDTREE_OK);
  p.eos_tokens = nullptr;
  EXPECT_EQ(kdtree_tree_accept(&p), KDTREE_INVALID_ARGUMENT);
  p.num_eos = 0;
  EXPECT_EQ(kdtree_tree_accept(&p), KDTREE_OK);
  p.next_root = nullptr;
  EXPECT_EQ(kdtree_tree_accept(&p), KDTREE_INVALID_ARGUMENT);
  EXPECT_EQ(last_error(), "request 0: next_root is null, expected an array");
}

}  // namespace
}  // namespace kdtree
