// kdtree bench: times the backends and the tree operations on one generated shape.
#include <cstdlib>
#include <ctime>
#include <memory>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/bench_cells.h"
#include "cli/case_options.h"
#include "cli/command.h"
#include "cli/cpu_info.h"
#include "cli/exit_codes.h"
#include "cli/interrupt.h"
#include "cli/memory.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verify_run.h"
#include "core/checked.h"

namespace kdtree::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kExamples =
    "Examples:\n"
    "  kdtree bench\n"
    "  kdtree bench --heads 64 --prefix 4096 --nodes 65 --repeat 3\n"
    "  kdtree bench --backend cpu --json >> results.jsonl\n";

struct BenchOptions {
  CaseOptions spec;
  std::vector<std::string> backends;
  int repeat = 5;
  int64_t positions = 7;
  int64_t vocab = 32000;
  bool json = false;
};

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

Json case_json(const BenchOptions& o, const CaseSpec& spec, const BenchCell& cell) {
  if (cell.bench != "verify-attn") {
    return {{"positions", o.positions}, {"vocab", o.vocab}, {"nodes", o.spec.nodes.front()}};
  }
  return {{"heads", spec.heads},
          {"latent_dim", spec.latent_dim},
          {"rope_dim", spec.rope_dim},
          {"batch", spec.requests.size()},
          {"prefix", o.spec.prefix},
          {"nodes", o.spec.nodes},
          {"shape", o.spec.shape},
          {"dtype", o.spec.dtype},
          {"kv_dtype", dtype_name(spec.kv_dtype)},
          {"page_size", spec.page_size}};
}

Json cell_json(const BenchOptions& o, const CaseSpec& spec, const BenchCell& cell) {
  const double us = cell.timing.median_us;
  Json json;
  json["bench"] = cell.bench;
  json["backend"] = cell.backend;
  json["case"] = case_json(o, spec, cell);
  json["us"] = us;
  json["min_us"] = cell.timing.min_us;
  if (cell.flop > 0.0) json["tflops"] = cell.flop / us * 1e-6;
  if (cell.bytes > 0.0) json["gbps"] = cell.bytes / us * 1e-3;
  if (cell.items > 0.0) json["per_s"] = cell.items / us * 1e6;
  const bool compared = !cell.baseline.empty();
  json["baseline"] = compared ? Json(cell.baseline) : Json();
  json["baseline_us"] = compared ? Json(cell.baseline_us) : Json();
  json["ratio"] = compared ? Json(cell.baseline_us / us) : Json();
  json["machine"] = machine_name();
  json["date"] = today();
  // An installed program does not know its commit: whoever records results passes it.
  const char* commit = std::getenv("KDTREE_COMMIT");
  json["commit"] = commit != nullptr ? Json(commit) : Json();
  return json;
}

std::string rate(const BenchCell& cell) {
  const double us = cell.timing.median_us;
  if (cell.flop > 0.0) return fmt::format("{:.2f} GFLOP/s", cell.flop / us * 1e-3);
  if (cell.bytes > 0.0) return fmt::format("{:.2f} GB/s", cell.bytes / us * 1e-3);
  return fmt::format("{:.2f} Mnodes/s", cell.items / us);
}

void print_table(const BenchOptions& o, const CaseSpec& spec, const std::vector<BenchCell>& cells) {
  print_out("{}\n", machine_name());
  print_out("attention: {} heads, {}+{} columns, {} request{}, prefix {}, nodes {}, {}, kv {}\n", spec.heads,
            spec.latent_dim, spec.rope_dim, spec.requests.size(), spec.requests.size() == 1 ? "" : "s",
            fmt::join(o.spec.prefix, ","), fmt::join(o.spec.nodes, ","), o.spec.dtype,
            dtype_name(spec.kv_dtype));
  print_out("trees: {} positions, vocabulary {}, budget {}\n\n", o.positions, o.vocab,
            o.spec.nodes.front() - 1);
  print_out("{:<13} {:<17} {:>12} {:>12} {:>17}  {}\n", "bench", "backend", "median us", "min us", "rate",
            "against");
  for (const BenchCell& cell : cells) {
    print_out("{:<13} {:<17} {:>12.2f} {:>12.2f} {:>17}  {}\n", cell.bench, cell.backend,
              cell.timing.median_us, cell.timing.min_us, rate(cell),
              cell.baseline.empty()
                  ? "-"
                  : fmt::format("{:.2f}x {}", cell.baseline_us / cell.timing.median_us, cell.baseline));
  }
}

Result<int> run(const BenchOptions& options) {
  const auto chosen = select_backends(options.backends);
  KDTREE_RETURN_IF_ERROR(chosen);
  const auto spec = case_spec(options.spec);
  KDTREE_RETURN_IF_ERROR(spec);
  const auto logits_bytes = checked_mul(options.vocab, 4 * options.positions + 8);
  KDTREE_RETURN_IF_ERROR(check_memory(logits_bytes, "--positions, --vocab"));
  auto verify_case = make_verify_case(*spec);
  KDTREE_RETURN_IF_ERROR(verify_case);
  auto cells = bench_attention(*verify_case, *chosen, names_backends(options.backends), options.repeat);
  KDTREE_RETURN_IF_ERROR(cells);
  if (interrupted()) return kExitInterrupted;
  const auto budget = static_cast<int32_t>(options.spec.nodes.front() - 1);
  const auto trees =
      bench_tree({options.positions, options.vocab, budget, options.spec.seed}, options.repeat);
  KDTREE_RETURN_IF_ERROR(trees);
  if (interrupted()) return kExitInterrupted;
  cells->insert(cells->end(), trees->begin(), trees->end());
  if (options.json) {
    for (const BenchCell& cell : *cells)
      print_out("{}\n", cell_json(options, *spec, cell).dump());
  } else {
    print_table(options, *spec, *cells);
  }
  return kExitOk;
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  auto options = std::make_shared<BenchOptions>();
  BenchOptions& o = *options;
  o.spec.nodes = {16};
  CLI::App* command = app.add_subcommand("bench", "Time the backends and the tree operations on one shape");
  add_case_options(*command, o.spec);
  command
      ->add_option("--backend", o.backends,
                   "Backend to time; repeatable (default: all available); the oracle always is")
      ->allow_extra_args(false);
  command->add_option("--repeat", o.repeat, "Timed runs of each, after a warm-up")
      ->check(integer_in(1, 10000))
      ->capture_default_str();
  command->add_option("--positions", o.positions, "Draft positions of the tree operations")
      ->check(integer_in(1, 1024))
      ->capture_default_str();
  command->add_option("--vocab", o.vocab, "Vocabulary of the tree operations")
      ->check(integer_in(1, int64_t{1} << 24))
      ->capture_default_str();
  command->add_flag("--json", o.json, "Print one JSON object a line");
  command->footer(kExamples);
  command->callback([&action, options] { action = [options] { return run(*options); }; });
}

}  // namespace kdtree::cli
