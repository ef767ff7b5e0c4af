// The table of backends and the one way to run them.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "attention/problem.h"

namespace kdtree {

struct Backend {
  int32_t id;        // KDTREE_BACKEND_*
  const char* name;  // "oracle"
  bool available;
  std::string reason;  // what it runs on, or: required, present, missing
};

// Slowest first, the CUDA ones included where they are unavailable. Theirs is what the current device says,
// which is asked once.
std::span<const Backend> backends();
// Errors: KDTREE_INVALID_ARGUMENT listing the names there are.
Result<int32_t> backend_from_name(const std::string& name);

// The backend that will run: the problem's own, KDTREE_FORCE_BACKEND when that is AUTO, else the fastest that
// is available for its memory. Errors: KDTREE_BACKEND_UNAVAILABLE with the reason, KDTREE_INVALID_ARGUMENT.
Result<int32_t> choose_backend(const VerifyProblem& problem);

// Called now and then during a run on the host with rows done and rows in all; false stops the run, which
// then answers KDTREE_OK with the rows done so far.
using Progress = std::function<bool(int64_t done, int64_t total)>;

Result<size_t> verify_workspace_size(const VerifyProblem& problem);
Status run_verify(const VerifyProblem& problem, void* workspace, size_t bytes, void* stream,
                  const Progress& progress = {});

}  // namespace kdtree
