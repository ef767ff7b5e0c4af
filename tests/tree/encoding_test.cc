// DraftTree, its validation, and the encodings: parents, ancestor bits, SGLang's links.
#include <set>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "cases/random.h"
#include "tree/ancestor_bits.h"
#include "tree/draft_tree.h"
#include "tree/retrieve.h"

namespace kdtree {
namespace {

std::vector<int32_t> random_parents(Random& random, int64_t nodes) {
  std::vector<int32_t> parents = {-1};
  for (int64_t i = 1; i < nodes; ++i)
    parents.push_back(static_cast<int32_t>(random.below(i)));
  return parents;
}

void expect_invalid(const TreeView& tree, const std::string& message, int32_t code = KDTREE_INVALID_TREE) {
  const Status status = validate_tree(tree);
  ASSERT_FALSE(status) << message;
  EXPECT_EQ(status.error().code, code);
  EXPECT_EQ(status.error().message, message);
}

TEST(DraftTree, ValidationNamesTheNode) {
  using Ints = std::vector<int32_t>;
  expect_invalid({}, "tree has 0 nodes, expected at least the root");
  expect_invalid({Ints{0}, {}, {}, {}}, "node 0: parent is 0, expected -1 (node 0 is the root)");
  const Ints forward = {-1, 2, 0};
  expect_invalid({forward, {}, {}, {}}, "node 1: parent is 2, expected 0 .. 0 (parents come first)");
  const Ints itself = {-1, 0, 2};
  expect_invalid({itself, {}, {}, {}}, "node 2: parent is 2, expected 0 .. 1 (parents come first)");
  const Ints two_roots = {-1, -1};
  expect_invalid({two_roots, {}, {}, {}}, "node 1: parent is -1, expected 0 .. 0 (parents come first)");
  const Ints parents = {-1, 0, 1, 0};
  const Ints depths = {0, 1, 1, 1};
  expect_invalid({parents, depths, {}, {}}, "node 2: depth is 1, expected 2");
  const Ints root_depth = {1, 2, 3, 2};
  expect_invalid({parents, root_depth, {}, {}}, "node 0: depth is 1, expected 0");
  const Ints tokens = {5, 8, 8, 8};
  expect_invalid({parents, {}, tokens, {}},
                 "node 3: token 8 already belongs to another child of node 0, expected distinct siblings");
  const Ints short_tokens = {5, 8};
  expect_invalid({parents, {}, short_tokens, {}},
                 "tree arrays have 4 parents, 0 depths, 2 tokens, 0 log-weights, expected equal lengths",
                 KDTREE_INVALID_ARGUMENT);
}

TEST(DraftTree, TheSameTokenMayAppearUnderDifferentParents) {
  const std::vector<int32_t> parents = {-1, 0, 0, 1, 2};
  const std::vector<int32_t> tokens = {9, 1, 2, 9, 9};
  const auto tree = DraftTree::from_parents(tokens, parents);
  ASSERT_TRUE(tree) << tree.error().message;
  EXPECT_EQ(tree->depth, (std::vector<int32_t>{0, 1, 1, 2, 2}));
  EXPECT_EQ(tree->log_weight, std::vector<double>(5, 0.0));
}

TEST(DraftTree, ChainAndErrors) {
  const std::vector<int32_t> tokens = {4, 4, 4};
  const std::vector<double> weights = {0.0, -1.0, -2.5};
  const auto chain = DraftTree::chain(tokens, weights);
  ASSERT_TRUE(chain);
  EXPECT_EQ(chain->parent, (std::vector<int32_t>{-1, 0, 1}));
  EXPECT_EQ(chain->depth, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(chain->log_weight, weights);
  EXPECT_FALSE(DraftTree::chain({}));
  EXPECT_EQ(DraftTree::from_parents(tokens, std::vector<int32_t>{-1}).error().code, KDTREE_INVALID_ARGUMENT);
}

// The definition, one node at a time.
std::set<int32_t> ancestors(const std::vector<int32_t>& parents, int32_t node) {
  std::set<int32_t> all;
  for (; node >= 0; node = parents[static_cast<size_t>(node)])
    all.insert(node);
  return all;
}

TEST(AncestorBits, EqualTheAncestorSetsAndConvertBack) {
  Random random(31);
  for (int round = 0; round < 400; ++round) {
    const int64_t nodes = 1 + random.below(200);
    std::vector<int32_t> parents = random_parents(random, nodes);
    const int64_t stride = (nodes + 63) / 64 + random.below(2);
    std::vector<uint64_t> bits(static_cast<size_t>(nodes * stride), ~uint64_t{0});
    ancestor_bits_from_parents(parents, bits, stride);
    for (int32_t i = 0; i < nodes; ++i) {
      const auto expected = ancestors(parents, i);
      for (int64_t j = 0; j < stride * 64; ++j) {
        const uint64_t bit = bits[static_cast<size_t>(i * stride + j / 64)] >> (j % 64) & 1;
        ASSERT_EQ(bit, expected.count(static_cast<int32_t>(j))) << "node " << i << " column " << j;
      }
    }
    std::vector<int32_t> back(parents.size());
    const Status status = parents_from_ancestor_bits(bits, stride, back);
    ASSERT_TRUE(status) << status.error().message;
    ASSERT_EQ(back, parents);
  }
}

TEST(AncestorBits, EveryFlippedBitIsRejectedOrAnotherTree) {
  Random random(32);
  int rejected = 0;
  for (int round = 0; round < 2000; ++round) {
    const int64_t nodes = 2 + random.below(80);
    const int64_t stride = (nodes + 63) / 64;
    const std::vector<int32_t> parents = random_parents(random, nodes);
    std::vector<uint64_t> bits(static_cast<size_t>(nodes * stride));
    ancestor_bits_from_parents(parents, bits, stride);
    bits[static_cast<size_t>(random.below(nodes * stride))] ^= uint64_t{1} << random.below(64);
    std::vector<int32_t> back(parents.size());
    if (!parents_from_ancestor_bits(bits, stride, back)) {
      ++rejected;
      continue;
    }
    // Accepted: then it must be exactly the bits of what came back.
    std::vector<uint64_t> again(bits.size());
    ancestor_bits_from_parents(back, again, stride);
    ASSERT_EQ(again, bits);
  }
  EXPECT_GT(rejected, 1500);
}

TEST(AncestorBits, ErrorsNameNodeAndColumn) {
  std::vector<int32_t> parents(3);
  const auto error = [&](std::vector<uint64_t> bits) {
    const Status status = parents_from_ancestor_bits(bits, 1, parents);
    return status ? std::string("accepted") : status.error().message;
  };
  EXPECT_EQ(error({0b1, 0b11, 0b111}), "accepted");
  EXPECT_EQ(error({0b11, 0b11, 0b111}),
            "ancestor bits of node 0: column 1 is 1, expected 0 (its parent -1's row and itself)");
  EXPECT_EQ(error({0b1, 0b01, 0b111}),
            "ancestor bits of node 1: column 1 is 0, expected 1 (its parent 0's row and itself)");
  EXPECT_EQ(error({0b1, 0b11, 0b110}),
            "ancestor bits of node 2: column 0 is 0, expected 1 (its parent 1's row and itself)");
  EXPECT_EQ(error({0b1, 0b10, 0b111}),
            "ancestor bits of node 1: no ancestor below it is set, expected a descendant of node 0");
  EXPECT_EQ(error({0b1, 0b0, 0b111}), "ancestor bits of node 2: its ancestor 1 is a padding row");
  EXPECT_EQ(error({0b1, 0b0, 0b101}), "accepted");
  EXPECT_EQ(parents, (std::vector<int32_t>{-1, KDTREE_PARENT_PADDING, 0}));
}

TEST(AncestorBits, PaddingRowsAreEmpty) {
  const std::vector<int32_t> parents = {-1, KDTREE_PARENT_PADDING, 0};
  std::vector<uint64_t> bits(3, ~uint64_t{0});
  ancestor_bits_from_parents(parents, bits, 1);
  EXPECT_EQ(bits, (std::vector<uint64_t>{0b1, 0, 0b101}));
}

// SGLang's own order: the children of a node in ascending order (build_tree_kernel inserts from the last node
// back at the front of the list).
TEST(Retrieve, LinksListChildrenInOrder) {
  const std::vector<int32_t> parents = {-1, 0, 0, 1, 1, 0};
  std::vector<int64_t> next_token(6);
  std::vector<int64_t> next_sibling(6);
  retrieve_from_parents(parents, next_token, next_sibling);
  EXPECT_EQ(next_token, (std::vector<int64_t>{1, 3, -1, -1, -1, -1}));
  EXPECT_EQ(next_sibling, (std::vector<int64_t>{-1, 2, 5, 4, -1, -1}));
}

RC_GTEST_PROP(Retrieve, RoundTripsAnyTree, (uint32_t seed)) {
  Random random(seed);
  const std::vector<int32_t> parents = random_parents(random, 1 + random.below(100));
  std::vector<int64_t> next_token(parents.size());
  std::vector<int64_t> next_sibling(parents.size());
  retrieve_from_parents(parents, next_token, next_sibling);
  std::vector<int32_t> back(parents.size());
  RC_ASSERT(parents_from_retrieve(next_token, next_sibling, back).has_value());
  RC_ASSERT(back == parents);
}

TEST(Retrieve, AnySiblingOrderIsRead) {
  // Root's children in the order 2, 1.
  std::vector<int32_t> parents(3);
  ASSERT_TRUE(
      parents_from_retrieve(std::vector<int64_t>{2, -1, -1}, std::vector<int64_t>{-1, -1, 1}, parents));
  EXPECT_EQ(parents, (std::vector<int32_t>{-1, 0, 0}));
}

TEST(Retrieve, ErrorsNameTheLink) {
  using Links = std::vector<int64_t>;
  std::vector<int32_t> parents(3);
  const auto error = [&](const Links& next_token, const Links& next_sibling) {
    const Status status = parents_from_retrieve(next_token, next_sibling, parents);
    return status ? std::string("accepted") : status.error().message;
  };
  EXPECT_EQ(error({1, -1, -1}, {-1, 2, -1}), "accepted");
  EXPECT_EQ(parents_from_retrieve({}, {}, {}).error().message,
            "tree has 0 nodes, expected at least the root");
  EXPECT_EQ(error({1, -1, -1}, {1, 2, -1}),
            "retrieve_next_sibling[0] is 1, expected -1 (the root has no sibling)");
  EXPECT_EQ(error({1, 0, -1}, {-1, 2, -1}),
            "retrieve_next_token[1] is 0, expected -1 or a node after 1 and below 3");
  EXPECT_EQ(error({1, 1, -1}, {-1, 2, -1}),
            "retrieve_next_token[1] is 1, expected -1 or a node after 1 and below 3");
  EXPECT_EQ(error({3, -1, -1}, {-1, 2, -1}),
            "retrieve_next_token[0] is 3, expected -1 or a node after 0 and below 3");
  EXPECT_EQ(error({1, -1, -1}, {-1, 1, -1}),
            "retrieve_next_sibling[1] is 1, which already is a child of node 0");
  EXPECT_EQ(error({1, 2, -1}, {-1, 2, -1}),
            "retrieve_next_token[1] is 2, which already is a child of node 0");
  EXPECT_EQ(error({2, -1, 1}, {-1, -1, -1}),
            "node 1 is not reached from any earlier node, expected a parent before its child");
  EXPECT_EQ(error({1, -1, -1}, {-1, -1, -1}),
            "node 2 is not reached from any earlier node, expected a parent before its child");
}

}  // namespace
}  // namespace kdtree
