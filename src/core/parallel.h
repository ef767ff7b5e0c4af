// Threads of host code: oneTBB's, so that a caller's limits (arenas, global_control, CPU affinity) hold.
#pragma once

#include <algorithm>
#include <cstdint>

#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#ifdef __SANITIZE_THREAD__
#include <thread>
#include <vector>
#endif

namespace kdtree {

// As many threads as the calling one may use, itself included.
inline int64_t thread_limit() {
  const auto allowed = tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism);
  return std::min<int64_t>(tbb::this_task_arena::max_concurrency(), static_cast<int64_t>(allowed));
}

// body(0) ... body(count - 1), each once, on as many threads as there are; returns when all have.
template <class Body>
void parallel_run(int64_t count, const Body& body) {
  if (count < 1) return;
  if (count == 1) return body(0);
#ifdef __SANITIZE_THREAD__
  // ThreadSanitizer does not see how the uninstrumented library hands work over. These threads allocate, so
  // the tsan preset leaves the test of allocations out.
  std::vector<std::thread> threads;
  for (int64_t i = 1; i < count; ++i)
    threads.emplace_back([&body, i] { body(i); });
  body(0);
  for (std::thread& thread : threads)
    thread.join();
#else
  // On its own: neither cancelled with the caller's tasks nor interleaved with them, in the caller's
  // floating-point mode.
  tbb::task_group_context context(
      tbb::task_group_context::isolated,
      tbb::task_group_context::default_traits | tbb::task_group_context::fp_settings);
  tbb::this_task_arena::isolate(
      [&] { tbb::parallel_for(int64_t{0}, count, body, tbb::simple_partitioner(), context); });
#endif
}

// body(row) for every row, on several threads where that pays. `work` counts the elements a row has.
template <class Body>
void parallel_rows(int64_t rows, int64_t work, const Body& body) {
  constexpr int64_t kElementsPerThread = 1 << 14;  // some microseconds of arithmetic
  const int64_t threads = std::clamp<int64_t>(rows * work / kElementsPerThread, 1, thread_limit());
  parallel_run(threads, [&](int64_t thread) {
    for (int64_t r = rows * thread / threads; r < rows * (thread + 1) / threads; ++r)
      body(r);
  });
}

}  // namespace kdtree
