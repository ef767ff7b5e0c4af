// kdtree generate: text from a model, decoded plainly, with draft chains or with draft trees.
#include <cstdio>
#include <memory>

#include <sys/resource.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/exit_codes.h"
#include "cli/generation_output.h"
#include "cli/interrupt.h"
#include "cli/model_session.h"
#include "cli/output.h"

namespace kdtree::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kExamples =
    "Examples:\n"
    "  kdtree generate --model target --draft drafter --prompt 'def main():'\n"
    "  kdtree generate --model target --draft drafter --nodes 32 --temperature 0.7 < prompt.txt\n"
    "  kdtree generate --model target --mode ar --input-ids 1,17,4 --json\n";

struct GenerateOptions {
  ModelOptions model;
  DecodeOptions decode;
  std::vector<std::string> stops;
  bool stream = false;
  bool no_stream = false;
  bool json = false;
  bool verbose = false;
};

const char* mode_name(DecodeMode mode) {
  switch (mode) {
    case DecodeMode::chain:
      return "chain";
    case DecodeMode::tree:
      return "tree";
    default:
      return "ar";
  }
}

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

Json result_json(const GenerateOptions& options, const ModelSession& session, const Engine& engine,
                 const std::vector<Request>& requests, const GenerationOutput& output) {
  const auto settings = engine_options(options.decode, session);
  Json json{{"model", options.model.model},
            {"draft", options.model.draft.empty() ? Json() : Json(options.model.draft)},
            {"mode", mode_name(settings->mode)},
            {"nodes", settings->mode == DecodeMode::autoregressive ? Json()
                      : options.decode.nodes == "auto"             ? Json("auto")
                                                                   : Json(settings->nodes)},
            {"batch", options.decode.batch},
            {"threads", session.threads()},
            {"kv_dtype", options.decode.kv_dtype},
            {"seed", options.decode.sampling.seed}};
  for (size_t i = 0; i < requests.size(); ++i) {
    Json request{{"prompt_tokens", requests[i].prompt.size()},
                 {"tokens", output.tokens(i)},
                 {"finish_reason", output.finish_reason(i)}};
    if (session.tokenizer()) request["text"] = as_text(output.bytes(i));
    request["stats"] = stats_json(engine.request_stats(static_cast<int64_t>(i)));
    json["requests"].push_back(std::move(request));
  }
  json["stats"] = stats_json(engine.stats());
  json["seconds"] = times_json(engine.times());
  const double decode = engine.times().rounds();
  json["tokens_per_s"] = decode > 0.0 ? static_cast<double>(engine.stats().emitted) / decode : 0.0;
  json["peak_memory_bytes"] = peak_memory_bytes();
  return json;
}

Result<int> run(const GenerateOptions& options) {
  auto session = ModelSession::load(options.model);
  KDTREE_RETURN_IF_ERROR(session);
  ModelSession& models = **session;
  const auto requests = read_requests(options.decode, models);
  KDTREE_RETURN_IF_ERROR(requests);
  const Tokenizer* tokenizer = models.tokenizer() ? &*models.tokenizer() : nullptr;
  if (!options.stops.empty() && tokenizer == nullptr) {
    return with_context(models.tokenizer().error(), "--stop needs a tokenizer: ");
  }
  const bool stream = options.stream || (!options.no_stream && isatty(STDOUT_FILENO) != 0);
  auto output = GenerationOutput::create(requests->size(), tokenizer, options.stops,
                                         {.stream = stream, .quiet = options.json});
  KDTREE_RETURN_IF_ERROR(output);
  auto engine = make_engine(options.decode, models, *requests, options.verbose);
  KDTREE_RETURN_IF_ERROR(engine);
  for (size_t i = 0; i < requests->size(); ++i) {
    const auto id = engine->submit((*requests)[i]);
    if (!id) return with_context(id.error(), fmt::format("prompt {}: ", i + 1));
  }
  int64_t round = 0;
  while (!engine->idle() && !interrupted()) {
    const Status status = engine->step([&](const Emission& emission) { return output->add(emission); });
    if (!status) {
      output->finish();
      return tl::unexpected<Error>(status.error());
    }
    if (options.verbose && engine->policy() != nullptr) {
      fmt::print(stderr, "round {}: {}\n", round++, engine->policy()->explanation());
    }
  }
  output->finish();
  if (options.json) {
    // What a terminal could take for its own stays escaped.
    const bool ascii = isatty(STDOUT_FILENO) != 0;
    print_out("{}\n", result_json(options, models, *engine, *requests, *output).dump(2, ' ', ascii));
  } else {
    int64_t tokens = 0;
    for (size_t i = 0; i < requests->size(); ++i)
      tokens += static_cast<int64_t>(output->tokens(i).size());
    std::fflush(stdout);
    fmt::print(stderr, "{}\n", summary_line(*engine, tokens));
  }
  return kExitOk;
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  auto options = std::make_shared<GenerateOptions>();
  GenerateOptions& o = *options;
  CLI::App* command =
      app.add_subcommand("generate", "Generate text with a model, with draft trees or without");
  add_model_options(*command, o.model);
  add_decode_options(*command, o.decode);
  command->add_option("--stop", o.stops, "Text that ends the generation, itself not shown; repeatable")
      ->allow_extra_args(false);
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
