// Timing a function: median and minimum of repeated runs after a warm-up.
#pragma once

#include <functional>

#include "core/status.h"

namespace kdtree::cli {

struct Timing {
  double median_us = 0.0;
  double min_us = 0.0;
};

// Functions faster than the clock is fine are run in loops of about 0.2 ms. Ends early, with what it has,
// when interrupted. Errors are the function's.
Result<Timing> time_runs(const std::function<Status()>& function, int repeat);

}  // namespace kdtree::cli
