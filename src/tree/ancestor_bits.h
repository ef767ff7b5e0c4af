// Ancestor bits: the packed form of a tree mask.
#pragma once

#include <cstdint>
#include <span>

#include "core/status.h"

namespace kdtree {

// bits[i] = bits[parent] | 1 << i over rows of `stride` 64-bit words (>= ceil(N / 64); words beyond are
// zeroed). `parents` is a valid tree, and may hold KDTREE_PARENT_PADDING rows, which stay all-zero.
void ancestor_bits_from_parents(std::span<const int32_t> parents, std::span<uint64_t> bits, int64_t stride);

// The way back. Every row must equal its parent's row plus itself, or be all-zero (padding).
// Errors: KDTREE_INVALID_TREE naming node and column.
Status parents_from_ancestor_bits(std::span<const uint64_t> bits, int64_t stride, std::span<int32_t> parents);

}  // namespace kdtree
