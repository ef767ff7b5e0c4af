// A cost table, corrected by what rounds took.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cost_table.h"

namespace kdtree {

// Time is taken as the table's, times the machine's speed at the moment, times an error of the table's entry:
// two logarithms, of which each round shows the sum. A Kalman filter tells them apart, for the speed is
// common to all entries and wanders faster than an error.
class RoundCosts {
 public:
  explicit RoundCosts(CostTable table);

  // Microseconds, as those of CostTable.
  double verify(int64_t rows, double context) const;
  double draft(int64_t requests, int64_t depth) const;

  void observe_verify(int64_t rows, double context, double microseconds);
  void observe_draft(int64_t requests, int64_t depth, double microseconds);

 private:
  struct Estimate {
    double value;
    double variance;
  };
  void observe(Estimate& error, double ratio);

  CostTable table_;
  Estimate speed_;
  std::vector<Estimate> verify_errors_;  // [rows of the table]
  std::vector<Estimate> draft_errors_;   // [depths of the table]
};

}  // namespace kdtree
