// The CPU backend: fp32 on the host. A row's bits depend on that row's own keys alone, in position order:
// every sum runs over fixed lanes and fixed blocks of positions, the exact maximum is taken first, and keys a
// row does not see are never touched. So a tree's row equals the same row decoded plainly, bit for bit.
#pragma once

#include "attention/backend.h"
#include "attention/problem.h"
#include "core/scratch.h"

namespace kdtree {

// KDTREE_UNSUPPORTED for f64.
Status cpu_supports(const VerifyProblem& problem);
void cpu_scratch(const VerifyProblem& problem, Scratch& scratch);
// The problem is valid and supported.
Status run_cpu(const VerifyProblem& problem, Scratch& scratch, const Progress& progress);

}  // namespace kdtree
