// Walking the acceptance of a bundle's trees.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "core/status.h"
#include "io/bundle.h"

namespace kdtree::cli {

// Fills bundle.accept_path and bundle.accept_count from its tokens, target tokens and trees; padding rows are
// left out of the walk. Errors: KDTREE_INVALID_TREE.
Status record_acceptance(Bundle& bundle);

// Whether the bundle holds all that a walk and its recorded result take.
bool has_acceptance(const Bundle& bundle);

// Walks again, with these target tokens [T]. nullopt when the recorded paths are the same, else what differs:
// "request 1: path 0 2 5, recorded 0 2".
Result<std::optional<std::string>> check_acceptance(const Bundle& bundle, std::span<const int32_t> targets);

}  // namespace kdtree::cli
