// The scalar fields of a verify problem as the JSON text that a bundle's metadata holds.
#pragma once

#include <string>

#include "attention/problem.h"

namespace kdtree {

// Every recorded field, in the struct's order. Floats are written so that they read back bit for bit; they
// must be finite.
std::string problem_to_json(const VerifyProblem& problem);

// Fields that are absent and not required are 0, the default. The element types that follow from the arrays
// are left 0. Errors: KDTREE_INVALID_FILE naming the field.
Result<VerifyProblem> problem_from_json(const std::string& text);

}  // namespace kdtree
