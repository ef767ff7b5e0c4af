// kdtree generate: text from a model, decoded plainly, with draft chains or with draft trees.
#include <cstdio>
#include <ctime>
#include <memory>

#include <sys/resource.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/cpu_info.h"
#include "cli/exit_codes.h"
#include "cli/generation_output.h"
#include "cli/generation_run.h"
#include "cli/interrupt.h"
#include "cli/model_session.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/report/report.h"
#include "io/atomic_file.h"
#include "kdtree/kdtree.h"

namespace kdtree::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kExamples =
    "Examples:\n"
    "  kdtree generate --model target --draft drafter --prompt 'def main():'\n"
    "  kdtree generate --model target --draft drafter --nodes 32 --temperature 0.7 < prompt.txt\n"
    "  kdtree generate --model target --mode ar --input-ids 1,17,4 --json\n"
    "  kdtree generate --model target --draft drafter --mode ar,chain,tree --report report.html < "
    "prompt.txt\n";

struct GenerateOptions {
  ModelOptions model;
  DecodeOptions decode;
  std::vector<std::string> stops;
  std::string report;
  bool stream = false;
  bool no_stream = false;
  bool json = false;
  bool verbose = false;
};

int64_t peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

// Valid UTF-8 whatever the model said; `tokens` has it exactly.
std::string as_text(const std::string& bytes) {
  TextStream stream(false);
  const std::string text = stream.push(bytes);
  return text + stream.finish();
}

// "auto", a number, or one for each prompt.
Json nodes_json(const std::string& nodes) {
  if (nodes == "auto") return nodes;
  const auto values = parse_integers(nodes);
  return values.size() == 1 ? Json(values[0]) : Json(values);
}

// What the options and the machine say, as far as one mode's decoding depends on it.
Json run_json(const GenerateOptions& options, const ModelSession& session,
              const std::vector<Request>& requests, const GenerationRun& run) {
  const ReportRun& measured = run.measured;
  Json json{{"model", options.model.model},
            {"draft", options.model.draft.empty() ? Json() : Json(options.model.draft)},
            {"mode", measured.mode},
            {"nodes", measured.mode == "ar" ? Json() : nodes_json(options.decode.nodes)},
            {"batch", options.decode.batch},
            {"threads", session.threads()},
            {"products", products_name(session.target().products())},
            {"kv_dtype", dtype_name(kv_dtype_or_default(options.decode, session))},
            {"seed", options.decode.sampling.seed}};
  for (size_t i = 0; i < requests.size(); ++i) {
    Json request{{"prompt_tokens", requests[i].prompt.size()},
                 {"tokens", run.output.tokens(i)},
                 {"finish_reason", run.output.finish_reason(i)}};
    if (session.tokenizer()) request["text"] = as_text(run.output.bytes(i));
    request["stats"] = stats_json(run.request_stats[i]);
    json["requests"].push_back(std::move(request));
  }
  json["stats"] = stats_json(measured.stats);
  json["seconds"] = times_json(measured.times);
  json["tokens_per_s"] = measured.tokens_per_second();
  json["peak_memory_bytes"] = peak_memory_bytes();
  return json;
}

// Of one mode its object; of several an object for each.
Json result_json(const GenerateOptions& options, const ModelSession& session,
                 const std::vector<Request>& requests, const std::vector<GenerationRun>& runs, bool several) {
  if (!several) return run_json(options, session, requests, runs[0]);
  const auto measured = measurements(runs);
  const ReportRun& baseline = baseline_run(measured);
  Json json{{"baseline", baseline.mode}, {"modes", Json::array()}};
  for (size_t i = 0; i < runs.size(); ++i) {
    Json run = run_json(options, session, requests, runs[i]);
    run["speedup"] = speedup(measured[i], baseline);
    json["modes"].push_back(std::move(run));
  }
  return json;
}

std::string date_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02} UTC", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                     utc.tm_hour, utc.tm_min);
}

std::vector<std::pair<std::string, std::string>> settings_of(const GenerateOptions& options,
                                                             const ModelSession& session) {
  const DecodeOptions& decode = options.decode;
  const SamplingParams& sampling = decode.sampling;
  const auto megabytes = [](int64_t bytes) {
    return fmt::format("{:.4g} MB", static_cast<double>(bytes) / 1e6);
  };
  const ModelConfig& config = session.target().config();
  std::vector<std::pair<std::string, std::string>> rows = {
      {"model", fmt::format("{}: {} layers, vocabulary {}, {} of weights", options.model.model, config.layers,
                            config.vocab_size, megabytes(session.target().weight_bytes()))}};
  if (session.drafter() != nullptr) {
    rows.emplace_back("drafter",
                      fmt::format("{}: {} positions, {} of weights", options.model.draft,
                                  session.drafter()->depth(), megabytes(session.drafter()->weight_bytes())));
  }
  rows.insert(
      rows.end(),
      {{"mode", mode_or_default(decode, session)},
       {"nodes a round", decode.nodes},
       {"temperature", sampling.temperature == 0 ? "0: the likeliest token always"
                                                 : fmt::format("{}", sampling.temperature)},
       {"top-k, top-p, min-p", fmt::format("{}, {}, {}", sampling.top_k, sampling.top_p, sampling.min_p)},
       {"seed", fmt::format("{}", sampling.seed)},
       {"most new tokens", fmt::format("{}", decode.max_new)},
       {"prompts together", fmt::format("{}", decode.batch)},
       {"products", products_name(session.target().products())},
       {"KV cache", dtype_name(kv_dtype_or_default(decode, session))},
       {"machine", fmt::format("{}, {} threads", cpu_name(), session.threads())},
       {"peak memory", megabytes(peak_memory_bytes())},
       {"date", date_now()},
       {"version", fmt::format("kdtree {}", kdtree_version())}});
  return rows;
}

Status write_report(const GenerateOptions& options, const ModelSession& session,
                    const std::vector<Request>& requests, const std::vector<GenerationRun>& runs) {
  GenerationReport report;
  report.model = options.model.model;
  report.settings = settings_of(options, session);
  report.runs = measurements(runs);
  report.tokenizer = session.tokenizer() ? &*session.tokenizer() : nullptr;
  const size_t shown = static_cast<size_t>(&shown_run(report.runs) - report.runs.data());
  report.texts = runs[shown].texts(requests);
  const std::string page = report_page(report);
  const std::span<const std::byte> parts[] = {std::as_bytes(std::span(page))};
  const Status written = write_file_atomically(options.report, parts);
  if (!written) return with_context(written.error(), "--report: ");
  return {};
}

// The options with one mode of their list each. Errors: those of engine_options.
Result<std::vector<DecodeOptions>> options_of_modes(const DecodeOptions& options,
                                                    const ModelSession& session) {
  std::vector<DecodeOptions> all;
  for (const std::string& mode : split(mode_or_default(options, session))) {
    all.push_back(options);
    all.back().mode = mode;
    const auto checked = engine_options(all.back(), session);
    KDTREE_RETURN_IF_ERROR(checked);
  }
  return all;
}

// The modes one after the other. Of several that are not streamed the first alone shows its text: the others'
// is the same.
Result<std::vector<GenerationRun>> run_modes(const GenerateOptions& options,
                                             const std::vector<DecodeOptions>& modes, ModelSession& models,
                                             const std::vector<Request>& requests) {
  const Tokenizer* tokenizer = models.tokenizer() ? &*models.tokenizer() : nullptr;
  const bool stream = options.stream || (!options.no_stream && isatty(STDOUT_FILENO) != 0);
  std::vector<GenerationRun> runs;
  for (const DecodeOptions& decode : modes) {
    const bool quiet = options.json || (!stream && !runs.empty());
    auto output = GenerationOutput::create(requests.size(), tokenizer, options.stops,
                                           {.stream = stream, .quiet = quiet});
    KDTREE_RETURN_IF_ERROR(output);
    if (modes.size() > 1) KDTREE_RETURN_IF_ERROR(warm_up(decode, models, requests));
    if (interrupted()) break;
    if (modes.size() > 1 && stream && !quiet) print_out("=== {}\n", decode.mode);
    auto run = run_generation(decode, models, requests, *std::move(output),
                              {.record = !options.report.empty(), .verbose = options.verbose});
    KDTREE_RETURN_IF_ERROR(run);
    if (!options.json) {
      std::fflush(stdout);
      fmt::print(stderr, "{}{}\n", modes.size() > 1 ? fmt::format("{:<6} ", decode.mode) : "",
                 summary_line(run->measured.stats, run->measured.times, run->tokens()));
    }
    runs.push_back(*std::move(run));
    if (interrupted()) break;
  }
  return runs;
}

// Whether all modes said the same; if not, says where.
bool same_tokens(const std::vector<GenerationRun>& runs, const std::vector<Request>& requests) {
  for (const GenerationRun& run : runs) {
    const std::string differs = difference(run.texts(requests), run.measured.mode,
                                           runs.front().texts(requests), runs.front().measured.mode);
    if (differs.empty()) continue;
    print_error(fmt::format("--mode: {}: decoding is not lossless, a defect of the program", differs));
    return false;
  }
  return true;
}

Result<int> run(const GenerateOptions& options) {
  if (!options.report.empty()) {
    const Status writable = check_writable(options.report);
    if (!writable) return with_context(writable.error(), "--report: ");
  }
  auto session = ModelSession::load(options.model);
  KDTREE_RETURN_IF_ERROR(session);
  ModelSession& models = **session;
  const auto requests = read_requests(options.decode, models);
  KDTREE_RETURN_IF_ERROR(requests);
  if (!options.stops.empty() && !models.tokenizer()) {
    return with_context(models.tokenizer().error(), "--stop needs a tokenizer: ");
  }
  const auto modes = options_of_modes(options.decode, models);
  KDTREE_RETURN_IF_ERROR(modes);
  const auto runs = run_modes(options, *modes, models, *requests);
  KDTREE_RETURN_IF_ERROR(runs);
  if (options.json && !runs->empty()) {
    // What a terminal could take for its own stays escaped.
    const bool ascii = isatty(STDOUT_FILENO) != 0;
    print_out("{}\n", result_json(options, models, *requests, *runs, modes->size() > 1).dump(2, ' ', ascii));
  }
  if (interrupted()) return kExitInterrupted;
  if (!same_tokens(*runs, *requests)) return kExitMismatch;
  if (runs->size() > 1 && !options.json) fmt::print(stderr, "\n{}", comparison_text(*runs));
  if (!options.report.empty()) KDTREE_RETURN_IF_ERROR(write_report(options, models, *requests, *runs));
  return kExitOk;
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  auto options = std::make_shared<GenerateOptions>();
  GenerateOptions& o = *options;
  CLI::App* command =
      app.add_subcommand("generate", "Generate text with a model, with draft trees or without");
  add_model_options(*command, o.model);
  add_products_option(*command, o.model);
  add_decode_options(*command, o.decode, true);
  command->add_option("--stop", o.stops, "Text that ends the generation, itself not shown; repeatable")
      ->allow_extra_args(false);
  command
      ->add_option("--report", o.report,
                   "Also write a page about the rounds, their trees and their speed (HTML)")
      ->check(CLI::Validator(
          [](std::string& text) { return text.empty() ? "'', expected a file's name" : std::string(); }, "",
          ""));
  CLI::Option* stream =
      command->add_flag("--stream", o.stream, "Show text as it is accepted (default: on a terminal)");
  command->add_flag("--no-stream", o.no_stream, "Show each text when it is complete")->excludes(stream);
  command->add_flag("--json", o.json, "Print one JSON object, texts, tokens and statistics, instead")
      ->excludes(stream);
  command->add_flag("--verbose", o.verbose, "Say on standard error what --nodes auto chooses, and why");
  command->footer(kExamples);
  command->callback([&action, options] { action = [options] { return run(*options); }; });
}

}  // namespace kdtree::cli
