// kdtree verify: runs backends on recorded verify steps and compares them with the oracle.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "cli/acceptance.h"
#include "cli/command.h"
#include "cli/exit_codes.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verify_report.h"
#include "cli/verify_run.h"
#include "io/bundle.h"

namespace kdtree::cli {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  kdtree verify bundles/\n"
    "  kdtree verify step.safetensors --backend cpu --backend oracle --show 20\n"
    "  kdtree verify bundles/ --model models/tiny/target\n"
    "  kdtree verify bundles/ --json | jq '.bundles[] | select(.passed | not) | .file'\n";

struct VerifyOptions {
  std::vector<std::string> paths;
  std::vector<std::string> backends;
  std::string model;
  double tolerance = 0.0;  // 0 = by element type
  int64_t show = 5;
  bool json = false;
};

// Files as they are; a folder's *.safetensors, sorted.
Result<std::vector<std::string>> bundle_files(const std::vector<std::string>& paths) {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      files.push_back(path);  // opening it will tell what is wrong
      continue;
    }
    std::vector<std::string> found;
    for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
      if (entry->path().extension() == ".safetensors") found.push_back(entry->path().string());
    }
    if (error) return fail(KDTREE_IO_ERROR, "{}: {}", path, error.message());
    if (found.empty())
      return fail(KDTREE_IO_ERROR, "{}: no *.safetensors file, expected at least one bundle", path);
    std::ranges::sort(found);
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

std::string shape_text(const VerifyProblem& p) {
  return fmt::format("{} request{}, {} rows, {} heads, {}+{} columns, longest prefix {}, q {}, kv {}, out {}",
                     p.batch, p.batch == 1 ? "" : "s", total_rows(p), p.heads, p.latent_dim, p.rope_dim,
                     max_prefix_length(p), dtype_name(static_cast<DType>(p.q_dtype)),
                     dtype_name(static_cast<DType>(p.kv_dtype)), dtype_name(static_cast<DType>(p.out_dtype)));
}

// `replay` is null without a model.
Status check_bundle(const VerifyOptions& options, const std::vector<Backend>& chosen, BundleReplay* replay,
                    BundleReport& report) {
  auto bundle = read_bundle(report.file);
  KDTREE_RETURN_IF_ERROR(bundle);
  if (replay != nullptr && !bundle->resumable()) {
    report.tokens_unchecked = "the bundle does not hold what follows its layer";
    replay = nullptr;
  } else if (replay == nullptr && bundle->resumable()) {
    report.tokens_unchecked = "give --model";
  }
  if (replay != nullptr) {
    if (Status status = replay->check(*bundle); !status)
      return with_context(status.error(), report.file + ": ");
  }
  OwnedProblem& problem = bundle->problem;
  const VerifyProblem recorded = problem.params();
  report.shape = shape_text(recorded);
  const auto reference = run_backend(problem, KDTREE_BACKEND_ORACLE, true, report.file + " oracle");
  if (!reference) return with_context(reference.error(), report.file + ": oracle: ");
  const double tolerance = options.tolerance > 0.0 ? options.tolerance
                                                   : default_tolerance(static_cast<DType>(recorded.out_dtype),
                                                                       static_cast<DType>(recorded.kv_dtype));
  const auto compare = [&](const char* name, const VerifyProblem& got) -> Status {
    BackendReport& own = report.backends.emplace_back();
    own.name = name;
    own.comparison = compare_results(got, reference->params, tolerance, options.show);
    if (replay == nullptr) return {};
    auto tokens = check_tokens(*replay, *bundle, got, options.show);
    if (!tokens) return with_context(tokens.error(), fmt::format("{}: tokens: ", report.file));
    own.tokens = *std::move(tokens);
    return {};
  };
  for (const Backend& backend : chosen) {
    if (interrupted()) return {};
    const auto run = run_backend(problem, backend.id, false, fmt::format("{} {}", report.file, backend.name));
    if (interrupted()) return {};
    if (run) {
      if (run->device) report.automatic = automatic_backend(run->device->params());
      KDTREE_RETURN_IF_ERROR(compare(backend.name, run->params));
    } else {
      BackendReport& own = report.backends.emplace_back();
      own.name = backend.name;
      own.error = run.error();
    }
  }
  if (!names_backends(options.backends)) report.pass_over_unsupported();
  if (problem.out.present()) KDTREE_RETURN_IF_ERROR(compare("recorded", recorded));
  if (has_acceptance(*bundle)) {
    auto difference = check_acceptance(*bundle, bundle->target_tokens.as<int32_t>());
    if (!difference) return with_context(difference.error(), report.file + ": ");
    report.acceptance_checked = true;
    report.acceptance_difference = *std::move(difference);
  }
  return {};
}

int exit_code(const std::vector<BundleReport>& reports) {
  if (std::ranges::any_of(reports, &BundleReport::mismatched)) return kExitMismatch;
  for (const BundleReport& report : reports) {
    if (const Error* error = report.first_error()) return exit_code_of(error->code);
  }
  return kExitOk;
}

Result<int> run(const VerifyOptions& options) {
  const auto chosen = select_backends(options.backends);
  KDTREE_RETURN_IF_ERROR(chosen);
  const auto files = bundle_files(options.paths);
  KDTREE_RETURN_IF_ERROR(files);
  std::optional<TargetModel> model;
  std::optional<BundleReplay> replay;
  if (!options.model.empty()) {
    auto loaded = TargetModel::load(options.model);
    if (!loaded) return with_context(loaded.error(), "--model: ");
    model = *std::move(loaded);
    auto made = BundleReplay::create(*model);
    if (!made) return with_context(made.error(), "--model: ");
    replay.emplace(*std::move(made));
  }
  std::vector<BundleReport> reports;
  nlohmann::ordered_json json;
  for (const std::string& file : *files) {
    BundleReport report;
    report.file = file;
    if (Status status = check_bundle(options, *chosen, replay ? &*replay : nullptr, report); !status)
      report.error = status.error();
    if (interrupted()) return kExitInterrupted;
    if (options.json) {
      json["bundles"].push_back(report_json(report));
    } else if (!report.error) {
      write_out(report_text(report, colours_wanted()));
    }
    if (const Error* error = report.first_error()) print_error(error->message);
    reports.push_back(std::move(report));
  }
  const int code = exit_code(reports);
  if (options.json) {
    json["passed"] = code == kExitOk;
    print_out("{}\n", json.dump(2));
  } else if (reports.size() > 1) {
    const auto passed = std::ranges::count_if(
        reports, [](const BundleReport& r) { return !r.mismatched() && r.first_error() == nullptr; });
    print_out(
        "{} of {} bundles pass{}\n", passed, reports.size(),
        replay ? fmt::format(", {} token-exact", std::ranges::count_if(reports, &BundleReport::token_exact))
               : "");
  }
  return code;
}

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* command =
      app.add_subcommand("verify", "Run backends on bundles and compare them with the oracle");
  command->add_option("PATH", options->paths, "Bundles, or folders of them")->required();
  command
      ->add_option("--backend", options->backends,
                   "Backend to check; repeatable (default: all available but the oracle)")
      ->allow_extra_args(false);
  command->add_option(
      "--model", options->model,
      "Folder of the model that was recorded: its layers behind the recorded one must give the "
      "recorded tokens");
  command
      ->add_option("--tolerance", options->tolerance,
                   "Relative error a row may have (default: by element type)")
      ->check(number_in(1e-300, 1e300));
  command->add_option("--show", options->show, "Mismatching rows to show of each backend")
      ->check(integer_in(0, 1000000))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(kExamples);
  command->callback([&action, options] { action = [options] { return run(*options); }; });
}

}  // namespace kdtree::cli
