// A backend's result against the oracle's, row by row.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/problem.h"

namespace kdtree::cli {

// A row (one head of one node) that differs, and its worst element.
struct RowMismatch {
  int64_t request = 0;
  int64_t node = 0;
  int32_t head = 0;
  bool in_lse = false;  // the LSE differs, not the output
  int64_t index = 0;    // of the worst element of out
  double got = 0.0;
  double expected = 0.0;
};

struct Comparison {
  double tolerance = 0.0;
  double max_abs_error = 0.0;   // over out
  double relative_error = 0.0;  // Frobenius norm of the difference over that of the expected out
  double max_lse_error = 0.0;   // absolute; 0 without LSE
  int64_t rows = 0;             // nodes * heads
  int64_t mismatching_rows = 0;
  std::vector<RowMismatch> mismatches;  // the first of them, in row order
  bool passed() const { return mismatching_rows == 0; }
};

// How far a correct backend may be from the oracle with these element types.
double default_tolerance(DType out, DType kv);

// Compares out, and the LSE when `got` has one. A row of out passes when the Euclidean norm of its error is
// at most tolerance times its expected norm (so an empty row must be 0); an LSE when it is within tolerance *
// max(1, |expected|), infinities being equal to themselves only. NaN never passes. Both problems share their
// sizes and host-readable indptr arrays; `expected` has an LSE.
Comparison compare_results(const VerifyProblem& got, const VerifyProblem& expected, double tolerance,
                           int64_t show);

}  // namespace kdtree::cli
