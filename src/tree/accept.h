// The acceptance walk: the longest path of a draft tree that the target model agrees with.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "core/status.h"

namespace kdtree {

struct AcceptLimits {
  std::span<const int32_t> eos_tokens;
  int32_t max_tokens = 0;  // tokens that may still be emitted; 0 = no limit
};

struct Acceptance {
  int32_t count = 0;      // emitted tokens = committed rows (the field's accept length tau), >= 1
  int32_t next_root = 0;  // the last emitted token
  int32_t finish_reason = KDTREE_FINISH_NONE;
};

// See kdtree_tree_accept for the rule. `parents` is a valid tree without padding rows; tokens of siblings are
// distinct. `path` and `emitted` receive `count` entries. Errors: KDTREE_BUFFER_TOO_SMALL.
Result<Acceptance> accept_path(std::span<const int32_t> parents, std::span<const int32_t> tokens,
                               std::span<const int32_t> target_tokens, const AcceptLimits& limits,
                               std::span<int32_t> path, std::span<int32_t> emitted);

// The same with a target that is asked for the nodes on the path alone, in order; its error ends the walk.
using TargetToken = std::function<Result<int32_t>(int32_t node)>;
Result<Acceptance> accept_path(std::span<const int32_t> parents, std::span<const int32_t> tokens,
                               const TargetToken& target_token, const AcceptLimits& limits,
                               std::span<int32_t> path, std::span<int32_t> emitted);

}  // namespace kdtree
