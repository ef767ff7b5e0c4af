// bench/verify_attn: verify attention on the cpu backend through the C ABI. Prints one JSON object a cell.
// Usage: bench_verify_attn TORCH_JSONL DATE COMMIT (bench/run makes them; TORCH_JSONL is what
// bench/verify_attn_torch.py printed, with as many threads)
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include <nlohmann/json.hpp>
#include <tbb/global_control.h>
#include <tbb/info.h>

#include "attention/cpu/tile.h"
#include "bench/cell.h"
#include "cases/random.h"
#include "cli/timing.h"
#include "core/dtype.h"
#include "kdtree/kdtree.h"

namespace kdtree {
namespace {

constexpr int32_t kHeads = 8;
constexpr int32_t kLatent = 512;
constexpr int32_t kRope = 64;
constexpr int32_t kWidth = kLatent + kRope;
constexpr int kRepeat = 7;

// bf16 bits of numbers of both signs around 1: what they are does not change the time.
std::vector<uint16_t> random_bf16(size_t count, uint64_t seed) {
  std::vector<uint16_t> values(count);
  uint64_t state = seed;
  for (uint16_t& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<uint16_t>(((state >> 48) & 0x807fu) | 0x3f00u);
  }
  return values;
}

// `batch` requests, each with `prefix` scattered slots and a tree of `nodes`.
class Problem {
 public:
  Problem(int64_t batch, int64_t prefix, int64_t nodes, const std::vector<uint16_t>& pool)
      : slots_(static_cast<size_t>(batch * (prefix + nodes))),
        query_(random_bf16(static_cast<size_t>(batch * nodes) * kHeads * kWidth, 3)),
        out_(static_cast<size_t>(batch * nodes) * kHeads * kLatent) {
    Random random(7);
    std::iota(slots_.begin(), slots_.end(), 0);
    for (size_t i = slots_.size(); i > 1; --i) {
      std::swap(slots_[i - 1], slots_[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
    }
    for (int64_t r = 0; r <= batch; ++r) {
      rows_.push_back(r * nodes);
      prefixes_.push_back(r * prefix);
    }
    for (int64_t r = 0; r < batch; ++r) {
      for (int64_t i = 0; i < nodes; ++i) {
        // Wide at the root and a few levels deep, like a drafter's.
        const int64_t parent = i == 0 ? -1 : std::min(random.below((i + 2) / 3 + 1), i - 1);
        parents_.push_back(static_cast<int32_t>(parent));
      }
    }
    p_ = KDTREE_INIT(kdtree_verify_attn_params);
    p_.batch = static_cast<int32_t>(batch);
    p_.heads = kHeads;
    p_.latent_dim = kLatent;
    p_.rope_dim = kRope;
    p_.scale = 0.0721687f;  // 192^-0.5
    p_.backend = KDTREE_BACKEND_CPU;
    p_.q_dtype = p_.kv_dtype = p_.out_dtype = KDTREE_DTYPE_BF16;
    p_.indptr_dtype = p_.kv_indices_dtype = KDTREE_DTYPE_I64;
    p_.q = query_.data();
    p_.kv = pool.data();
    p_.kv_slots = static_cast<int64_t>(pool.size() / kWidth);
    p_.qo_indptr = rows_.data();
    p_.kv_indptr = prefixes_.data();
    p_.kv_indices = slots_.data();
    p_.draft_location = KDTREE_DRAFT_IN_POOL;
    p_.draft_slots = slots_.data() + batch * prefix;
    p_.tree_encoding = KDTREE_TREE_PARENTS;
    p_.parents = parents_.data();
    p_.out = out_.data();
    check(kdtree_verify_attn_workspace_size(&p_, &bytes_));
    workspace_.resize(bytes_ + 64);
  }

  size_t workspace_bytes() const { return bytes_; }

  cli::Timing measure() {
    void* memory = workspace_.data();
    size_t room = workspace_.size();
    memory = std::align(64, bytes_, memory, room);
    const auto timing = cli::time_runs(
        [&]() -> Status {
          check(kdtree_verify_attn(&p_, memory, bytes_, nullptr));
          return {};
        },
        kRepeat);
    return *timing;
  }

 private:
  std::vector<int64_t> slots_;
  std::vector<uint16_t> query_;
  std::vector<uint16_t> out_;
  std::vector<int64_t> rows_;
  std::vector<int64_t> prefixes_;
  std::vector<int32_t> parents_;
  std::vector<std::byte> workspace_;
  size_t bytes_ = 0;
  kdtree_verify_attn_params p_;
};

double flop(int64_t batch, int64_t prefix, int64_t nodes) {
  return 2.0 * (kWidth + kLatent) * static_cast<double>(batch * kHeads * nodes * (prefix + nodes));
}

struct Torch {
  std::map<std::tuple<int64_t, int64_t, int64_t>, Json> cells;
  std::map<std::string, double> gemm;  // GFLOP/s

  explicit Torch(const char* path) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      const Json json = Json::parse(line);
      if (json.contains("gflops")) {
        gemm[json["backend"]] = json["gflops"];
      } else {
        cells[{json["batch"], json["prefix"], json["nodes"]}] = json;
      }
    }
  }
};

Json tflops(double work, const cli::Timing& timing) {
  return {{"tflops", work / timing.median_us * 1e-6}};
}

Json cell(int64_t batch, int64_t prefix, int64_t nodes, int64_t threads) {
  return {{"bench", "verify-attn"},
          {"backend", "cpu"},
          {"case",
           {{"batch", batch},
            {"prefix", prefix},
            {"nodes", nodes},
            {"threads", threads},
            {"target", (*choose_cpu_target())->name}}}};
}

void run(const Torch& torch, const Origin& origin) {
  const int64_t threads = tbb::info::default_concurrency();
  const std::vector<uint16_t> pool = random_bf16(size_t{8} * (65536 + 64) * kWidth, 5);
  for (const int64_t batch : {1, 8}) {
    for (const int64_t prefix : {1024, 8192, 65536}) {
      for (const int64_t nodes : {1, 8, 16, 32, 64}) {
        const auto found = torch.cells.find({batch, prefix, nodes});
        if (found == torch.cells.end()) continue;
        const Json& other = found->second;
        // The faster of the two ways; where torch would take too long, the machine's best matrix product.
        std::string baseline = "gemm-f32";
        double baseline_us = flop(batch, prefix, nodes) / torch.gemm.at("gemm-f32") * 1e-3;
        for (const char* way : {"sdpa", "matmul"}) {
          if (other[way].is_null() || (baseline != "gemm-f32" && other[way] > baseline_us)) continue;
          baseline = std::string("torch ") + way;
          baseline_us = other[way];
        }
        Problem problem(batch, prefix, nodes, pool);
        Json json = cell(batch, prefix, nodes, threads);
        json["workspace_bytes"] = problem.workspace_bytes();
        json["torch_us"] = {
            {"sdpa", other["sdpa"]}, {"matmul", other["matmul"]}, {"matmul-f32", other["matmul-f32"]}};
        json["of_gemm_bf16"] = flop(batch, prefix, nodes) / torch.gemm.at("gemm-bf16");
        json["of_gemm_f32"] = flop(batch, prefix, nodes) / torch.gemm.at("gemm-f32");
        const auto timing = problem.measure();
        for (const char* gemm : {"of_gemm_bf16", "of_gemm_f32"})
          json[gemm] = json[gemm].get<double>() * 1e-3 / timing.median_us;
        print_cell(json, timing, tflops(flop(batch, prefix, nodes), timing), baseline, baseline_us, origin);
      }
    }
  }
  // How it scales: one thread is the baseline.
  for (const int64_t nodes : {1, 64}) {
    double one = 0.0;
    for (int64_t used = 1; used <= threads; used *= 2) {
      const tbb::global_control limit(tbb::global_control::max_allowed_parallelism,
                                      static_cast<size_t>(used));
      Problem problem(1, 8192, nodes, pool);
      const auto timing = problem.measure();
      if (used == 1) one = timing.median_us;
      print_cell(cell(1, 8192, nodes, used), timing, tflops(flop(1, 8192, nodes), timing), "cpu, 1 thread",
                 one, origin);
    }
  }
}

}  // namespace
}  // namespace kdtree

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: bench_verify_attn TORCH_JSONL DATE COMMIT (run bench/run)\n");
    return 2;
  }
  kdtree::run(kdtree::Torch(argv[1]), {argv[2], argv[3]});
  return 0;
}
