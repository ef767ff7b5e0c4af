#include "cli/acceptance.h"

#include <algorithm>
#include <vector>

#include <fmt/ranges.h>

#include "attention/tree_encoding.h"
#include "tree/accept.h"

namespace kdtree::cli {
namespace {

using Path = std::vector<int32_t>;

Result<Path> walk(const Bundle& bundle, const VerifyProblem& problem, std::span<const int32_t> all_targets,
                  int32_t request) {
  const RequestView view = request_view(problem, request);
  const auto nodes = static_cast<size_t>(view.nodes);
  const auto read = read_parents(problem, request);
  KDTREE_RETURN_IF_ERROR(read);
  const Path& parents = *read;

  // The walk knows no padding rows: number the others 0, 1, ...
  const auto tokens = bundle.tokens.as<int32_t>().subspan(static_cast<size_t>(view.row_begin), nodes);
  const auto targets = all_targets.subspan(static_cast<size_t>(view.row_begin), nodes);
  Path number(nodes, -1);
  Path original;
  Path tree;
  Path tree_tokens;
  Path tree_targets;
  for (size_t node = 0; node < nodes; ++node) {
    if (parents[node] == KDTREE_PARENT_PADDING) continue;
    number[node] = static_cast<int32_t>(original.size());
    original.push_back(static_cast<int32_t>(node));
    tree.push_back(parents[node] < 0 ? -1 : number[static_cast<size_t>(parents[node])]);
    tree_tokens.push_back(tokens[node]);
    tree_targets.push_back(targets[node]);
  }
  if (original.empty()) return Path{};
  Path path(original.size());
  Path emitted(original.size());
  const AcceptLimits limits = {.eos_tokens = bundle.eos_tokens.as<int32_t>()};
  const auto acceptance = accept_path(tree, tree_tokens, tree_targets, limits, path, emitted);
  KDTREE_RETURN_IF_ERROR(acceptance);
  path.resize(static_cast<size_t>(acceptance->count));
  for (int32_t& node : path)
    node = original[static_cast<size_t>(node)];
  return path;
}

Result<std::vector<Path>> walk_all(const Bundle& bundle, std::span<const int32_t> targets) {
  // params() hands out pointers for a run to write through; the walk only reads.
  const VerifyProblem problem = const_cast<OwnedProblem&>(bundle.problem).params();
  std::vector<Path> paths;
  for (int32_t r = 0; r < problem.batch; ++r) {
    auto path = walk(bundle, problem, targets, r);
    if (!path) return with_context(path.error(), fmt::format("request {}: ", r));
    paths.push_back(*std::move(path));
  }
  return paths;
}

}  // namespace

Status record_acceptance(Bundle& bundle) {
  const auto paths = walk_all(bundle, bundle.target_tokens.as<int32_t>());
  KDTREE_RETURN_IF_ERROR(paths);
  size_t longest = 1;
  for (const Path& path : *paths)
    longest = std::max(longest, path.size());
  const auto batch = static_cast<int64_t>(paths->size());
  bundle.accept_path = Tensor(DType::i32, {batch, static_cast<int64_t>(longest)});
  bundle.accept_count = Tensor(DType::i32, {batch});
  std::ranges::fill(bundle.accept_path.as<int32_t>(), -1);
  for (size_t r = 0; r < paths->size(); ++r) {
    std::ranges::copy((*paths)[r], bundle.accept_path.as<int32_t>().subspan(r * longest).begin());
    bundle.accept_count.as<int32_t>()[r] = static_cast<int32_t>((*paths)[r].size());
  }
  return {};
}

bool has_acceptance(const Bundle& bundle) {
  return bundle.tokens.present() && bundle.target_tokens.present() && bundle.accept_path.present() &&
         bundle.accept_count.present();
}

Result<std::optional<std::string>> check_acceptance(const Bundle& bundle, std::span<const int32_t> targets) {
  const auto paths = walk_all(bundle, targets);
  KDTREE_RETURN_IF_ERROR(paths);
  const auto columns = static_cast<size_t>(bundle.accept_path.shape[1]);
  for (size_t r = 0; r < paths->size(); ++r) {
    const auto count = static_cast<size_t>(bundle.accept_count.as<int32_t>()[r]);
    const auto recorded = bundle.accept_path.as<int32_t>().subspan(r * columns, count);
    if (!std::ranges::equal(recorded, (*paths)[r])) {
      return fmt::format("request {}: path {}, recorded {}", r, fmt::join((*paths)[r], " "),
                         fmt::join(recorded, " "));
    }
  }
  return std::nullopt;
}

}  // namespace kdtree::cli
