#include "tree/accept.h"

#include <algorithm>

namespace kdtree {

Result<Acceptance> accept_path(std::span<const int32_t> parents, std::span<const int32_t> tokens,
                               const TargetToken& target_token, const AcceptLimits& limits,
                               std::span<int32_t> path, std::span<int32_t> emitted) {
  Acceptance result;
  size_t node = 0;
  size_t scan = 1;  // topological order: a child comes after its parent, so one pass finds every step
  for (;;) {
    const auto row = static_cast<size_t>(result.count);
    if (row >= path.size() || row >= emitted.size()) {
      return fail(KDTREE_BUFFER_TOO_SMALL, "accept_path holds {} nodes, expected more: the path is longer",
                  std::min(path.size(), emitted.size()));
    }
    // This row is committed; what the target says there is emitted.
    const auto asked = target_token(static_cast<int32_t>(node));
    if (!asked) return tl::unexpected<Error>(asked.error());
    const int32_t token = *asked;
    path[row] = static_cast<int32_t>(node);
    emitted[row] = token;
    result.count += 1;
    result.next_root = token;
    if (std::find(limits.eos_tokens.begin(), limits.eos_tokens.end(), token) != limits.eos_tokens.end()) {
      result.finish_reason = KDTREE_FINISH_EOS;
      return result;
    }
    if (result.count == limits.max_tokens) {
      result.finish_reason = KDTREE_FINISH_LENGTH;
      return result;
    }
    while (scan < parents.size() && !(parents[scan] == static_cast<int32_t>(node) && tokens[scan] == token)) {
      ++scan;
    }
    if (scan == parents.size()) return result;
    node = scan++;
  }
}

Result<Acceptance> accept_path(std::span<const int32_t> parents, std::span<const int32_t> tokens,
                               std::span<const int32_t> target_tokens, const AcceptLimits& limits,
                               std::span<int32_t> path, std::span<int32_t> emitted) {
  // One pointer: std::function keeps it without allocating.
  const TargetToken lookup = [&target_tokens](int32_t node) -> Result<int32_t> {
    return target_tokens[static_cast<size_t>(node)];
  };
  return accept_path(parents, tokens, lookup, limits, path, emitted);
}

}  // namespace kdtree
