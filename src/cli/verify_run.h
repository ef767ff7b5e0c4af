// Running one backend on an owned problem, and choosing which.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/owned_problem.h"
#include "cli/memory.h"
#include "cli/progress.h"
#include "core/status.h"
#include "kernels/device_problem.h"

namespace kdtree::cli {

// A problem with outputs and a workspace of its own: `params` points into the other members, and into the
// OwnedProblem it was made from, which must outlive it.
struct VerifyRun {
  VerifyProblem params;
  Tensor out;
  Tensor lse;
  Workspace workspace;
  // Where the backend is a CUDA one: the problem there, and its workspace.
  std::optional<DeviceProblem> device;
  DeviceMemory device_workspace;

  // When Ctrl-C stops it the result is incomplete: ask interrupted(). Waits for the device.
  Status execute(ProgressLine& progress);
  // Copies a device's outputs to `out` and `lse`.
  Status fetch();
};

// Outputs are contiguous, in the problem's out type; in f64 when `exact` (the oracle alone can).
Result<VerifyRun> prepare_run(OwnedProblem& problem, int32_t backend, bool exact);
// Prepares and executes; `label` is what the progress line says.
Result<VerifyRun> run_backend(OwnedProblem& problem, int32_t backend, bool exact, const std::string& label);

// What KDTREE_BACKEND_AUTO runs for a problem that is on the device, "cuda-flash-paged", and why nothing
// faster: "cuda-naive (rope_dim is 32, expected ...)".
std::string automatic_backend(const VerifyProblem& on_device);

// Whether the user says which backends run: --backend (`names`) or KDTREE_FORCE_BACKEND.
bool names_backends(const std::vector<std::string>& names);

// The backends of --backend, in that order; without any, the one of KDTREE_FORCE_BACKEND, or all that are
// available except the oracle. Errors: KDTREE_INVALID_ARGUMENT for a name there is not, with the nearest one
// suggested; KDTREE_BACKEND_UNAVAILABLE with the reason.
Result<std::vector<Backend>> select_backends(const std::vector<std::string>& names);

}  // namespace kdtree::cli
