// Whether what attention gave leads to the recorded target tokens.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/replay.h"

namespace kdtree::cli {

struct TokenMismatch {
  ReplayedRow row;
  int32_t recorded = 0;
};

struct TokenCheck {
  int64_t rows = 0;
  int64_t exact_rows = 0;
  int64_t requests = 0;
  int64_t exact_requests = 0;                  // every row of which is
  std::optional<std::string> path_difference;  // of the accepted paths
  std::optional<float> smallest_gap;           // over the rows that are not sampled
  std::vector<TokenMismatch> mismatches;       // the first of them
  bool exact() const { return exact_rows == rows && !path_difference; }
};

// `bundle` is resumable; `result` is what a backend made of it. Lists at most `show` rows that differ.
Result<TokenCheck> check_tokens(BundleReplay& replay, const Bundle& bundle, const VerifyProblem& result,
                                int64_t show);

}  // namespace kdtree::cli
