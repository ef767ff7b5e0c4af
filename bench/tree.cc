// bench/tree: the host tree operations through the C ABI, one core. Prints one JSON object a cell.
// Usage: bench_tree HEAPQ_JSON DATE COMMIT   (bench/run makes them; HEAPQ_JSON is what bench/tree_heapq.py
// printed)
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/cell.h"
#include "cases/random.h"
#include "cli/timing.h"
#include "core/dtype.h"
#include "kdtree/kdtree.h"

namespace kdtree {
namespace {

constexpr int kRepeat = 101;

cli::Timing measure(const std::function<int32_t()>& function) {
  const auto timing = cli::time_runs(
      [&]() -> Status {
        check(function());
        return {};
      },
      kRepeat);
  return *timing;
}

struct Output {
  Json heapq;
  Origin origin;
  void cell(const std::string& backend, const Json& case_fields, const cli::Timing& timing, const Json& rate,
            const std::string& baseline, double baseline_us) const {
    print_cell({{"bench", "tree"}, {"backend", backend}, {"case", case_fields}}, timing, rate, baseline,
               baseline_us, origin);
  }
};

// Log-probabilities like a drafter's: a few good candidates, then a long tail; rows sorted.
struct Candidates {
  std::vector<int32_t> tokens;
  std::vector<float> log_probs;
};

Candidates make_candidates(int32_t batch, int32_t depth, int32_t k) {
  Random random(1);
  Candidates c;
  for (int32_t row = 0; row < batch * depth; ++row) {
    float log_prob = -0.05f;
    for (int32_t r = 0; r < k; ++r) {
      c.tokens.push_back(7 * r + static_cast<int32_t>(random.below(7)));
      c.log_probs.push_back(log_prob);
      log_prob -= static_cast<float>(random.uniform() * 4.0 / (1.0 + 0.5 * r));
    }
  }
  return c;
}

class Workspace {
 public:
  void* reserve(size_t bytes) {
    memory_.resize(bytes + 64);
    const auto base = reinterpret_cast<uintptr_t>(memory_.data());
    return reinterpret_cast<void*>((base + 63) / 64 * 64);
  }

 private:
  std::vector<std::byte> memory_;
};

void bench_build(const Output& output, int32_t batch, int32_t depth, int32_t k, int32_t budget) {
  const Candidates c = make_candidates(batch, depth, k);
  const auto capacity = static_cast<size_t>(batch) * static_cast<size_t>(budget + 1);
  std::vector<int32_t> tokens(capacity), parents(capacity), depths(capacity);
  std::vector<int32_t> indptr(static_cast<size_t>(batch) + 1), roots(static_cast<size_t>(batch), 0);
  std::vector<double> weights(capacity);
  auto p = KDTREE_INIT(kdtree_tree_build_params);
  p.tokens = c.tokens.data();
  p.log_probs = c.log_probs.data();
  p.root_tokens = roots.data();
  p.batch = batch;
  p.depth = depth;
  p.k = k;
  p.node_budget = budget;
  p.capacity = static_cast<int64_t>(capacity);
  p.qo_indptr = indptr.data();
  p.out_tokens = tokens.data();
  p.out_parents = parents.data();
  p.out_depths = depths.data();
  p.out_log_weights = weights.data();
  size_t bytes = 0;
  check(kdtree_tree_build_workspace_size(&p, &bytes));
  Workspace workspace;
  void* memory = workspace.reserve(bytes);
  const auto timing = measure([&] { return kdtree_tree_build(&p, memory, bytes, nullptr); });
  const Json fields{
      {"operation", "build"}, {"batch", batch}, {"positions", depth}, {"k", k}, {"nodes", budget}};
  const std::string key =
      "build_" + std::to_string(depth) + "x" + std::to_string(k) + "_" + std::to_string(budget);
  output.cell("cpu", fields, timing, {{"per_s", batch * budget / timing.median_us * 1e6}}, "Python heapq",
              batch * output.heapq.at(key).get<double>());
}

void bench_top_k(const Output& output, int32_t dtype, int32_t vocab, int32_t k) {
  Random random(2);
  const size_t element = dtype == KDTREE_DTYPE_BF16 ? 2 : 4;
  const size_t size = static_cast<size_t>(vocab) * element;
  // Aligned as a serving engine's buffers are: memcpy falls off a cliff on some processors where they are
  // not.
  Workspace logits_memory, copy_memory;
  void* logits = logits_memory.reserve(size);
  void* copy = copy_memory.reserve(size);
  for (int32_t i = 0; i < vocab; ++i) {
    store_element(logits, static_cast<DType>(dtype), i, 3.0 * random.normal());
  }
  const auto copied = measure([&] {
    std::memcpy(copy, logits, size);
    // The copy must not be optimised away.
    asm volatile("" : : "r"(copy) : "memory");
    return KDTREE_OK;
  });
  std::vector<int32_t> tokens(static_cast<size_t>(k));
  std::vector<float> log_probs(static_cast<size_t>(k));
  auto p = KDTREE_INIT(kdtree_top_k_params);
  p.logits = logits;
  p.rows = 1;
  p.logits_dtype = dtype;
  p.vocab = vocab;
  p.k = k;
  p.tokens = tokens.data();
  p.log_probs = log_probs.data();
  size_t bytes = 0;
  check(kdtree_top_k_workspace_size(&p, &bytes));
  Workspace workspace;
  void* memory = workspace.reserve(bytes);
  const auto report = [&](const char* operation, const cli::Timing& timing) {
    output.cell("cpu",
                {{"operation", operation},
                 {"positions", 1},
                 {"vocab", vocab},
                 {"dtype", dtype_name(static_cast<DType>(dtype))},
                 {"k", k}},
                timing, {{"gbps", static_cast<double>(size) / timing.median_us * 1e-3}}, "memcpy",
                copied.median_us);
  };
  report("top-k and log-softmax", measure([&] { return kdtree_top_k(&p, memory, bytes, nullptr); }));
  p.log_probs = nullptr;
  report("top-k", measure([&] { return kdtree_top_k(&p, memory, bytes, nullptr); }));
}

// The committed rows of a round over all layers of a Kimi-size model; the baseline copies as many bytes once.
void bench_compact(const Output& output, int32_t layers, int64_t moves) {
  constexpr int64_t kRowBytes = 1152;
  constexpr int64_t kSlots = 256;
  std::vector<std::vector<std::byte>> pools(static_cast<size_t>(layers),
                                            std::vector<std::byte>(static_cast<size_t>(kSlots * kRowBytes)));
  std::vector<void*> bases;
  for (auto& pool : pools)
    bases.push_back(pool.data());
  std::vector<int64_t> src, dst;
  for (int64_t i = 0; i < moves; ++i) {
    src.push_back(100 + 3 * i);
    dst.push_back(100 + i);
  }
  auto p = KDTREE_INIT(kdtree_kv_compact_params);
  p.layers = bases.data();
  p.src = src.data();
  p.dst = dst.data();
  p.moves = moves;
  p.slots = kSlots;
  p.row_bytes = kRowBytes;
  p.num_layers = layers;
  size_t bytes = 0;
  check(kdtree_kv_compact_workspace_size(&p, &bytes));
  Workspace workspace;
  void* memory = workspace.reserve(bytes);
  const auto timing = measure([&] { return kdtree_kv_compact(&p, memory, bytes, nullptr); });
  const auto moved = static_cast<size_t>(layers * moves * kRowBytes);
  std::vector<std::byte> from(moved, std::byte{1}), to(moved, std::byte{2});
  const auto copied = measure([&] {
    std::memcpy(to.data(), from.data(), moved);
    asm volatile("" : : "r"(to.data()) : "memory");
    return KDTREE_OK;
  });
  output.cell("cpu", {{"operation", "compact"}, {"layers", layers}, {"rows", moves}}, timing,
              {{"gbps", static_cast<double>(moved) / timing.median_us * 1e-3}}, "memcpy", copied.median_us);
}

}  // namespace
}  // namespace kdtree

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: bench_tree HEAPQ_JSON DATE COMMIT (run bench/run)\n");
    return 2;
  }
  std::ifstream file(argv[1]);
  const kdtree::Output output{kdtree::Json::parse(file), {argv[2], argv[3]}};
  kdtree::bench_build(output, 1, 15, 64, 64);
  kdtree::bench_build(output, 1, 15, 1024, 1024);
  kdtree::bench_build(output, 32, 15, 64, 64);
  kdtree::bench_top_k(output, KDTREE_DTYPE_F32, 163840, 64);
  kdtree::bench_top_k(output, KDTREE_DTYPE_BF16, 163840, 64);
  kdtree::bench_compact(output, 61, 8);
  return 0;
}
