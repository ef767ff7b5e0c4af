#include "engine/round_costs.h"

#include <algorithm>
#include <cmath>

namespace kdtree {
namespace {

// Variances of logarithms. At first the speed may be off by half, an entry by a third; a round's time varies
// by a tenth. With every round the speed wanders by 3 %, each entry's error by 0.7 %: what holds passes of
// few rows up, memory, is not what holds up those of many.
constexpr double kSpeed = 0.25;
constexpr double kError = 0.1;
constexpr double kNoise = 0.01;
constexpr double kSpeedWalk = 1e-3;
constexpr double kErrorWalk = 5e-5;
// Deviations of a surprise that are believed: a round that lost its processor says nothing.
constexpr double kMostDeviations = 3.0;

// The entry that stands for `value`, of `entries` (ascending).
size_t entry(const std::vector<int64_t>& entries, int64_t value) {
  const auto at = std::lower_bound(entries.begin(), entries.end(), value) - entries.begin();
  return std::min(static_cast<size_t>(at), entries.size() - 1);
}

}  // namespace

RoundCosts::RoundCosts(CostTable table)
    : table_(std::move(table)),
      speed_{0.0, kSpeed},
      verify_errors_(table_.rows.size(), {0.0, kError}),
      draft_errors_(table_.depths.size(), {0.0, kError}) {}

double RoundCosts::verify(int64_t rows, double context) const {
  return table_.verify(rows, context) *
         std::exp(speed_.value + verify_errors_[entry(table_.rows, rows)].value);
}

double RoundCosts::draft(int64_t requests, int64_t depth) const {
  if (draft_errors_.empty()) return 0.0;
  return table_.draft(requests, depth) *
         std::exp(speed_.value + draft_errors_[entry(table_.depths, depth)].value);
}

void RoundCosts::observe_verify(int64_t rows, double context, double microseconds) {
  observe(verify_errors_[entry(table_.rows, rows)], microseconds / table_.verify(rows, context));
}

void RoundCosts::observe_draft(int64_t requests, int64_t depth, double microseconds) {
  if (draft_errors_.empty()) return;
  observe(draft_errors_[entry(table_.depths, depth)], microseconds / table_.draft(requests, depth));
}

void RoundCosts::observe(Estimate& error, double ratio) {
  const double variance = speed_.variance + error.variance + kNoise;
  const double most = kMostDeviations * std::sqrt(variance);
  const double surprise = std::clamp(std::log(ratio) - speed_.value - error.value, -most, most);
  for (Estimate* estimate : {&speed_, &error}) {
    const double gain = estimate->variance / variance;
    estimate->value += gain * surprise;
    estimate->variance *= 1.0 - gain;
  }
  speed_.variance += kSpeedWalk;
  for (std::vector<Estimate>* errors : {&verify_errors_, &draft_errors_}) {
    for (Estimate& each : *errors)
      each.variance = std::min(each.variance + kErrorWalk, kError);
  }
}

}  // namespace kdtree
