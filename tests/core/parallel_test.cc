#include "core/parallel.h"

#include <array>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace kdtree {
namespace {

// A team with as many helpers as a test asks for, on whatever machine.
class HelpedTeam {
 public:
  explicit HelpedTeam(int helpers) {
    for (int i = 0; i < helpers; ++i)
      threads_.emplace_back([this] { team_.help(); });
  }
  ~HelpedTeam() {
    Team::current() = nullptr;  // a run leaves its team there, for the next one
    team_.dismiss();
    for (std::thread& thread : threads_)
      thread.join();
  }
  Team* operator->() { return &team_; }

 private:
  Team team_;
  std::vector<std::thread> threads_;
};

// Every body once in each of many runs, and what a body wrote, not atomically, is seen behind its run.
TEST(Team, RunsEveryBodyOnce) {
  for (const int helpers : {0, 1, 3}) {
    HelpedTeam team(helpers);
    std::array<int64_t, 9> written{};
    for (int64_t run = 1; run <= 3000; ++run) {
      const int64_t count = 1 + run % static_cast<int64_t>(written.size());
      team->run(count, [&](int64_t i) { written[static_cast<size_t>(i)] += run; });
      for (int64_t i = 0; i < count; ++i)
        written[static_cast<size_t>(i)] -= run;
      for (const int64_t left : written)
        ASSERT_EQ(left, 0) << "run " << run << ", " << helpers << " helpers";
    }
  }
}

// Both threads must be there at once: the run would not end if no helper took a body.
TEST(Team, HelpersTakeBodies) {
  HelpedTeam team(1);
  for (int run = 0; run < 200; ++run) {
    std::atomic<int> arrived = 0;
    std::array<std::thread::id, 2> threads;
    team->run(2, [&](int64_t i) {
      threads[static_cast<size_t>(i)] = std::this_thread::get_id();
      ++arrived;
      spin_until([&] { return arrived.load() == 2; });
    });
    EXPECT_NE(threads[0], threads[1]);
  }
}

TEST(Team, IsDismissedWhileHelpersAreInARun) {
  for (int round = 0; round < 200; ++round) {
    HelpedTeam team(2);
    std::atomic<int> done = 0;
    team->run(3, [&](int64_t) { ++done; });
    EXPECT_EQ(done.load(), 3);
  }
}

TEST(WithTeam, GivesTheValueAndTakesNestedRuns) {
  const int64_t total = with_team([] {
    std::atomic<int64_t> sum = 0;
    for (int64_t run = 0; run < 100; ++run) {
      parallel_run(
          4, [&](int64_t i) { with_team([&] { parallel_run(3, [&](int64_t j) { sum += 10 * i + j; }); }); });
    }
    return sum.load();
  });
  EXPECT_EQ(total, 100 * (10 * (0 + 1 + 2 + 3) * 3 + 4 * (0 + 1 + 2)));
  EXPECT_EQ(Team::current(), nullptr);
}

TEST(WithTeam, EndsWithTheExceptionOfItsBody) {
  const auto fails = [] {
    with_team([] {
      parallel_run(4, [](int64_t) {});
      throw std::runtime_error("no");
    });
  };
  for (int i = 0; i < 50; ++i)
    EXPECT_THROW(fails(), std::runtime_error);
  EXPECT_EQ(Team::current(), nullptr);
}

// Two computations in two threads, each with its own team.
TEST(WithTeam, ServesTwoThreadsAtOnce) {
  std::array<std::atomic<int64_t>, 2> sums{};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < sums.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 50; ++round)
        with_team([&] { parallel_run(8, [&](int64_t i) { sums[t] += i; }); });
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  for (const auto& sum : sums)
    EXPECT_EQ(sum.load(), 50 * 28);
}

}  // namespace
}  // namespace kdtree
