// Running one backend on an owned problem, and choosing which.
#pragma once

#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/owned_problem.h"
#include "cli/memory.h"
#include "cli/progress.h"
#include "core/status.h"

namespace kdtree::cli {

// A problem with outputs and a workspace of its own: `params` points into the other members, and into the
// OwnedProblem it was made from, which must outlive it.
struct VerifyRun {
  VerifyProblem params;
  Tensor out;
  Tensor lse;
  Workspace workspace;

  // When Ctrl-C stops it the result is incomplete: ask interrupted().
  Status execute(ProgressLine& progress);
};

// Outputs are contiguous, in the problem's out type; in f64 when `exact` (the oracle alone can).
Result<VerifyRun> prepare_run(OwnedProblem& problem, int32_t backend, bool exact);
// Prepares and executes; `label` is what the progress line says.
Result<VerifyRun> run_backend(OwnedProblem& problem, int32_t backend, bool exact, const std::string& label);

// The backends of --backend, in that order; without any, the one of KDTREE_FORCE_BACKEND, or all that are
// available except the oracle. Errors: KDTREE_INVALID_ARGUMENT for a name there is not, with the nearest one
// suggested; KDTREE_BACKEND_UNAVAILABLE with the reason.
Result<std::vector<Backend>> select_backends(const std::vector<std::string>& names);

}  // namespace kdtree::cli
