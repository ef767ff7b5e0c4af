// The oracle: verify attention in fp64, straightforward; what every other backend is measured against.
#pragma once

#include "attention/backend.h"
#include "attention/problem.h"
#include "core/scratch.h"

namespace kdtree {

void oracle_scratch(const VerifyProblem& problem, Scratch& scratch);
// Any sizes and element types. The problem is valid (validate_fields, validate_contents).
Status run_oracle(const VerifyProblem& problem, Scratch& scratch, const Progress& progress);

}  // namespace kdtree
