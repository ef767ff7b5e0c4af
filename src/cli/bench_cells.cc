#include "cli/bench_cells.h"

#include <algorithm>

#include "cli/interrupt.h"
#include "cli/logits.h"
#include "cli/memory.h"
#include "cli/tree_report.h"
#include "cli/verify_run.h"
#include "tree/accept.h"
#include "tree/ancestor_bits.h"
#include "tree/best_first.h"
#include "tree/retrieve.h"
#include "tree/top_k.h"

namespace kdtree::cli {
namespace {

// Multiplications and additions of both products over the keys that each row sees.
double attention_flop(const VerifyCase& c) {
  double keys = 0.0;
  for (size_t r = 0; r < c.trees.size(); ++r) {
    for (const int32_t depth : c.trees[r].depth)
      keys += static_cast<double>(c.spec.requests[r].prefix_length + depth + 1);
  }
  return 2.0 * keys * c.spec.heads * (2.0 * c.spec.latent_dim + c.spec.rope_dim);
}

// Everything a round does on the host for one request, over buffers allocated once.
class TreeRound {
 public:
  TreeRound(const TreeBenchSize& size, Tensor logits) : logits_(std::move(logits)) {
    k_ = static_cast<int32_t>(std::min<int64_t>(std::max(size.budget, 1), size.vocab));
    budget_ = size.budget;
    tokens_.resize(static_cast<size_t>(size.positions * k_));
    log_probs_.resize(tokens_.size());
    const auto nodes = static_cast<size_t>(budget_) + 1;
    token_.resize(nodes);
    parent_.resize(nodes);
    depth_.resize(nodes);
    weight_.resize(nodes);
    path_.resize(nodes);
    emitted_.resize(nodes);
    next_token_.resize(nodes);
    next_sibling_.resize(nodes);
    words_ = ceil_div(static_cast<int64_t>(nodes), 64);
    bits_.resize(nodes * static_cast<size_t>(words_));
  }

  Status allocate() {
    Scratch sizes;
    top_k_scratch(k_, sizes);
    Scratch build_sizes;
    best_first_scratch(static_cast<int32_t>(logits_.shape[0]), k_, budget_, build_sizes);
    auto workspace = Workspace::allocate(static_cast<size_t>(std::max(sizes.used(), build_sizes.used())));
    KDTREE_RETURN_IF_ERROR(workspace);
    workspace_ = *std::move(workspace);
    return {};
  }

  Status top_k() {
    const int64_t vocab = logits_.shape[1];
    for (int64_t row = 0; row < logits_.shape[0]; ++row) {
      Scratch scratch(workspace_.data(), workspace_.size());
      const auto first = static_cast<size_t>(row * k_);
      const auto count = static_cast<size_t>(k_);
      KDTREE_RETURN_IF_ERROR(top_k_row(logits_.bytes.data() + row * vocab * dtype_size(logits_.dtype),
                                       logits_.dtype, static_cast<int32_t>(vocab),
                                       std::span(tokens_).subspan(first, count),
                                       std::span(log_probs_).subspan(first, count), scratch));
    }
    return {};
  }

  Status build() {
    Scratch scratch(workspace_.data(), workspace_.size());
    const auto nodes =
        build_best_first({tokens_.data(), log_probs_.data(), static_cast<int32_t>(logits_.shape[0]), k_}, 1,
                         budget_, {token_, parent_, depth_, weight_}, scratch);
    KDTREE_RETURN_IF_ERROR(nodes);
    nodes_ = static_cast<size_t>(*nodes);
    return {};
  }

  Status compile() {
    const std::span<const int32_t> parents(parent_.data(), nodes_);
    depths_from_parents(parents, std::span(depth_).first(nodes_));
    ancestor_bits_from_parents(parents, std::span(bits_).first(nodes_ * static_cast<size_t>(words_)), words_);
    retrieve_from_parents(parents, std::span(next_token_).first(nodes_),
                          std::span(next_sibling_).first(nodes_));
    return {};
  }

  Status accept() {
    const auto result =
        accept_path(std::span<const int32_t>(parent_.data(), nodes_),
                    std::span<const int32_t>(token_.data(), nodes_), targets_, {}, path_, emitted_);
    KDTREE_RETURN_IF_ERROR(result);
    return {};
  }

  // A target that follows the drafter's distributions; after build().
  void choose_targets(uint64_t seed) {
    DraftTree tree;
    tree.depth.assign(depth_.begin(), depth_.begin() + static_cast<std::ptrdiff_t>(nodes_));
    targets_ = simulate_targets(logits_, tree, Simulation::sample, seed);
  }

  const Tensor& logits() const { return logits_; }
  size_t nodes() const { return nodes_; }

 private:
  Tensor logits_;
  Workspace workspace_;
  int32_t k_ = 1;
  int32_t budget_ = 0;
  int64_t words_ = 1;
  size_t nodes_ = 1;
  std::vector<int32_t> tokens_, token_, parent_, depth_, targets_, path_, emitted_;
  std::vector<float> log_probs_;
  std::vector<double> weight_;
  std::vector<uint64_t> bits_;
  std::vector<int64_t> next_token_, next_sibling_;
};

}  // namespace

Result<std::vector<BenchCell>> bench_attention(VerifyCase& verify_case, const std::vector<Backend>& chosen,
                                               bool named, int repeat) {
  std::vector<int32_t> ids = {KDTREE_BACKEND_ORACLE};
  std::vector<std::string> names = {"oracle"};
  for (const Backend& backend : chosen) {
    if (std::ranges::find(ids, backend.id) != ids.end()) continue;
    ids.push_back(backend.id);
    names.emplace_back(backend.name);
  }
  std::vector<BenchCell> cells;
  for (size_t i = 0; i < ids.size() && !interrupted(); ++i) {
    auto run = prepare_run(verify_case.problem, ids[i], false);
    if (!run && run.error().code == KDTREE_UNSUPPORTED && !named) {
      fmt::print(stderr, "left out: {}\n", run.error().message);
      continue;
    }
    if (!run) return with_context(run.error(), names[i] + ": ");
    ProgressLine progress(names[i]);
    const auto timing = time_runs([&] { return run->execute(progress); }, repeat);
    if (!timing) return with_context(timing.error(), names[i] + ": ");
    BenchCell cell{"verify-attn", names[i], *timing, attention_flop(verify_case), 0.0, 0.0, "oracle", 0.0};
    cell.baseline_us = cells.empty() ? timing->median_us : cells.front().timing.median_us;
    cells.push_back(std::move(cell));
  }
  return cells;
}

Result<std::vector<BenchCell>> bench_tree(const TreeBenchSize& size, int repeat) {
  TreeRound round(size, random_logits(size.seed, size.positions, size.vocab));
  KDTREE_RETURN_IF_ERROR(round.allocate());
  std::vector<BenchCell> cells;
  const auto add = [&](const char* bench, auto&& step) -> Status {
    const auto timing = time_runs(step, repeat);
    KDTREE_RETURN_IF_ERROR(timing);
    cells.push_back({bench, "cpu", *timing, 0.0, 0.0, static_cast<double>(round.nodes()), "", 0.0});
    return {};
  };
  KDTREE_RETURN_IF_ERROR(add("tree-top-k", [&] { return round.top_k(); }));
  cells.back().items = 0.0;
  cells.back().bytes = static_cast<double>(round.logits().bytes.size());
  KDTREE_RETURN_IF_ERROR(add("tree-build", [&] { return round.build(); }));
  round.choose_targets(size.seed);
  KDTREE_RETURN_IF_ERROR(add("tree-compile", [&] { return round.compile(); }));
  KDTREE_RETURN_IF_ERROR(add("tree-accept", [&] { return round.accept(); }));
  return cells;
}

}  // namespace kdtree::cli
