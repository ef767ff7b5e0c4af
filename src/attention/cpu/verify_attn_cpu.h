// The CPU backend: SIMD on the host, fp32 or bf16 products, all threads. A row's bits depend on that row's
// own keys alone, in position order (docs/kernels/cpu.md), so a tree's row equals the same row decoded
// plainly, bit for bit, in any company and on any number of threads.
#pragma once

#include <string>

#include "attention/backend.h"
#include "attention/problem.h"
#include "core/scratch.h"

namespace kdtree {

// KDTREE_UNSUPPORTED for f64.
Status cpu_supports(const VerifyProblem& problem);
// Room for as many threads as the calling thread may use.
void cpu_scratch(const VerifyProblem& problem, Scratch& scratch);
// The problem is valid and supported. Uses as many threads as the workspace has room for.
Status run_cpu(const VerifyProblem& problem, Scratch& scratch, const Progress& progress);

}  // namespace kdtree
