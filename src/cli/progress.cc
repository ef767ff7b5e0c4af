#include "cli/progress.h"

#include <cstdio>
#include <utility>

#include <unistd.h>

#include "cli/interrupt.h"

namespace kdtree::cli {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

ProgressLine::ProgressLine(std::string label)
    : label_(std::move(label)),
      terminal_(isatty(STDERR_FILENO) != 0),
      next_(Clock::now() + std::chrono::seconds(1)) {}

ProgressLine::~ProgressLine() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

bool ProgressLine::update(int64_t done, int64_t total) {
  if (terminal_ && total > 0 && Clock::now() >= next_) {
    std::fprintf(stderr, "\r\033[K%s %d %%", label_.c_str(), static_cast<int>(100 * done / total));
    std::fflush(stderr);
    shown_ = true;
    next_ = Clock::now() + std::chrono::milliseconds(100);
  }
  return !interrupted();
}

}  // namespace kdtree::cli
