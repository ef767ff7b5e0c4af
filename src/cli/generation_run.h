// One mode's decoding of all prompts, and several of them side by side.
#pragma once

#include <string>
#include <vector>

#include "cli/generation_output.h"
#include "cli/model_session.h"
#include "cli/report/report.h"

namespace kdtree::cli {

struct GenerationRun {
  ReportRun measured;  // its rounds only where they are recorded
  EngineOptions settings;
  std::vector<GenerationStats> request_stats;
  GenerationOutput output;

  int64_t tokens() const;  // of all requests
  std::vector<ReportText> texts(const std::vector<Request>& requests) const;
};

struct RunOptions {
  bool record = false;   // keep the rounds
  bool verbose = false;  // say on standard error what --nodes auto chooses
};

// Decodes with the --mode of `decode`, one. What came before an error is shown. Errors: those of make_engine
// and of the engine, naming the prompt.
Result<GenerationRun> run_generation(const DecodeOptions& decode, ModelSession& session,
                                     const std::vector<Request>& requests, GenerationOutput output,
                                     const RunOptions& options);

// A few rounds that nobody sees: what is in no cache yet would else be paid by the mode that comes first.
Status warm_up(const DecodeOptions& decode, ModelSession& session, const std::vector<Request>& requests);

// Tokens a second, accept length and speedup of each, in columns.
std::string comparison_text(const std::vector<GenerationRun>& runs);
std::vector<ReportRun> measurements(const std::vector<GenerationRun>& runs);

}  // namespace kdtree::cli
