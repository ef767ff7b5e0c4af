// The arrays of a bundle: their names in the file, and whether they are what the problem's fields say.
#pragma once

#include <span>

#include "io/bundle.h"

namespace kdtree {

struct ProblemArray {
  const char* name;
  Tensor OwnedProblem::*tensor;
  int32_t VerifyProblem::*dtype_field;  // nullptr: `dtype` always
  DType dtype = DType::f32;
};
std::span<const ProblemArray> problem_arrays();

// Those that are not the problem's own.
struct BundleArray {
  const char* name;
  Tensor Bundle::*tensor;
  DType dtype;
  int32_t VerifyProblem::*dtype_field = nullptr;  // if not null, this instead
  bool resumes = false;                           // is there when bundle.resumable()
};
std::span<const BundleArray> bundle_arrays();

// Order matters: what an array's length depends on is checked before it is read. Errors: those of
// validate_fields and validate_contents; KDTREE_INVALID_ARGUMENT naming the array.
Status check_bundle(const Bundle& bundle);

}  // namespace kdtree
