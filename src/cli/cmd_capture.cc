// kdtree capture: records verify steps of a generation as bundles.
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include <fmt/ranges.h>

#include "cli/command.h"
#include "cli/exit_codes.h"
#include "cli/interrupt.h"
#include "cli/model_session.h"
#include "cli/options.h"
#include "cli/output.h"
#include "engine/recorder.h"

namespace kdtree::cli {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  kdtree capture --model target --draft drafter --nodes 16 --prompt 'def main():' --out steps\n"
    "  kdtree verify steps --model target\n";

struct CaptureOptions {
  ModelOptions model;
  DecodeOptions decode;
  std::string out;
  std::string dtype = "f32";
  int64_t layer = -1;
  int64_t from_round = 0;
  int64_t every = 1;
  int64_t most = 8;
};

Result<int> run(const CaptureOptions& options) {
  auto session = ModelSession::load(options.model);
  KDTREE_RETURN_IF_ERROR(session);
  ModelSession& models = **session;
  const int64_t layers = models.target().config().layers;
  if (options.layer >= layers) {
    return fail(KDTREE_INVALID_ARGUMENT, "--layer: {}, expected at most {}: the model has {} layers",
                options.layer, layers - 1, layers);
  }
  const auto prompts = read_requests(options.decode, models);
  KDTREE_RETURN_IF_ERROR(prompts);
  auto engine = make_engine(options.decode, models, *prompts, false);
  KDTREE_RETURN_IF_ERROR(engine);
  std::error_code error;
  std::filesystem::create_directories(options.out, error);
  if (error) return fail(KDTREE_IO_ERROR, "--out: {}: {}", options.out, error.message());
  for (size_t i = 0; i < prompts->size(); ++i) {
    const auto id = engine->submit((*prompts)[i]);
    if (!id) return with_context(id.error(), fmt::format("prompt {}: ", i + 1));
  }
  const int64_t layer = options.layer >= 0 ? options.layer : layers - 1;
  const auto save = [&](int64_t round, const Bundle& bundle) -> Status {
    const std::string path = fmt::format("{}/round-{:04}-layer-{:02}.safetensors", options.out, round, layer);
    KDTREE_RETURN_IF_ERROR(write_bundle(path, bundle));
    const int32_t requests = bundle.problem.scalars.batch;
    print_out("{}: {} request{}, {} rows, {} KV rows, accept length {}\n", path, requests,
              requests == 1 ? "" : "s", bundle.tokens.size(), bundle.problem.scalars.kv_slots,
              fmt::join(bundle.accept_count.as<int32_t>(), " "));
    return {};
  };
  std::map<std::string, std::string> provenance = {{"command", "kdtree capture"},
                                                   {"version", kdtree_version()},
                                                   {"model", options.model.model},
                                                   {"draft", options.model.draft}};
  if (!options.decode.move_rows) provenance["slots"] = "accepted rows stayed where they were verified";
  const auto recorder = BundleRecorder::create(*engine, models.target(),
                                               {.layer = layer,
                                                .from = options.from_round,
                                                .every = options.every,
                                                .most = options.most,
                                                .dtype = options.dtype == "bf16" ? DType::bf16 : DType::f32,
                                                .provenance = std::move(provenance)},
                                               save);
  KDTREE_RETURN_IF_ERROR(recorder);
  while (!engine->idle() && (*recorder)->recorded() < options.most && !interrupted()) {
    KDTREE_RETURN_IF_ERROR(engine->step([](const Emission&) { return true; }));
    KDTREE_RETURN_IF_ERROR((*recorder)->status());
  }
  if ((*recorder)->recorded() == 0 && !interrupted()) {
    return fail(KDTREE_INVALID_ARGUMENT,
                "--max-new: {}, --from-round: {}, and no such round was verified before the texts ended",
                options.decode.max_new, options.from_round);
  }
  return kExitOk;
}

}  // namespace

void add_capture(CLI::App& app, Action& action) {
  auto options = std::make_shared<CaptureOptions>();
  CaptureOptions& o = *options;
  CLI::App* command = app.add_subcommand("capture", "Record verify steps of a generation as bundles");
  add_model_options(*command, o.model);
  add_decode_options(*command, o.decode);
  command->add_option("--out", o.out, "Folder for the bundles")->required();
  command->add_option("--layer", o.layer, "Layer whose attention is recorded, from 0 (default: the last)")
      ->check(integer_in(0, 4095));
  command->add_option("--dtype", o.dtype, "Element type that queries and outputs are recorded in")
      ->check(one_of({"f32", "bf16"}))
      ->capture_default_str();
  command->add_flag("!--scatter", o.decode.move_rows,
                    "Leave accepted rows where they were verified, so that prefixes lie in scattered slots");
  command->add_option("--from-round", o.from_round, "First round to record, from 0")
      ->check(integer_in(0, int64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--every", o.every, "Record every so manieth round from there")
      ->check(integer_in(1, int64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--most", o.most, "Bundles to record")
      ->check(integer_in(1, 1000000))
      ->capture_default_str();
  command->footer(kExamples);
  command->callback([&action, options] { action = [options] { return run(*options); }; });
}

}  // namespace kdtree::cli
