#include "attention/cpu/verify_attn_cpu.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "attention/cpu/tile.h"
#include "attention/validate.h"
#include "core/parallel.h"

namespace kdtree {
namespace {

// One request's share of the work: units (block, tile), tiles side by side, so that threads read the same KV
// at about the same time.
struct RequestWork {
  int64_t first_unit;
  int64_t first_tile;
  int64_t tiles;
  int64_t positions;  // more than its deepest row has
};

int64_t count_tiles(const VerifyProblem& p) {
  int64_t tiles = 0;
  for (int32_t r = 0; r < p.batch; ++r)
    tiles += ceil_div(request_view(p, r).nodes, nodes_per_tile(p));
  return tiles;
}

// What all threads share.
struct SharedBuffers {
  std::span<int32_t> parents;   // [T]
  std::span<uint64_t> bits;     // see read_parents
  std::span<RequestWork> work;  // [batch + 1]
  std::span<int32_t> merged;    // [tiles] blocks merged into the tile's total
  Partial total;                // [T * H]

  SharedBuffers(const VerifyProblem& p, Scratch& scratch)
      : parents(scratch.take<int32_t>(total_rows(p))),
        bits(scratch.take<uint64_t>(mask_words(p))),
        work(scratch.take<RequestWork>(int64_t{p.batch} + 1)),
        merged(scratch.take<int32_t>(count_tiles(p))),
        total(total_rows(p) * p.heads, p.latent_dim, scratch) {}
};

class Run {
 public:
  Run(const VerifyProblem& p, const CpuTarget& target, const SharedBuffers& shared, const Progress& progress)
      : p_(p), target_(target), shared_(shared), progress_(progress) {}

  // Reads the trees and counts the work.
  Status plan() {
    RequestWork next{};
    for (int32_t r = 0; r < p_.batch; ++r) {
      const RequestView view = request_view(p_, r);
      const auto parents = parents_of(view);
      if (auto read = read_parents(p_, r, parents, shared_.bits); !read) {
        return with_context(std::move(read).error(), fmt::format("request {}: ", r));
      }
      next.tiles = ceil_div(view.nodes, nodes_per_tile(p_));
      next.positions = view.prefix_length + view.nodes;
      shared_.work[static_cast<size_t>(r)] = next;
      next.first_unit += next.tiles * ceil_div(next.positions, kBlock);
      next.first_tile += next.tiles;
    }
    shared_.work[static_cast<size_t>(p_.batch)] = next;
    std::fill(shared_.merged.begin(), shared_.merged.end(), 0);
    std::fill_n(shared_.total.max, total_rows(p_) * p_.heads, Partial::kNothing);
    std::fill_n(shared_.total.sum, total_rows(p_) * p_.heads, 0.0f);
    return {};
  }

  int64_t units() const { return shared_.work.back().first_unit; }

  // Takes units until none is left. Any number of threads, each with its own buffers.
  void work(const TileBuffers& buffers) {
    while (!stopped_) {
      // A unit that was taken is done: the one after it waits.
      const int64_t unit = next_unit_++;
      if (unit >= units()) return;
      run_unit(unit, buffers);
      if (progress_) report();
    }
  }

 private:
  std::span<int32_t> parents_of(const RequestView& view) const {
    return shared_.parents.subspan(static_cast<size_t>(view.row_begin), static_cast<size_t>(view.nodes));
  }

  void run_unit(int64_t unit, const TileBuffers& buffers) {
    const auto after = std::upper_bound(shared_.work.begin(), shared_.work.end(), unit,
                                        [](int64_t u, const RequestWork& w) { return u < w.first_unit; });
    const RequestWork& work = *std::prev(after);
    const RequestView view = request_view(p_, std::prev(after) - shared_.work.begin());
    const int64_t block = (unit - work.first_unit) / work.tiles;
    const int64_t index = (unit - work.first_unit) % work.tiles;
    const int64_t node_begin = view.nodes * index / work.tiles;
    const RowTile tile{view, parents_of(view), node_begin, view.nodes * (index + 1) / work.tiles};
    const int64_t begin = block * kBlock;
    const int64_t end = std::min(begin + kBlock, work.positions);
    target_.attend(p_, tile, begin, end, buffers);

    // Blocks join in their order. The one before was taken earlier, so some thread is at it or done.
    std::atomic_ref<int32_t> merged(shared_.merged[static_cast<size_t>(work.first_tile + index)]);
    spin_until([&] { return merged.load(std::memory_order_acquire) == block; });
    const Partial total = shared_.total.from_row((view.row_begin + node_begin) * p_.heads, p_.latent_dim);
    target_.merge((tile.node_end - node_begin) * p_.heads, p_.latent_dim, total, buffers.partial);
    if (end == work.positions) {
      target_.store(p_, tile, total);
    } else {
      merged.store(static_cast<int32_t>(block + 1), std::memory_order_release);
    }
  }

  void report() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!stopped_ && !progress_(++done_, units())) stopped_ = true;
  }

  const VerifyProblem& p_;
  const CpuTarget& target_;
  const SharedBuffers& shared_;
  const Progress& progress_;
  std::atomic<int64_t> next_unit_ = 0;
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;
  int64_t done_ = 0;
};

int64_t thread_bytes(const VerifyProblem& p) {
  Scratch scratch;
  (void)TileBuffers(p, scratch);
  return scratch.used();
}

}  // namespace

Status cpu_supports(const VerifyProblem& p) {
  return check_no_f64(p, "a type the cpu backend has");
}

void cpu_scratch(const VerifyProblem& problem, Scratch& scratch) {
  (void)SharedBuffers(problem, scratch);
  (void)scratch.take<std::byte>(saturating_mul(thread_limit(), thread_bytes(problem)));
}

Status run_cpu(const VerifyProblem& problem, Scratch& scratch, const Progress& progress) {
  const auto target = choose_cpu_target();
  if (!target) return tl::unexpected<Error>(target.error());
  const SharedBuffers shared(problem, scratch);
  const int64_t bytes = thread_bytes(problem);
  const int64_t threads = std::clamp<int64_t>(scratch.room() / bytes, 1, thread_limit());
  const std::span<std::byte> memory = scratch.take<std::byte>(threads * bytes);
  KDTREE_RETURN_IF_ERROR(scratch.check());

  Run run(problem, **target, shared, progress);
  KDTREE_RETURN_IF_ERROR(run.plan());
  const auto work = [&](int64_t thread) {
    Scratch own(&memory[static_cast<size_t>(thread * bytes)], static_cast<size_t>(bytes));
    run.work(TileBuffers(problem, own));
  };
  parallel_run(std::min(threads, run.units()), work);
  return {};
}

}  // namespace kdtree
