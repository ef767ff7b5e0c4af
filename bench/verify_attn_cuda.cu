// The CUDA backends through the C ABI: a captured graph of one call, replayed with a cold L2, medians.
//   bench_verify_attn_cuda DATE COMMIT [BACKEND...]
// Random queries, keys and trees; bf16. Slots are scattered over the pool, but for cuda-flash, whose prefixes
// are contiguous. The first backend is the others' baseline. FLOPs: 2 * H * sum over requests of N (L + N) *
// (576 + 512).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kdtree/kdtree.h"

namespace {

constexpr int kLatent = 512;
constexpr int kRope = 64;
constexpr int kWidth = kLatent + kRope;
constexpr int kRepeats = 25;
constexpr size_t kFlushBytes = size_t{256} << 20;  // more than any L2

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

bool ok(int32_t status) {
  if (status == KDTREE_OK) return true;
  char message[512];
  kdtree_last_error(message, sizeof message);
  std::fprintf(stderr, "%s: %s\n", kdtree_status_name(status), message);
  return false;
}

// Uniform in [-1, 1) by a hash of the place.
__global__ void fill(__nv_bfloat16* to, int64_t count, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    auto x = static_cast<uint32_t>(i) * 2654435761u ^ seed;
    x = (x ^ x >> 15) * 2246822519u;
    x = (x ^ x >> 13) * 3266489917u;
    x ^= x >> 16;
    to[i] = __float2bfloat16(static_cast<float>(x) * (2.0f / 4294967296.0f) - 1.0f);
  }
}

template <class T>
class Device {
 public:
  explicit Device(size_t count) : count_(count) {
    check(cudaMalloc(&data_, std::max<size_t>(1, count * sizeof(T))), "cudaMalloc");
  }
  explicit Device(const std::vector<T>& host) : Device(host.size()) {
    check(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() { (void)cudaFree(data_); }
  T* data() const { return data_; }
  size_t count() const { return count_; }

 private:
  T* data_ = nullptr;
  size_t count_;
};

class RandomValues : public Device<__nv_bfloat16> {
 public:
  RandomValues(size_t count, uint32_t seed) : Device(count) {
    fill<<<1024, 256>>>(data(), static_cast<int64_t>(count), seed);
    check(cudaGetLastError(), "fill");
  }
};

struct Case {
  int heads;
  std::vector<int> nodes;  // of each request
  int prefix;              // of every request

  int batch() const { return static_cast<int>(nodes.size()); }
  int most_nodes() const { return std::ranges::max(nodes); }
  bool ragged() const { return std::ranges::min(nodes) != most_nodes(); }
  // As JSON: "nodes" are the most of a request, and in ragged batches "each" are all of them.
  std::string json(const char* plan) const {
    std::string text = "{\"heads\":" + std::to_string(heads) + ",\"batch\":" + std::to_string(batch()) +
                       ",\"nodes\":" + std::to_string(most_nodes()) +
                       ",\"prefix\":" + std::to_string(prefix) + ",\"plan\":\"" + plan + "\"";
    for (size_t i = 0; ragged() && i < nodes.size(); ++i)
      text += (i == 0 ? ",\"each\":[" : ",") + std::to_string(nodes[i]);
    return text + (ragged() ? "]}" : "}");
  }
};

// The rows of a verify pass over KV that 8 or 16 heads of a rank share; before them one node more than a tile
// of rows or eight have, and the trees of bundles/ragged-4.safetensors (the other bundles' shapes are among
// the first ones).
std::vector<Case> cases() {
  std::vector<Case> list = {{8, {1, 8, 17, 32}, 8192}};
  for (const size_t batch : {1, 8, 32}) {
    for (const int nodes : {9, 65})
      list.push_back({8, std::vector<int>(batch, nodes), 8192});
  }
  for (const int heads : {8, 16}) {
    for (const int batch : {1, 8, 32}) {
      for (const int nodes : {8, 16, 32, 64}) {
        if (heads == 16 && nodes != 16 && nodes != 64) continue;
        for (const int prefix : {1024, 8192, 65536}) {
          if (batch == 1 || prefix < 65536)
            list.push_back({heads, std::vector<int>(static_cast<size_t>(batch), nodes), prefix});
        }
      }
    }
  }
  return list;
}

struct Timing {
  double median;
  double least;
};

// Microseconds of a replay. Waits before: with the power that the kernels of the last case took still in its
// books, a device at its limit runs the next one more slowly.
Timing time_graph(cudaGraphExec_t graph, cudaStream_t stream, const Device<char>& flush) {
  cudaEvent_t begin;
  cudaEvent_t end;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<double> times;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (int i = 0; i < kRepeats + 3; ++i) {
    check(cudaMemsetAsync(flush.data(), i, flush.count(), stream), "cudaMemsetAsync");
    check(cudaEventRecord(begin, stream), "cudaEventRecord");
    check(cudaGraphLaunch(graph, stream), "cudaGraphLaunch");
    check(cudaEventRecord(end, stream), "cudaEventRecord");
    check(cudaStreamSynchronize(stream), "the kernels");
    float ms = 0.0f;
    check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
    if (i >= 3) times.push_back(ms * 1e3);
  }
  check(cudaEventDestroy(begin), "cudaEventDestroy");
  check(cudaEventDestroy(end), "cudaEventDestroy");
  std::ranges::sort(times);
  return {times[times.size() / 2], times.front()};
}

class Bench {
 public:
  Bench(std::string date, std::string commit)
      : date_(std::move(date)), commit_(std::move(commit)), flush_(kFlushBytes) {
    check(cudaStreamCreate(&stream_), "cudaStreamCreate");
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    machine_ = properties.name;
  }

  void run(const Case& c, const std::vector<kdtree_backend_info>& backends) {
    std::mt19937 random(7);
    const int rows = std::accumulate(c.nodes.begin(), c.nodes.end(), 0);
    const int prefixes = c.batch() * c.prefix;
    const int slots = prefixes + rows;
    std::vector<int32_t> order(static_cast<size_t>(slots));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random);
    const Device<int32_t> kv_indices(std::vector<int32_t>(order.begin(), order.begin() + prefixes));
    const Device<int32_t> draft_slots(std::vector<int32_t>(order.begin() + prefixes, order.end()));
    std::iota(order.begin(), order.end(), 0);
    const Device<int32_t> behind_prefixes(std::vector<int32_t>(order.begin() + prefixes, order.end()));
    std::vector<int32_t> qo = {0}, kv = {0}, parents;
    double pairs = 0.0;
    for (const int nodes : c.nodes) {
      for (int node = 0; node < nodes; ++node)
        parents.push_back(node == 0 ? -1 : std::uniform_int_distribution<int>(0, node - 1)(random));
      qo.push_back(qo.back() + nodes);
      kv.push_back(kv.back() + c.prefix);
      pairs += double(nodes) * (c.prefix + nodes);
    }
    const Device<int32_t> qo_indptr(qo), kv_indptr(kv), tree(parents);
    const RandomValues q(static_cast<size_t>(rows) * c.heads * kWidth, 1);
    const RandomValues pool(static_cast<size_t>(slots) * kWidth, 2);
    const Device<__nv_bfloat16> out(static_cast<size_t>(rows) * c.heads * kLatent);
    const Device<float> lse(static_cast<size_t>(rows) * c.heads);

    auto p = KDTREE_INIT(kdtree_verify_attn_params);
    p.batch = c.batch();
    p.heads = c.heads;
    p.latent_dim = kLatent;
    p.rope_dim = kRope;
    p.scale = 0.07216878f;  // 192^-1/2
    p.q_dtype = p.kv_dtype = p.out_dtype = KDTREE_DTYPE_BF16;
    p.q = q.data();
    p.out = out.data();
    p.lse = lse.data();
    p.indptr_dtype = p.kv_indices_dtype = KDTREE_DTYPE_I32;
    p.qo_indptr = qo_indptr.data();
    p.kv_indptr = kv_indptr.data();
    p.kv = pool.data();
    p.kv_slots = slots;
    p.tree_encoding = KDTREE_TREE_PARENTS;
    p.parents = tree.data();
    p.memory = KDTREE_MEMORY_CUDA;
    p.max_nodes = c.most_nodes();
    p.max_rows = rows;
    p.max_prefix = c.prefix;
    double baseline = 0.0;
    const char* baseline_name = nullptr;
    for (const kdtree_backend_info& backend : backends) {
      for (const int32_t plan : {KDTREE_PLAN_BALANCED, KDTREE_PLAN_INVARIANT}) {
        if (plan == KDTREE_PLAN_INVARIANT && backend.backend == KDTREE_BACKEND_CUDA_NAIVE) continue;
        const bool contiguous = backend.backend == KDTREE_BACKEND_CUDA_FLASH;
        p.backend = backend.backend;
        p.plan = plan;
        p.kv_indices = contiguous ? nullptr : kv_indices.data();
        p.draft_slots = contiguous ? behind_prefixes.data() : draft_slots.data();
        const Timing t = time(p);
        if (t.median == 0.0) continue;
        const double flops = 2.0 * c.heads * pairs * (kWidth + kLatent);
        std::printf(
            "{\"bench\":\"verify-attn-cuda\",\"backend\":\"%s\",\"case\":%s,\"us\":%.2f,\"min_us\":%.2f,"
            "\"tflops\":%.1f,",
            backend.name, c.json(plan == KDTREE_PLAN_BALANCED ? "balanced" : "invariant").c_str(), t.median,
            t.least, flops / t.median / 1e6);
        if (baseline_name != nullptr) {
          std::printf("\"baseline\":\"%s\",\"baseline_us\":%.2f,\"ratio\":%.2f,", baseline_name, baseline,
                      baseline / t.median);
        } else {
          baseline = t.median;
          baseline_name = backend.name;
        }
        std::printf("\"machine\":\"%s\",\"date\":\"%s\",\"commit\":\"%s\"}\n", machine_.c_str(),
                    date_.c_str(), commit_.c_str());
        std::fflush(stdout);
      }
    }
  }

 private:
  Timing time(const kdtree_verify_attn_params& p) {
    size_t bytes = 0;
    if (!ok(kdtree_verify_attn_workspace_size(&p, &bytes))) return {};
    const Device<char> workspace(bytes);
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    const bool right = ok(kdtree_verify_attn(&p, workspace.data(), bytes, stream_));
    check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    if (!right) return {};
    check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    const Timing result = time_graph(executable, stream_, flush_);
    check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    return result;
  }

  std::string date_;
  std::string commit_;
  std::string machine_;
  Device<char> flush_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s DATE COMMIT [BACKEND...]\n", argv[0]);
    return 2;
  }
  const std::vector<std::string> wanted(argv + 3, argv + argc);
  std::vector<kdtree_backend_info> backends;
  for (int32_t i = 0; i < kdtree_backend_count(); ++i) {
    auto info = KDTREE_INIT(kdtree_backend_info);
    if (!ok(kdtree_get_backend_info(i, &info))) return 1;
    if (info.backend < KDTREE_BACKEND_CUDA_NAIVE || info.available == 0) continue;
    if (wanted.empty() || std::ranges::find(wanted, std::string(info.name)) != wanted.end())
      backends.push_back(info);
  }
  if (backends.empty()) {
    std::fprintf(stderr, "no CUDA backend to time: kdtree info says why\n");
    return 1;
  }
  Bench bench(argv[1], argv[2]);
  for (const Case& c : cases())
    bench.run(c, backends);
}
