// Verify attention, masks and compaction through the C ABI.
#include <cstdlib>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "tests/attention/reference.h"
#include "tests/attention/run.h"
#include "tests/capi/calls.h"
#include "tests/cases/case_table.h"

namespace kdtree {
namespace {

using testing::last_error;
using testing::Workspace;
using Ints = std::vector<int32_t>;
using Longs = std::vector<int64_t>;

VerifyCase ragged_case(int32_t encoding) {
  for (const CaseSpec& spec : testing::case_table()) {
    if (spec.name == "ragged_encoding_" + std::to_string(encoding) + "_draft_0")
      return std::move(*make_verify_case(spec));
  }
  ADD_FAILURE() << "no ragged case";
  return {};
}

TEST(CapiVerify, RunsTheCaseTable) {
  for (const CaseSpec& spec : testing::case_table()) {
    auto c = make_verify_case(spec);
    ASSERT_TRUE(c);
    const VerifyProblem p = c->problem.params();
    Workspace workspace(kdtree_verify_attn_workspace_size, p);
    ASSERT_EQ(kdtree_verify_attn(&p, workspace.data(), workspace.bytes(), nullptr), KDTREE_OK)
        << last_error();
    const auto expected = testing::reference_attention(*c);
    EXPECT_LE(testing::relative_frobenius(testing::outputs(c->problem), expected.out), 3e-3) << spec.name;
    if (workspace.bytes() > 0) {
      EXPECT_EQ(kdtree_verify_attn(&p, workspace.data(), 63, nullptr), KDTREE_WORKSPACE_TOO_SMALL);
    }
  }
}

TEST(CapiVerify, ErrorsCarryTheField) {
  VerifyCase c = ragged_case(KDTREE_TREE_PARENTS);
  VerifyProblem p = c.problem.params();
  size_t bytes = 0;
  EXPECT_EQ(kdtree_verify_attn_workspace_size(&p, nullptr), KDTREE_INVALID_ARGUMENT);
  p.heads = 0;
  EXPECT_EQ(kdtree_verify_attn_workspace_size(&p, &bytes), KDTREE_INVALID_ARGUMENT);
  EXPECT_EQ(last_error(), "heads is 0, expected 1 .. 1024");
  p = c.problem.params();
  p.backend = KDTREE_BACKEND_CUDA_NAIVE;
  EXPECT_EQ(kdtree_verify_attn(&p, nullptr, 0, nullptr), KDTREE_BACKEND_UNAVAILABLE);
  p = c.problem.params();
  c.problem.parents.as<int32_t>()[5 + 2] = 2;  // request 1, node 2
  Workspace workspace(kdtree_verify_attn_workspace_size, p);
  EXPECT_EQ(kdtree_verify_attn(&p, workspace.data(), workspace.bytes(), nullptr), KDTREE_INVALID_TREE);
  EXPECT_EQ(last_error(), "request 1: parents: node 2 has parent 2, expected 0 .. 1 (parents come first)");
}

TEST(CapiVerify, MasksBecomeParents) {
  for (const int32_t encoding : {KDTREE_TREE_PARENTS, KDTREE_TREE_ANCESTOR_BITS, KDTREE_TREE_BOOL_MASK}) {
    VerifyCase c = ragged_case(encoding);
    const VerifyProblem p = c.problem.params();
    Ints parents(static_cast<size_t>(total_rows(p)), 77);
    ASSERT_EQ(kdtree_tree_from_mask(&p, parents.data()), KDTREE_OK) << last_error();
    Ints expected;
    for (size_t r = 0; r < c.trees.size(); ++r) {
      expected.insert(expected.end(), c.trees[r].parent.begin(), c.trees[r].parent.end());
      expected.insert(expected.end(), static_cast<size_t>(c.spec.requests[r].padding_rows),
                      KDTREE_PARENT_PADDING);
    }
    EXPECT_EQ(parents, expected);
    EXPECT_EQ(kdtree_tree_from_mask(&p, nullptr), KDTREE_INVALID_ARGUMENT);
  }
}

TEST(CapiCompaction, PlansAndMovesARaggedBatch) {
  // r0 accepts nodes 0, 2; r1 nothing but its root; r2 has no rows to commit.
  const Ints indptr = {0, 3, 5, 6};
  const Ints path = {0, 2, 0, -1, -1, -1};
  const Ints count = {2, 1, 0};
  const Ints slots = {4, 5, 6, 9, 8, 1};
  Longs src(8), dst(8);
  Ints move_indptr(4);
  auto p = KDTREE_INIT(kdtree_compaction_plan_params);
  p.qo_indptr = indptr.data();
  p.accept_path = path.data();
  p.accept_count = count.data();
  p.draft_slots = slots.data();
  p.path_stride = 2;
  p.batch = 3;
  p.slot_dtype = KDTREE_DTYPE_I32;
  p.capacity = 8;
  p.src = src.data();
  p.dst = dst.data();
  p.move_indptr = move_indptr.data();
  Workspace workspace(kdtree_compaction_plan_workspace_size, p);
  const auto plan = [&] { return kdtree_compaction_plan(&p, workspace.data(), workspace.bytes(), nullptr); };
  ASSERT_EQ(plan(), KDTREE_OK) << last_error();
  EXPECT_EQ(move_indptr, (Ints{0, 1, 1, 1}));
  EXPECT_EQ(src[0], 6);
  EXPECT_EQ(dst[0], 5);

  // Pages of two: positions 3, 4 of r0 are slots 2*7+1 and 2*2; position 0 of r1 is slot 2*5.
  const Ints pages = {0, 7, 2, 5, -1, -1, -1, -1, -1};
  const Longs starts = {3, 0, 0};
  p.page_table = pages.data();
  p.page_table_stride = 3;
  p.page_size = 2;
  p.start_positions = starts.data();
  ASSERT_EQ(plan(), KDTREE_OK) << last_error();
  EXPECT_EQ(move_indptr, (Ints{0, 2, 3, 3}));
  EXPECT_EQ(Longs(src.begin(), src.begin() + 3), (Longs{4, 6, 9}));
  EXPECT_EQ(Longs(dst.begin(), dst.begin() + 3), (Longs{15, 4, 10}));

  const auto expect_error = [&](int32_t code, const std::string& message) {
    EXPECT_EQ(plan(), code);
    EXPECT_EQ(last_error(), message);
  };
  const Ints shared = {0, 7, 2, 2, -1, -1, -1, -1, -1};  // r1's position 0 falls on r0's page
  p.page_table = shared.data();
  expect_error(KDTREE_INVALID_ARGUMENT, "two rows have destination slot 4, expected distinct destinations");
  p.page_table = pages.data();
  p.page_size = 0;
  expect_error(KDTREE_INVALID_ARGUMENT, "page_size is 0, expected >= 1");
  p.page_size = 2;
  p.start_positions = nullptr;
  expect_error(KDTREE_INVALID_ARGUMENT, "start_positions is null, expected an array");
  const Longs negative = {3, -1, 0};
  p.start_positions = negative.data();
  expect_error(KDTREE_INVALID_ARGUMENT, "request 1: start_positions is -1, expected a position >= 0");
  p.page_table = nullptr;
  const Ints too_many = {3, 1, 0};
  p.accept_count = too_many.data();
  expect_error(KDTREE_INVALID_ARGUMENT, "request 0: accept_count is 3, expected 0 .. 2 (path_stride)");
  p.accept_count = count.data();
  p.slot_dtype = 0;
  expect_error(KDTREE_INVALID_ARGUMENT, "slot_dtype is 0 (invalid), expected i32 (16) or i64 (17)");
  p.slot_dtype = KDTREE_DTYPE_I32;
  p.capacity = 0;
  expect_error(KDTREE_BUFFER_TOO_SMALL, "request 0: capacity is 0 moves, expected more");
  p.path_stride = -5;
  expect_error(KDTREE_INVALID_ARGUMENT, "path_stride is -5, expected >= 0");
}

// A row that stays where it is occupies its slot as well as one that moves there.
TEST(CapiCompaction, AMoveOntoARowThatStaysIsRefused) {
  const Ints indptr = {0, 3};
  const Ints path = {0, 2};
  const Ints count = {2};
  Ints slots = {5, 5, 9};  // node 2 would go to slot 5, where the root is and stays
  Longs src(2), dst(2);
  Ints move_indptr(2);
  auto p = KDTREE_INIT(kdtree_compaction_plan_params);
  p.qo_indptr = indptr.data();
  p.accept_path = path.data();
  p.accept_count = count.data();
  p.draft_slots = slots.data();
  p.path_stride = 2;
  p.batch = 1;
  p.slot_dtype = KDTREE_DTYPE_I32;
  p.capacity = 2;
  p.src = src.data();
  p.dst = dst.data();
  p.move_indptr = move_indptr.data();
  Workspace workspace(kdtree_compaction_plan_workspace_size, p);
  EXPECT_EQ(kdtree_compaction_plan(&p, workspace.data(), workspace.bytes(), nullptr),
            KDTREE_INVALID_ARGUMENT);
  EXPECT_EQ(last_error(), "two rows have destination slot 5, expected distinct destinations");
  const Ints pages = {5, 5};  // positions 0 and 1 on one page of one row
  const Longs starts = {0};
  slots = {5, 6, 7};
  p.page_table = pages.data();
  p.page_table_stride = 2;
  p.page_size = 1;
  p.start_positions = starts.data();
  EXPECT_EQ(kdtree_compaction_plan(&p, workspace.data(), workspace.bytes(), nullptr),
            KDTREE_INVALID_ARGUMENT);
  EXPECT_EQ(last_error(), "two rows have destination slot 5, expected distinct destinations");
}

TEST(CapiCompaction, CompactsAllLayersOrNothing) {
  std::vector<Ints> layers(3, Ints(8));
  for (size_t l = 0; l < layers.size(); ++l) {
    for (size_t i = 0; i < 8; ++i)
      layers[l][i] = static_cast<int32_t>(10 * l + i);
  }
  std::vector<void*> bases;
  for (Ints& layer : layers)
    bases.push_back(layer.data());
  Longs src = {3, 1};
  Longs dst = {1, 3};
  auto p = KDTREE_INIT(kdtree_kv_compact_params);
  p.layers = bases.data();
  p.src = src.data();
  p.dst = dst.data();
  p.moves = 2;
  p.slots = 4;
  p.row_bytes = 4;
  p.row_stride_bytes = 8;  // every other int is a row
  p.num_layers = 3;
  Workspace workspace(kdtree_kv_compact_workspace_size, p);
  const auto compact = [&] { return kdtree_kv_compact(&p, workspace.data(), workspace.bytes(), nullptr); };
  ASSERT_EQ(compact(), KDTREE_OK) << last_error();
  for (size_t l = 0; l < layers.size(); ++l) {
    const auto base = static_cast<int32_t>(10 * l);
    EXPECT_EQ(layers[l], (Ints{base, base + 1, base + 6, base + 3, base + 4, base + 5, base + 2, base + 7}));
  }
  const auto before = layers;
  dst[1] = 4;
  EXPECT_EQ(compact(), KDTREE_INVALID_ARGUMENT);
  EXPECT_EQ(last_error(), "dst[1] is 4, expected a slot in [0, 4)");
  dst[1] = 1;
  EXPECT_EQ(compact(), KDTREE_INVALID_ARGUMENT);
  EXPECT_EQ(last_error(), "two rows have destination slot 1, expected distinct destinations");
  dst[1] = 3;
  src[0] = -1;
  EXPECT_EQ(compact(), KDTREE_INVALID_ARGUMENT);
  src[0] = 3;
  bases[2] = nullptr;
  EXPECT_EQ(compact(), KDTREE_INVALID_ARGUMENT);
  EXPECT_EQ(last_error(), "layers[2] is null, expected a pool");
  bases[2] = layers[2].data();
  EXPECT_EQ(kdtree_kv_compact(&p, workspace.data(), workspace.bytes() - 1, nullptr),
            KDTREE_WORKSPACE_TOO_SMALL);
  p.row_stride_bytes = 3;
  EXPECT_EQ(compact(), KDTREE_INVALID_ARGUMENT);
  p.row_stride_bytes = int64_t{1} << 62;
  EXPECT_EQ(compact(), KDTREE_INVALID_ARGUMENT);
  EXPECT_EQ(last_error(),
            "slots is 4 with rows of 4611686018427387904 bytes, expected a pool below 2^63 bytes");
  EXPECT_EQ(layers, before);
  p.moves = 0;
  p.row_stride_bytes = 8;
  EXPECT_EQ(kdtree_kv_compact(&p, nullptr, 0, nullptr), KDTREE_OK);
}

}  // namespace
}  // namespace kdtree
