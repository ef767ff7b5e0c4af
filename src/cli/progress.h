// A progress line on standard error, for a person who waits.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace kdtree::cli {

// Shows "<label> 35 %" once the work has taken a second, only when standard error is a terminal. The
// destructor wipes the line.
class ProgressLine {
 public:
  explicit ProgressLine(std::string label);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // False when the work is to stop: the form of kdtree::Progress.
  bool update(int64_t done, int64_t total);

 private:
  std::string label_;
  bool terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace kdtree::cli
