// SGLang's tree encoding: first child and next sibling links (local node numbers, -1 = none).
#pragma once

#include <cstdint>
#include <span>

#include "core/status.h"

namespace kdtree {

// Children in ascending order. `parents` is a valid tree.
void retrieve_from_parents(std::span<const int32_t> parents, std::span<int64_t> next_token,
                           std::span<int64_t> next_sibling);

// Errors: KDTREE_INVALID_TREE: link out of range, node reached twice (cycle or shared), node never reached,
// child before its parent.
Status parents_from_retrieve(std::span<const int64_t> next_token, std::span<const int64_t> next_sibling,
                             std::span<int32_t> parents);

}  // namespace kdtree
