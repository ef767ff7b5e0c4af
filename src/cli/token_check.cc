#include "cli/token_check.h"

#include <algorithm>

#include "cli/acceptance.h"

namespace kdtree::cli {

Result<TokenCheck> check_tokens(BundleReplay& replay, const Bundle& bundle, const VerifyProblem& result,
                                int64_t show) {
  const auto rows = replay.run(bundle, result);
  KDTREE_RETURN_IF_ERROR(rows);
  TokenCheck check;
  check.rows = static_cast<int64_t>(rows->size());
  check.requests = check.exact_requests = result.batch;
  std::vector<int32_t> targets(static_cast<size_t>(total_rows(result)), -1);
  int32_t inexact_request = -1;  // the last one seen
  for (const ReplayedRow& row : *rows) {
    const auto t = static_cast<size_t>(row.row);
    targets[t] = row.token;
    if (!row.sampled) check.smallest_gap = std::min(row.gap, check.smallest_gap.value_or(row.gap));
    const int32_t recorded = bundle.target_tokens.as<int32_t>()[t];
    if (row.token == recorded) {
      ++check.exact_rows;
      continue;
    }
    if (row.request != inexact_request) --check.exact_requests;
    inexact_request = row.request;
    if (static_cast<int64_t>(check.mismatches.size()) < show) check.mismatches.push_back({row, recorded});
  }
  auto difference = check_acceptance(bundle, targets);
  KDTREE_RETURN_IF_ERROR(difference);
  check.path_difference = *std::move(difference);
  return check;
}

}  // namespace kdtree::cli
