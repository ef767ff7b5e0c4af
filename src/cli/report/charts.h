// The page's numbers: tables with bars in them, which need no script, and two pictures.
#pragma once

#include <string>
#include <vector>

#include "cli/report/report.h"

namespace kdtree::cli {

// A row for each mode: tokens a second, accept length, speedup.
std::string comparison_table(const std::vector<ReportRun>& runs);
// Tokens over seconds of decoding, a line for each mode.
std::string progress_chart(const std::vector<ReportRun>& runs);
// Where a token's time goes: a bar of stages for each mode, on one scale, and the same as a table.
std::string stage_bars(const std::vector<ReportRun>& runs);
std::string accept_length_table(const GenerationStats& stats);
std::string depth_table(const GenerationStats& stats);

// The accept lengths of a request's rounds, side by side.
std::string timeline(const std::vector<const ReportRound*>& rounds);
// Its rounds as rows.
std::string round_table(const std::vector<const ReportRound*>& rounds, const Tokenizer* tokenizer);

// "0.31 s", "4.2 ms", "17 µs"
std::string duration(double seconds);
// "20890", "431.9"
std::string rate(double per_second);
const char* mode_title(const std::string& mode);  // "plain decoding"

}  // namespace kdtree::cli
