// A generation as one HTML page: what was said in which round, each round's tree, and where the time went.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "model/tokenizer.h"

namespace kdtree::cli {

// One request's part of a verify step.
struct ReportRound {
  int64_t request = 0;
  double seconds = 0.0;          // of decoding, until its tokens were known
  int64_t nodes = 0;             // verified besides the root
  DraftTree tree;                // those of them that are kept, most probable first; empty: none is
  std::vector<int32_t> path;     // accepted nodes of `tree`, root first
  std::vector<int32_t> emitted;  // as many as were accepted, the root counted
};

// One mode's decoding of all requests.
struct ReportRun {
  std::string mode;
  GenerationStats stats;
  StageTimes times;
  double wall_seconds = 0.0;        // prompts and rounds, with all that no stage counts
  std::vector<ReportRound> rounds;  // as they came

  double tokens_per_second() const;
  double accept_length() const { return stats.mean_accept_length(); }
};

// How many times as fast as `baseline`; 0 where one of them has no rounds.
double speedup(const ReportRun& run, const ReportRun& baseline);
// What speedups are relative to: plain decoding, else the first.
const ReportRun& baseline_run(const std::vector<ReportRun>& runs);

// Keeps the rounds of a run. Of large trees it keeps the most probable nodes and the accepted path, and after
// kMostKeptNodes no tree: the page must stay readable, and small.
class RoundRecorder {
 public:
  static constexpr int64_t kMostTreeNodes = 256;
  static constexpr int64_t kMostKeptNodes = 200000;

  void add(const RoundView& round, double seconds);
  std::vector<ReportRound> take() { return std::move(rounds_); }

 private:
  std::vector<ReportRound> rounds_;
  int64_t kept_ = 0;
};

struct ReportText {
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;  // new ones
  size_t bytes = 0;             // of them, that are the text: a stop string ends it earlier
  std::string finish_reason;
};

// "" or what differs between the texts of two modes: "prompt 1: token 4 is 17 with chain, 9 with ar". A round
// may say more behind a stop string than another: only what comes before it counts.
std::string difference(const std::vector<ReportText>& texts, const std::string& mode,
                       const std::vector<ReportText>& others, const std::string& other_mode);

struct GenerationReport {
  std::string model;
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<ReportText> texts;  // of each request; the same in all runs
  std::vector<ReportRun> runs;    // at least one
  const Tokenizer* tokenizer = nullptr;
};

// The run whose rounds the page shows: the last with trees, else with chains, else the last.
const ReportRun& shown_run(const std::vector<ReportRun>& runs);

// Requests that the page shows.
inline constexpr size_t kMostReportTexts = 16;

// Needs no other file and no network. Without scripts the text, tables and bars are all there; trees are
// drawn by a script from compact arrays, because as drawings they would take ten times the room.
std::string report_page(const GenerationReport& report);

}  // namespace kdtree::cli
