// The encodings of a verify problem, read back into parents.
#include "attention/tree_encoding.h"

#include <gtest/gtest.h>

#include "attention/validate.h"
#include "cases/verify_case.h"
#include "tests/cases/case_table.h"

namespace kdtree {
namespace {

Result<std::vector<int32_t>> parents_of(VerifyCase& c, int64_t request) {
  const VerifyProblem p = c.problem.params();
  const auto nodes = static_cast<size_t>(request_view(p, request).nodes);
  std::vector<int32_t> parents(nodes);
  std::vector<uint64_t> bits(nodes * (nodes / 64 + 1));
  KDTREE_RETURN_IF_ERROR(read_parents(p, request, parents, bits));
  return parents;
}

TEST(TreeEncoding, EveryEncodingGivesTheSameParents) {
  for (const int32_t encoding : {KDTREE_TREE_PARENTS, KDTREE_TREE_ANCESTOR_BITS, KDTREE_TREE_BOOL_MASK}) {
    for (uint64_t seed = 1; seed <= 30; ++seed) {
      CaseSpec spec = testing::random_spec(seed);
      spec.tree_encoding = encoding;
      spec.requests = {{static_cast<int64_t>(seed), 70, TreeShape::random, 2}, {5, 9, TreeShape::binary}};
      auto c = make_verify_case(spec);
      ASSERT_TRUE(c);
      for (size_t r = 0; r < 2; ++r) {
        std::vector<int32_t> expected = c->trees[r].parent;
        expected.resize(static_cast<size_t>(spec.requests[r].nodes), KDTREE_PARENT_PADDING);
        const auto parents = parents_of(*c, static_cast<int64_t>(r));
        ASSERT_TRUE(parents) << parents.error().message;
        EXPECT_EQ(*parents, expected) << "encoding " << encoding << " seed " << seed;
      }
    }
  }
}

VerifyCase chain_case(int32_t encoding, uint64_t seed = 2) {
  CaseSpec spec = testing::case_table().front();
  spec.seed = seed;  // even: mask_skip_prefix
  spec.tree_encoding = encoding;
  spec.requests = {{2, 1, TreeShape::chain}, {3, 3, TreeShape::chain}};
  auto made = make_verify_case(spec);
  EXPECT_TRUE(made);
  return std::move(*made);
}

TEST(TreeEncoding, AChainNeedsNoArrays) {
  VerifyProblem p = kdtree_init<VerifyProblem>();
  const std::vector<int32_t> rows = {0, 3};
  const std::vector<int32_t> prefix = {0, 0};
  p.batch = 1;
  p.qo_indptr = rows.data();
  p.kv_indptr = prefix.data();
  p.indptr_dtype = KDTREE_DTYPE_I32;
  p.tree_encoding = KDTREE_TREE_CHAIN;
  std::vector<int32_t> parents(3, 77);
  ASSERT_TRUE(read_parents(p, 0, parents, {}));
  EXPECT_EQ(parents, (std::vector<int32_t>{-1, 0, 1}));
}

TEST(TreeEncoding, MasksWithAStrideAndAColumnOfTheirOwn) {
  VerifyCase c = chain_case(KDTREE_TREE_BOOL_MASK);
  // Rows of 7 bytes, node 0 at column 1, everything else 1: must not be read.
  std::vector<uint8_t> mask(4 * 7, 1);
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 3; ++j)
      mask[(1 + i) * 7 + 1 + j] = j <= i ? 1 : 0;
  }
  c.problem.mask = Tensor::from<uint8_t>(DType::u8, mask);
  c.problem.mask_indptr = Tensor::from<int64_t>(DType::i64, std::vector<int64_t>{0, 7});
  c.problem.scalars.mask_row_stride = 7;
  c.problem.scalars.mask_column_offset = 1;
  c.problem.scalars.mask_skip_prefix = 1;
  EXPECT_EQ(*parents_of(c, 1), (std::vector<int32_t>{-1, 0, 1}));
  // The request's prefix (3 columns) before node 0.
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 3; ++j)
      mask[(1 + i) * 7 + 3 + j] = j <= i ? 1 : 0;
  }
  c.problem.mask = Tensor::from<uint8_t>(DType::u8, mask);
  c.problem.scalars.mask_column_offset = -1;
  EXPECT_EQ(*parents_of(c, 1), (std::vector<int32_t>{-1, 0, 1}));
}

TEST(TreeEncoding, AHiddenPrefixIsUnsupported) {
  VerifyCase c = chain_case(KDTREE_TREE_BOOL_MASK, 3);  // odd: prefix columns are read
  ASSERT_EQ(c.problem.scalars.mask_skip_prefix, 0);
  ASSERT_TRUE(parents_of(c, 1));
  c.problem.mask.as<uint8_t>()[3 + 6 + 2] = 0;  // request 1, node 1, prefix column 2
  const auto parents = parents_of(c, 1);
  ASSERT_FALSE(parents);
  EXPECT_EQ(parents.error().code, KDTREE_UNSUPPORTED);
  EXPECT_EQ(parents.error().message,
            "mask: node 1 has prefix column 2 unset, expected every node to see the whole prefix");
}

TEST(TreeEncoding, WrongParentsAreNamed) {
  const auto message = [](std::vector<int32_t> parents) {
    VerifyCase c = chain_case(KDTREE_TREE_PARENTS);
    for (size_t i = 0; i < 3; ++i)
      c.problem.parents.as<int32_t>()[1 + i] = parents[i];
    const auto read = parents_of(c, 1);
    return read ? std::string("accepted") : read.error().message;
  };
  EXPECT_EQ(message({-1, 0, 0}), "accepted");
  EXPECT_EQ(message({-1, 0, -2}), "accepted");
  EXPECT_EQ(message({-2, -2, -2}), "accepted");
  EXPECT_EQ(message({0, 0, 0}), "parents: node 0 has parent 0, expected -1 (the root)");
  EXPECT_EQ(message({-1, -1, 0}), "parents: node 1 has parent -1, expected 0 .. 0 (parents come first)");
  EXPECT_EQ(message({-1, 0, 2}), "parents: node 2 has parent 2, expected 0 .. 1 (parents come first)");
  EXPECT_EQ(message({-1, -2, 1}), "parents: node 2 descends from padding row 1");
  EXPECT_EQ(message({-1, -3, 1}), "parents: node 1 has parent -3, expected 0 .. 0 (parents come first)");
}

TEST(TreeEncoding, ValidateTreesLooksAtTheTreePartAlone) {
  VerifyCase c = chain_case(KDTREE_TREE_ANCESTOR_BITS);
  VerifyProblem p = c.problem.params();
  p.q = nullptr;
  p.heads = 0;
  p.kv_indices = nullptr;
  EXPECT_TRUE(validate_trees(p));
  p.indptr_dtype = 0;
  EXPECT_FALSE(validate_trees(p));
  p = c.problem.params();
  p.ancestor_bits = nullptr;
  EXPECT_FALSE(validate_trees(p));
}

}  // namespace
}  // namespace kdtree
