// Threads of host code: oneTBB's, so that a caller's limits (arenas, global_control, CPU affinity) hold.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>

namespace kdtree {

// As many threads as the calling one may use, itself included.
inline int64_t thread_limit() {
  const auto allowed = tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism);
  return std::min<int64_t>(tbb::this_task_arena::max_concurrency(), static_cast<int64_t>(allowed));
}

// Waits for what another thread is at. Others may need the processor: after some microseconds it is offered
// to them.
template <class Condition>
void spin_until(const Condition& condition) {
  for (int spins = 0; !condition(); ++spins) {
    if (spins < 1000) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    } else {
      std::this_thread::yield();
    }
  }
}

// Of work on its own: neither cancelled with the caller's tasks nor interleaved with them, in the caller's
// floating-point mode.
inline tbb::task_group_context own_context() {
  return tbb::task_group_context(tbb::task_group_context::isolated, tbb::task_group_context::default_traits |
                                                                        tbb::task_group_context::fp_settings);
}

// What runs beside the calling thread until wait(); bodies do not throw.
#ifdef __SANITIZE_THREAD__
// ThreadSanitizer does not see how the uninstrumented library hands work over. These threads allocate, so
// the tsan preset leaves the test of allocations out.
class TaskGroup {
 public:
  template <class Body>
  void run(const Body& body) {
    threads_.emplace_back(body);
  }
  void wait() {
    for (std::thread& thread : threads_)
      thread.join();
  }

 private:
  std::vector<std::thread> threads_;
};
#else
class TaskGroup {
 public:
  template <class Body>
  void run(const Body& body) {
    group_.run(body);
  }
  void wait() { group_.wait(); }

 private:
  tbb::task_group_context context_ = own_context();
  tbb::task_group group_{context_};
};
#endif

// Threads that wait for the parallel runs of one computation (with_team). One leads; the others help as they
// come, so that it gets done also where none ever does.
class Team {
 public:
  // The one that the calling thread leads, between its runs.
  static Team*& current() {
    thread_local Team* team = nullptr;
    return team;
  }

  // By the leader: body(0) ... body(count - 1), each once; count < 2^32.
  template <class Body>
  void run(int64_t count, const Body& body) {
    current() = nullptr;  // a run inside of a body is not the team's
    body_.store(&body, std::memory_order_relaxed);
    call_.store([](const void* of, int64_t i) { (*static_cast<const Body*>(of))(i); },
                std::memory_order_relaxed);
    unfinished_.store(count, std::memory_order_relaxed);
    const uint64_t stage = left_.load(std::memory_order_relaxed) >> 32;
    left_.store((stage + 1) << 32 | static_cast<uint64_t>(count), std::memory_order_release);
    while (take()) {
    }
    spin_until([&] { return unfinished_.load(std::memory_order_acquire) == 0; });
    current() = this;
  }

  // By the others, until dismiss().
  void help() {
    spin_until([&] {
      while (take()) {
      }
      return dismissed_.load(std::memory_order_relaxed);
    });
  }
  void dismiss() { dismissed_.store(true, std::memory_order_relaxed); }

 private:
  // Runs one body of the present run, if one is left.
  bool take() noexcept {
    uint64_t left = left_.load(std::memory_order_acquire);
    while (static_cast<uint32_t>(left) > 0) {
      // Of this run if the exchange succeeds: the run is not over before that.
      const void* body = body_.load(std::memory_order_relaxed);
      const Call call = call_.load(std::memory_order_relaxed);
      if (!left_.compare_exchange_weak(left, left - 1, std::memory_order_acquire)) continue;
      call(body, static_cast<uint32_t>(left) - 1);
      unfinished_.fetch_sub(1, std::memory_order_release);
      return true;
    }
    return false;
  }

  using Call = void (*)(const void* body, int64_t i);
  std::atomic<const void*> body_ = nullptr;
  std::atomic<Call> call_ = nullptr;
  std::atomic<uint64_t> left_ = 0;  // number of the run, and bodies of it that nobody has taken
  std::atomic<int64_t> unfinished_ = 0;
  std::atomic<bool> dismissed_ = false;
};

// body(), a computation of many short parallel runs: meanwhile the other threads stay awake, so that a run
// costs a fraction of a microsecond where oneTBB takes several.
template <class Body>
auto with_team(const Body& body) {
  const int64_t threads = thread_limit();
  if (Team::current() != nullptr || threads == 1) return body();
  return tbb::this_task_arena::isolate([&] {
    Team team;
    TaskGroup helpers;
    struct Lead {
      explicit Lead(Team& of, TaskGroup& others) : team(of), helpers(others) { Team::current() = &team; }
      ~Lead() {
        Team::current() = nullptr;
        team.dismiss();
        helpers.wait();
      }
      Team& team;
      TaskGroup& helpers;
    };
    const Lead lead(team, helpers);
    for (int64_t i = 1; i < threads; ++i)
      helpers.run([&team] { team.help(); });
    return body();
  });
}

// body(0) ... body(count - 1), each once, on as many threads as there are; returns when all have. Bodies do
// not throw.
template <class Body>
void parallel_run(int64_t count, const Body& body) {
  if (count < 1) return;
  if (count == 1) return body(0);
  if (Team* team = Team::current(); team != nullptr) return team->run(count, body);
#ifdef __SANITIZE_THREAD__
  TaskGroup others;
  for (int64_t i = 1; i < count; ++i)
    others.run([&body, i] { body(i); });
  body(0);
  others.wait();
#else
  tbb::task_group_context context = own_context();
  tbb::this_task_arena::isolate(
      [&] { tbb::parallel_for(int64_t{0}, count, body, tbb::simple_partitioner(), context); });
#endif
}

// body(row) for every row, on several threads where that pays. `work` counts the elements a row has.
template <class Body>
void parallel_rows(int64_t rows, int64_t work, const Body& body) {
  constexpr int64_t kElementsPerThread = 1 << 12;  // a microsecond of arithmetic
  const int64_t threads = std::clamp<int64_t>(rows * work / kElementsPerThread, 1, thread_limit());
  parallel_run(threads, [&](int64_t thread) {
    for (int64_t r = rows * thread / threads; r < rows * (thread + 1) / threads; ++r)
      body(r);
  });
}

}  // namespace kdtree
