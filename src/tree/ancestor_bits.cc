#include "tree/ancestor_bits.h"

#include <algorithm>
#include <bit>

#include "core/checked.h"

namespace kdtree {

void ancestor_bits_from_parents(std::span<const int32_t> parents, std::span<uint64_t> bits, int64_t stride) {
  const auto words = static_cast<size_t>(stride);
  for (size_t i = 0; i < parents.size(); ++i) {
    const auto row = bits.subspan(i * words, words);
    if (parents[i] >= 0) {
      const auto parent_row = bits.subspan(static_cast<size_t>(parents[i]) * words, words);
      std::copy(parent_row.begin(), parent_row.end(), row.begin());
    } else {
      std::fill(row.begin(), row.end(), uint64_t{0});
    }
    if (parents[i] != KDTREE_PARENT_PADDING) row[i / 64] |= uint64_t{1} << (i % 64);
  }
}

Status parents_from_ancestor_bits(std::span<const uint64_t> bits, int64_t stride,
                                  std::span<int32_t> parents) {
  const auto words = static_cast<size_t>(stride);
  for (size_t i = 0; i < parents.size(); ++i) {
    const auto row = bits.subspan(i * words, words);
    // The parent is the highest ancestor below i; the row must then be the parent's plus itself.
    int64_t parent = -1;
    bool empty = true;
    for (size_t w = words; w-- > 0;) {
      uint64_t word = row[w];
      empty = empty && word == 0;
      if (w == i / 64) word &= (uint64_t{1} << (i % 64)) - 1;
      if (w <= i / 64 && word != 0 && parent < 0) {
        parent = static_cast<int64_t>(w) * 64 + 63 - std::countl_zero(word);
      }
    }
    if (empty) {
      parents[i] = KDTREE_PARENT_PADDING;
      continue;
    }
    if (parent < 0 && i > 0) {
      return fail(KDTREE_INVALID_TREE,
                  "ancestor bits of node {}: no ancestor below it is set, expected a descendant of node 0",
                  i);
    }
    if (parent >= 0 && parents[static_cast<size_t>(parent)] == KDTREE_PARENT_PADDING) {
      return fail(KDTREE_INVALID_TREE, "ancestor bits of node {}: its ancestor {} is a padding row", i,
                  parent);
    }
    for (size_t w = 0; w < words; ++w) {
      uint64_t expected = parent < 0 ? 0 : bits[static_cast<size_t>(parent) * words + w];
      if (w == i / 64) expected |= uint64_t{1} << (i % 64);
      if (row[w] == expected) continue;
      const size_t column = w * 64 + static_cast<size_t>(std::countr_zero(row[w] ^ expected));
      const uint64_t seen = row[w] >> (column % 64) & 1;
      return fail(KDTREE_INVALID_TREE,
                  "ancestor bits of node {}: column {} is {}, expected {} (its parent {}'s row and itself)",
                  i, column, seen, 1 - seen, parent);
    }
    parents[i] = static_cast<int32_t>(parent);
  }
  return {};
}

}  // namespace kdtree
