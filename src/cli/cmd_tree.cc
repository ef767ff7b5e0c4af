// kdtree tree: builds a draft tree from logits and shows it.
#include <algorithm>
#include <limits>
#include <memory>

#include "cli/command.h"
#include "cli/exit_codes.h"
#include "cli/interrupt.h"
#include "cli/logits.h"
#include "cli/memory.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/tree_ascii.h"
#include "cli/tree_json.h"
#include "cli/tree_svg.h"
#include "core/checked.h"
#include "io/atomic_file.h"

namespace kdtree::cli {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  kdtree tree --random --nodes 24 --svg tree.svg\n"
    "  kdtree tree draft_logits.npy --nodes 64 --target target_tokens.npy\n"
    "  kdtree tree step.safetensors --tensor draft_logits --json | jq .accept_path\n";

// Beyond these a tree is no draft tree: published block sizes end at 16, budgets at 1024.
constexpr int64_t kMostPositions = 1024;
constexpr int64_t kMostNodes = 65536;
constexpr int64_t kMostVocab = int64_t{1} << 24;

struct TreeOptions {
  std::string logits;
  std::string tensor;
  bool random = false;
  uint64_t seed = 1;
  int64_t positions = 7;
  int64_t vocab = 32000;
  int32_t nodes = 16;
  int32_t top_k = 0;  // 0 = min(nodes, vocab)
  int32_t root_token = 1;
  int64_t start = 0;
  std::string target;
  std::string accept;  // none, greedy, sample; "" = sample with --random, else none
  std::string svg;
  bool json = false;
};

Result<Tensor> load_logits(const TreeOptions& options) {
  if (options.random == !options.logits.empty()) {
    return fail(KDTREE_INVALID_ARGUMENT, "LOGITS: {}, expected a file or --random{}",
                options.random ? fmt::format("'{}' and --random", options.logits) : "none",
                options.random ? ", not both" : "");
  }
  if (!options.random) return read_logits(options.logits, options.tensor);
  // Logits, and the token order while they are made.
  const auto bytes = checked_mul(options.vocab, 4 * options.positions + 8);
  KDTREE_RETURN_IF_ERROR(check_memory(bytes, "--positions, --vocab"));
  return random_logits(options.seed, options.positions, options.vocab);
}

Status add_acceptance(const TreeOptions& options, const Tensor& logits, TreeReport& report) {
  const std::string simulated = !options.accept.empty() ? options.accept : options.random ? "sample" : "none";
  if (!options.target.empty()) {
    auto targets = read_target_tokens(options.target, report.tree.size());
    KDTREE_RETURN_IF_ERROR(targets);
    report.target_tokens = *std::move(targets);
  } else if (simulated != "none") {
    if (logits.shape[0] == 0) return {};
    // Another stream than the logits': the same seed must not make the target follow the drafter's noise.
    report.target_tokens =
        simulate_targets(logits, report.tree, simulated == "greedy" ? Simulation::greedy : Simulation::sample,
                         options.seed ^ 0x7461726765740000u);
  } else {
    return {};
  }
  return accept(report);
}

Result<int> run(const TreeOptions& options) {
  const auto logits = load_logits(options);
  KDTREE_RETURN_IF_ERROR(logits);
  if (interrupted()) return kExitInterrupted;
  TreeReport report;
  report.source = options.random ? fmt::format("random, seed {}", options.seed) : options.logits;
  report.positions = logits->shape[0];
  report.vocab = logits->shape[1];
  report.budget = options.nodes;
  report.start = options.start;
  if (report.positions > kMostPositions) {
    return fail(KDTREE_INVALID_FILE, "{}: {} positions, expected at most {}", options.logits,
                report.positions, kMostPositions);
  }
  if (options.top_k > report.vocab) {
    return fail(KDTREE_INVALID_ARGUMENT, "--top-k: {}, expected at most the vocabulary's {}", options.top_k,
                report.vocab);
  }
  const int64_t most_k = std::min<int64_t>(std::max(options.nodes, 1), report.vocab);
  report.top_k = options.top_k > 0 ? options.top_k : static_cast<int32_t>(most_k);
  auto tree = build_tree(*logits, report.top_k, options.root_token, options.nodes);
  if (!tree) return with_context(tree.error(), report.source + ": ");
  report.tree = *std::move(tree);
  KDTREE_RETURN_IF_ERROR(add_acceptance(options, *logits, report));
  if (interrupted()) return kExitInterrupted;

  if (!options.svg.empty()) {
    const std::string svg = tree_svg(report);
    const std::span<const std::byte> parts[] = {std::as_bytes(std::span(svg))};
    KDTREE_RETURN_IF_ERROR(write_file_atomically(options.svg, parts));
  }
  if (options.json) {
    print_out("{}\n", tree_json(report).dump(2));
  } else {
    write_out(tree_ascii(report, {utf8_wanted(), colours_wanted()}));
  }
  return kExitOk;
}

}  // namespace

void add_tree(CLI::App& app, Action& action) {
  auto options = std::make_shared<TreeOptions>();
  TreeOptions& o = *options;
  constexpr int64_t kMostToken = std::numeric_limits<int32_t>::max();
  CLI::App* command = app.add_subcommand("tree", "Build a draft tree from logits and draw it");
  command->add_option("LOGITS", o.logits,
                      "Drafter logits [positions, vocab], .npy or .safetensors; f32, bf16, f16");
  command->add_option("--tensor", o.tensor, "Tensor of the .safetensors file, when it holds several");
  CLI::Option* random = command->add_flag("--random", o.random, "Made-up logits instead of a file");
  command->add_option("--seed", o.seed, "Seed of everything random")
      ->check(seed_value())
      ->capture_default_str();
  command->add_option("--positions", o.positions, "Draft positions, with --random")
      ->check(integer_in(1, kMostPositions))
      ->needs(random)
      ->capture_default_str();
  command->add_option("--vocab", o.vocab, "Vocabulary, with --random")
      ->check(integer_in(1, kMostVocab))
      ->needs(random)
      ->capture_default_str();
  command->add_option("--nodes", o.nodes, "Node budget, the root not counted")
      ->check(integer_in(0, kMostNodes))
      ->capture_default_str();
  command->add_option("--top-k", o.top_k, "Candidates a position (default: the node budget)")
      ->check(integer_in(1, kMostVocab));
  command->add_option("--root-token", o.root_token, "Token of the root")
      ->check(integer_in(0, kMostToken))
      ->capture_default_str();
  command->add_option("--start", o.start, "Position of the root (the committed length)")
      ->check(integer_in(0, int64_t{1} << 40))
      ->capture_default_str();
  CLI::Option* target =
      command->add_option("--target", o.target, "Target token of each row, .npy, int32 or int64");
  command
      ->add_option(
          "--accept", o.accept,
          "Simulated target: draws from the drafter's distributions, its best tokens, or none (default: "
          "sample with --random, else none)")
      ->check(one_of({"sample", "greedy", "none"}))
      ->excludes(target);
  command->add_option("--svg", o.svg, "Also write a picture to this file");
  command->add_flag("--json", o.json, "Print one JSON object");
  command->footer(kExamples);
  command->callback([&action, options] { action = [options] { return run(*options); }; });
}

}  // namespace kdtree::cli
