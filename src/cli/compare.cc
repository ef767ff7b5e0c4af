#include "cli/compare.h"

#include <algorithm>
#include <cmath>

namespace kdtree::cli {
namespace {

double element_error(double got, double expected) {
  return got == expected ? 0.0 : std::fabs(got - expected);  // equal infinities differ by nothing
}

// The larger error; NaN is larger than everything.
double worse(double a, double b) {
  return std::isnan(a) || a >= b ? a : b;
}

struct RowErrors {
  double error_squares = 0.0;
  double expected_squares = 0.0;
  double worst = -1.0;
  RowMismatch mismatch;
};

RowErrors compare_row(const VerifyProblem& got, const VerifyProblem& expected, int64_t t, int32_t head) {
  RowErrors row;
  const int64_t got_from = t * out_token_stride(got) + head * out_head_stride(got);
  const int64_t expected_from = t * out_token_stride(expected) + head * out_head_stride(expected);
  for (int64_t c = 0; c < got.latent_dim; ++c) {
    const double value = load_element(got.out, static_cast<DType>(got.out_dtype), got_from + c);
    const double want = load_element(expected.out, static_cast<DType>(expected.out_dtype), expected_from + c);
    const double error = element_error(value, want);
    row.error_squares += error * error;
    row.expected_squares += want * want;
    if (!(error <= row.worst) && !std::isnan(row.worst)) {
      row.worst = error;
      row.mismatch.index = c;
      row.mismatch.got = value;
      row.mismatch.expected = want;
    }
  }
  return row;
}

}  // namespace

double default_tolerance(DType out, DType kv) {
  // A rounding to bf16 moves a value by at most 2^-9 = 2.0e-3 of it, to f16 by 2^-11 = 4.9e-4. Two of them
  // add up: the output's own, and that of P to the type of V, which the design allows (an e4m3 V is widened
  // to bf16 first). Three to four times the single bound leaves room for both and none for a wrong key: one
  // that is missing among thousands moves a row by more. In f32 the sums over a few thousand keys and the
  // exponent of scores around 10 make some 10 ulp.
  const auto tolerance = [](DType type) {
    switch (type) {
      case DType::bf16:
      case DType::e4m3:
        return 6e-3;
      case DType::f16:
        return 2e-3;
      default:
        return 1e-5;
    }
  };
  return std::max(tolerance(out), tolerance(kv));
}

Comparison compare_results(const VerifyProblem& got, const VerifyProblem& expected, double tolerance,
                           int64_t show) {
  Comparison result;
  result.tolerance = tolerance;
  double error_squares = 0.0;
  double expected_squares = 0.0;
  for (int32_t r = 0; r < expected.batch; ++r) {
    const RequestView view = request_view(expected, r);
    for (int64_t node = 0; node < view.nodes; ++node) {
      const int64_t t = view.row_begin + node;
      for (int32_t head = 0; head < expected.heads; ++head) {
        RowErrors row = compare_row(got, expected, t, head);
        ++result.rows;
        error_squares += row.error_squares;
        expected_squares += row.expected_squares;
        result.max_abs_error = worse(result.max_abs_error, row.worst);
        bool passed = std::sqrt(row.error_squares) <= tolerance * std::sqrt(row.expected_squares);
        if (got.lse != nullptr) {
          const double value =
              load_element(got.lse, lse_dtype(got), t * lse_token_stride(got) + head * lse_head_stride(got));
          const double want = load_element(expected.lse, lse_dtype(expected),
                                           t * lse_token_stride(expected) + head * lse_head_stride(expected));
          const double error = element_error(value, want);
          result.max_lse_error = worse(result.max_lse_error, error);
          const bool close =
              value == want || (std::isfinite(want) && error <= tolerance * std::max(1.0, std::fabs(want)));
          if (passed && !close) {
            row.mismatch.in_lse = true;
            row.mismatch.got = value;
            row.mismatch.expected = want;
          }
          passed = passed && close;
        }
        if (passed) continue;
        ++result.mismatching_rows;
        if (static_cast<int64_t>(result.mismatches.size()) < show) {
          row.mismatch.request = r;
          row.mismatch.node = node;
          row.mismatch.head = head;
          result.mismatches.push_back(row.mismatch);
        }
      }
    }
  }
  result.relative_error = error_squares == 0.0 ? 0.0 : std::sqrt(error_squares / expected_squares);
  return result;
}

}  // namespace kdtree::cli
