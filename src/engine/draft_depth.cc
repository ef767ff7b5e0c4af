#include "engine/draft_depth.h"

#include <algorithm>
#include <cmath>

namespace kdtree {
namespace {

// Rounds that a step's gain is averaged over, and rounds from one deeper look to the next.
constexpr int64_t kMemory = 16;
constexpr int64_t kBetweenLooks = 8;

}  // namespace

DraftDepth::DraftDepth(std::vector<int64_t> depths)
    : depths_(std::move(depths)), steps_(depths_.empty() ? 0 : depths_.size() - 1) {}

// The depth from which neither a step, nor any number of steps, promises more. A step that was never taken
// promises the most.
size_t DraftDepth::best() const {
  size_t best = 0;
  double value = 0.0;
  double best_value = 0.0;
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (steps_[i].seen == 0) return steps_.size();
    value += steps_[i].gain;
    if (value <= best_value) continue;
    best_value = value;
    best = i + 1;
  }
  return best;
}

size_t DraftDepth::next() {
  const size_t depth = best();
  if (depth == steps_.size()) return depth;
  if (++since_look_ < kBetweenLooks) return depth;
  since_look_ = 0;
  return depth + 1;
}

void DraftDepth::observe(std::span<const double> rates) {
  for (size_t i = 0; i + 1 < rates.size(); ++i) {
    Step& step = steps_[i];
    step.seen = std::min(step.seen + 1, kMemory);
    step.gain += (std::log(rates[i + 1] / rates[i]) - step.gain) / static_cast<double>(step.seen);
  }
}

}  // namespace kdtree
