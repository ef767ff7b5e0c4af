#include "cli/interrupt.h"

#include <atomic>
#include <csignal>

namespace kdtree::cli {
namespace {

std::atomic<bool> g_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may only touch lock-free atomics");

extern "C" void on_interrupt(int) {
  g_interrupted.store(true, std::memory_order_relaxed);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction interrupt = {};
  interrupt.sa_handler = on_interrupt;
  interrupt.sa_flags = static_cast<int>(SA_RESETHAND | static_cast<unsigned>(SA_RESTART));
  sigaction(SIGINT, &interrupt, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

bool interrupted() {
  return g_interrupted.load(std::memory_order_relaxed);
}

}  // namespace kdtree::cli
