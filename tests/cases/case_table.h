// The shared case table: verify problems that every backend must answer, from chains to padded ragged
// batches.
#pragma once

#include <vector>

#include "cases/verify_case.h"

namespace kdtree::testing {

// Small enough for the fp64 oracle on one core; names are unique.
const std::vector<CaseSpec>& case_table();

// A random spec: any shape, encoding, element type and layout.
CaseSpec random_spec(uint64_t seed);

}  // namespace kdtree::testing
