// kdtree make-case: writes a generated verify step as a bundle.
#include <memory>

#include "cases/random.h"
#include "cli/acceptance.h"
#include "cli/case_options.h"
#include "cli/command.h"
#include "cli/exit_codes.h"
#include "cli/interrupt.h"
#include "cli/memory.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/verify_run.h"
#include "io/bundle.h"

namespace kdtree::cli {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  kdtree make-case step.safetensors\n"
    "  kdtree make-case --heads 16 --prefix 1000,37,0 --nodes 33,17,8 --with-output step.safetensors\n"
    "  kdtree make-case --dtype bf16 --kv-dtype e4m3 --encoding mask --page-size 64 fp8.safetensors\n";

struct MakeCaseOptions {
  CaseOptions spec;
  std::string file;
  bool with_output = false;
};

constexpr int64_t kVocab = 32000;

// A target that agrees with one of a node's children three times in four.
std::vector<int32_t> target_tokens(const DraftTree& tree, Random& random) {
  std::vector<std::vector<int32_t>> children(tree.parent.size());
  for (size_t node = 1; node < tree.parent.size(); ++node)
    children[static_cast<size_t>(tree.parent[node])].push_back(tree.token[node]);
  std::vector<int32_t> targets;
  for (const auto& tokens : children) {
    const bool agrees = random.uniform() < 0.75;
    targets.push_back(agrees && !tokens.empty()
                          ? tokens[static_cast<size_t>(random.below(static_cast<int64_t>(tokens.size())))]
                          : static_cast<int32_t>(random.below(kVocab)));
  }
  return targets;
}

void add_tokens(const VerifyCase& made, Bundle& bundle) {
  Random random(made.spec.seed ^ 0x6163636570740000u);
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
  for (const DraftTree& tree : made.trees) {
    tokens.insert(tokens.end(), tree.token.begin(), tree.token.end());
    const auto chosen = target_tokens(tree, random);
    targets.insert(targets.end(), chosen.begin(), chosen.end());
  }
  bundle.tokens = Tensor::from<int32_t>(DType::i32, tokens);
  bundle.target_tokens = Tensor::from<int32_t>(DType::i32, targets);
}

Status add_output(Bundle& bundle) {
  auto result = run_backend(bundle.problem, KDTREE_BACKEND_ORACLE, false, "oracle");
  KDTREE_RETURN_IF_ERROR(result);
  const VerifyProblem& p = result->params;
  bundle.problem.scalars.out_token_stride = p.out_token_stride;
  bundle.problem.scalars.out_head_stride = p.out_head_stride;
  bundle.problem.scalars.lse_token_stride = p.lse_token_stride;
  bundle.problem.scalars.lse_head_stride = p.lse_head_stride;
  bundle.problem.scalars.lse_dtype = p.lse_dtype;
  bundle.problem.out = std::move(result->out);
  bundle.problem.lse = std::move(result->lse);
  return {};
}

Result<int> run(const MakeCaseOptions& options) {
  const auto spec = case_spec(options.spec);
  KDTREE_RETURN_IF_ERROR(spec);
  auto made = [&] {
    ProgressLine progress("KV rows");
    return make_verify_case(*spec, [&](int64_t done, int64_t total) { return progress.update(done, total); });
  }();
  KDTREE_RETURN_IF_ERROR(made);
  if (interrupted()) return kExitInterrupted;
  Bundle bundle;
  add_tokens(*made, bundle);
  bundle.problem = std::move(made->problem);
  bundle.problem.out = {};
  bundle.problem.lse = {};
  KDTREE_RETURN_IF_ERROR(record_acceptance(bundle));
  if (options.with_output) KDTREE_RETURN_IF_ERROR(add_output(bundle));
  bundle.provenance = {{"command", fmt::format("kdtree make-case {}{}", command_line(options.spec),
                                               options.with_output ? " --with-output" : "")},
                       {"version", kdtree_version()},
                       {"seed", fmt::format("{}", options.spec.seed)}};
  if (interrupted()) return kExitInterrupted;
  KDTREE_RETURN_IF_ERROR(write_bundle(options.file, bundle));
  const VerifyProblem p = bundle.problem.params();
  print_out("{}: {} request{}, {} rows, {} heads, longest prefix {}{}\n", options.file, p.batch,
            p.batch == 1 ? "" : "s", total_rows(p), p.heads, max_prefix_length(p),
            options.with_output ? ", with the oracle's output" : "");
  return kExitOk;
}

}  // namespace

void add_make_case(CLI::App& app, Action& action) {
  auto options = std::make_shared<MakeCaseOptions>();
  CLI::App* command = app.add_subcommand("make-case", "Write a generated verify step as a bundle");
  add_case_options(*command, options->spec);
  command->add_flag("--with-output", options->with_output, "Record the oracle's out and lse");
  command->add_option("FILE", options->file, "Bundle to write (.safetensors)")->required();
  command->footer(kExamples);
  command->callback([&action, options] { action = [options] { return run(*options); }; });
}

}  // namespace kdtree::cli
