// Checks of a verify problem. Messages name the field, the value and what was expected.
#pragma once

#include "attention/problem.h"

namespace kdtree {

// Everything that can be told without reading an array: sizes, element types, strides, null pointers.
Status validate_fields(const VerifyProblem& problem);

// What the arrays say, which must be host-readable: monotone indptr, slots inside the pool, masks with room
// for their trees. Call after validate_fields. Whether the trees are trees shows when they are read
// (read_parents).
Status validate_contents(const VerifyProblem& problem);

// KDTREE_UNSUPPORTED for f64, which the oracle alone computes with. `expected`: what the backend has instead.
Status check_no_f64(const VerifyProblem& problem, const char* expected);

// The fields and arrays that say what the trees are, and nothing else.
Status validate_trees(const VerifyProblem& problem);

}  // namespace kdtree
