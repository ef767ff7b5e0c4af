#include "cli/timing.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "cli/interrupt.h"

namespace kdtree::cli {
namespace {

constexpr double kLoopUs = 200.0;

Result<double> time_loop(const std::function<Status()>& function, int64_t count) {
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < count; ++i)
    KDTREE_RETURN_IF_ERROR(function());
  const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - begin;
  return elapsed.count() / static_cast<double>(count);
}

}  // namespace

Result<Timing> time_runs(const std::function<Status()>& function, int repeat) {
  KDTREE_RETURN_IF_ERROR(time_loop(function, 1));  // warm-up
  // The first loop tells how many runs fill one.
  const auto once = time_loop(function, 1);
  KDTREE_RETURN_IF_ERROR(once);
  const auto count = std::max<int64_t>(1, static_cast<int64_t>(kLoopUs / std::max(*once, 0.01)));
  std::vector<double> times;
  if (count == 1) times.push_back(*once);
  while (static_cast<int>(times.size()) < repeat && !interrupted()) {
    const auto time = time_loop(function, count);
    KDTREE_RETURN_IF_ERROR(time);
    times.push_back(*time);
  }
  if (times.empty()) return Timing{};
  std::ranges::sort(times);
  const size_t middle = times.size() / 2;
  const double median = times.size() % 2 == 1 ? times[middle] : 0.5 * (times[middle - 1] + times[middle]);
  return Timing{median, times.front()};
}

}  // namespace kdtree::cli
