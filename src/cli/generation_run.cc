#include "cli/generation_run.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "cli/interrupt.h"
#include "cli/report/charts.h"

namespace kdtree::cli {
namespace {

constexpr int64_t kWarmUpTokens = 8;

Result<Engine> filled_engine(const DecodeOptions& decode, ModelSession& session,
                             const std::vector<Request>& requests, bool verbose) {
  auto engine = make_engine(decode, session, requests, verbose);
  KDTREE_RETURN_IF_ERROR(engine);
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto id = engine->submit(requests[i]);
    if (!id) return with_context(id.error(), fmt::format("prompt {}: ", i + 1));
  }
  return engine;
}

}  // namespace

int64_t GenerationRun::tokens() const {
  int64_t tokens = 0;
  for (size_t i = 0; i < request_stats.size(); ++i)
    tokens += static_cast<int64_t>(output.tokens(i).size());
  return tokens;
}

std::vector<ReportText> GenerationRun::texts(const std::vector<Request>& requests) const {
  std::vector<ReportText> texts;
  for (size_t i = 0; i < requests.size(); ++i)
    texts.push_back({requests[i].prompt, output.tokens(i), output.bytes(i).size(), output.finish_reason(i)});
  return texts;
}

Result<GenerationRun> run_generation(const DecodeOptions& decode, ModelSession& session,
                                     const std::vector<Request>& requests, GenerationOutput output,
                                     const RunOptions& options) {
  const auto settings = engine_options(decode, session);
  KDTREE_RETURN_IF_ERROR(settings);
  auto engine = filled_engine(decode, session, requests, options.verbose);
  KDTREE_RETURN_IF_ERROR(engine);
  RoundRecorder recorder;
  if (options.record) {
    engine->watch([&](const RoundView& round) { recorder.add(round, engine->times().rounds()); });
  }
  const auto begin = std::chrono::steady_clock::now();
  int64_t round = 0;
  while (!engine->idle() && !interrupted()) {
    const Status status = engine->step([&](const Emission& emission) { return output.add(emission); });
    if (!status) {
      output.finish();
      return tl::unexpected<Error>(status.error());
    }
    if (options.verbose && engine->policy() != nullptr) {
      fmt::print(stderr, "round {}: {}\n", round++, engine->policy()->explanation());
    }
  }
  output.finish();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  GenerationRun run{
      {mode_or_default(decode, session), engine->stats(), engine->times(), wall.count(), recorder.take()},
      *settings,
      {},
      std::move(output)};
  for (size_t i = 0; i < requests.size(); ++i)
    run.request_stats.push_back(engine->request_stats(static_cast<int64_t>(i)));
  return run;
}

Status warm_up(const DecodeOptions& decode, ModelSession& session, const std::vector<Request>& requests) {
  std::vector<Request> few = {requests.front()};
  few[0].max_new_tokens = std::min(few[0].max_new_tokens, kWarmUpTokens);
  auto engine = filled_engine(decode, session, few, false);
  KDTREE_RETURN_IF_ERROR(engine);
  while (!engine->idle() && !interrupted())
    KDTREE_RETURN_IF_ERROR(engine->step([](const Emission&) { return true; }));
  return {};
}

std::vector<ReportRun> measurements(const std::vector<GenerationRun>& runs) {
  std::vector<ReportRun> all;
  for (const GenerationRun& run : runs)
    all.push_back(run.measured);
  return all;
}

std::string comparison_text(const std::vector<GenerationRun>& runs) {
  const auto all = measurements(runs);
  const ReportRun& baseline = baseline_run(all);
  std::string text = fmt::format("{:<6} {:>8} {:>14} {:>10} {:>8}\n", "mode", "passes", "accept length",
                                 "tokens/s", "speedup");
  for (const ReportRun& run : all)
    text += fmt::format("{:<6} {:>8} {:>14.2f} {:>10} {:>7.2f}x\n", run.mode, run.stats.rounds,
                        run.accept_length(), rate(run.tokens_per_second()), speedup(run, baseline));
  return text;
}

}  // namespace kdtree::cli
