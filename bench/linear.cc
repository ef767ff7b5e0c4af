// bench/linear: the row-invariant matrix product of model/ops.h against oneDNN's matmul, the weights of both
// put into their layout beforehand. Prints one JSON object a cell. Calls are repeated on the same weights, so
// that they come from whichever cache holds them. Usage: OMP_NUM_THREADS=THREADS bench_linear DATE COMMIT
// (bench/run sets them; both sides run on THREADS)
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <hwy/aligned_allocator.h>
#include <nlohmann/json.hpp>
#include <oneapi/dnnl/dnnl.hpp>
#include <tbb/global_control.h>

#include "bench/cell.h"
#include "cases/random.h"
#include "cli/timing.h"
#include "core/dtype.h"
#include "core/parallel.h"
#include "model/ops.h"

namespace kdtree {
namespace {

constexpr int kRepeat = 101;

struct Shape {
  int64_t outputs;
  int64_t inputs;
};

// x, the weights and both results; aligned like tensors that a serving engine holds.
class Problem {
 public:
  Problem(const Shape& of, int64_t row_count, DType type, Products products)
      : shape(of),
        rows(row_count),
        dtype(type),
        x(allocate(rows * shape.inputs)),
        weight_floats(allocate(shape.outputs * shape.inputs)),
        y(allocate(rows * shape.outputs)),
        expected(allocate(rows * shape.outputs)) {
    Random random(11);
    const auto fill = [&](float* values, int64_t count) {
      std::generate_n(values, count, [&] { return static_cast<float>(random.uniform() - 0.5); });
    };
    fill(x.get(), rows * shape.inputs);
    const int64_t size = shape.outputs * shape.inputs;
    fill(weight_floats.get(), size);
    if (dtype == DType::bf16) {
      weight_bf16 = hwy::AllocateAligned<uint16_t>(static_cast<size_t>(size));
      for (int64_t i = 0; i < size; ++i)
        store_element(weight_bf16.get(), dtype, i, double{weight_floats[static_cast<size_t>(i)]});
      to_floats(weight_bf16.get(), dtype, size, weight_floats.get());
    }
    packed = Packed(Matrix{weight(), dtype, shape.outputs, shape.inputs, shape.inputs}, products);
  }

  const void* weight() const {
    if (dtype == DType::bf16) return weight_bf16.get();
    return weight_floats.get();
  }
  double flop() const { return 2.0 * static_cast<double>(rows * shape.outputs * shape.inputs); }

  void run() {
    LinearTask task{};
    task.x = x.get();
    task.x_stride = shape.inputs;
    task.rows = rows;
    task.weight = packed.panels();
    task.y = y.get();
    task.y_stride = shape.outputs;
    linear({&task, 1});
  }

  // Ends the program where the two results are further apart than `tolerance` of the largest.
  void compare(double tolerance, const std::string& baseline) const {
    double largest = 0.0;
    double apart = 0.0;
    for (size_t i = 0; i < static_cast<size_t>(rows * shape.outputs); ++i) {
      const double value = static_cast<double>(expected[i]);
      largest = std::max(largest, std::abs(value));
      // fmax keeps the other when one is NaN.
      const double difference = std::abs(value - static_cast<double>(y[i]));
      apart = std::isnan(difference) ? HUGE_VAL : std::max(apart, difference);
    }
    if (largest > 0.0 && apart <= tolerance * largest) return;
    std::fprintf(stderr,
                 "bench_linear: %lld x %lld, %lld rows, %s: up to %g apart from %s, whose largest is %g\n",
                 static_cast<long long>(shape.outputs), static_cast<long long>(shape.inputs),
                 static_cast<long long>(rows), std::string(dtype_name(dtype)).c_str(), apart,
                 baseline.c_str(), largest);
    std::exit(1);
  }

  Shape shape;
  int64_t rows;
  DType dtype;
  hwy::AlignedFreeUniquePtr<float[]> x;              // [rows, inputs]
  hwy::AlignedFreeUniquePtr<float[]> weight_floats;  // [outputs, inputs]
  hwy::AlignedFreeUniquePtr<float[]> y, expected;    // [rows, outputs]
  hwy::AlignedFreeUniquePtr<uint16_t[]> weight_bf16;
  Packed packed;

 private:
  static hwy::AlignedFreeUniquePtr<float[]> allocate(int64_t count) {
    return hwy::AllocateAligned<float>(static_cast<size_t>(count));
  }
};

using Tag = dnnl::memory::format_tag;
using Type = dnnl::memory::data_type;

// oneDNN's product into Problem::expected.
class Matmul {
 public:
  // Nothing where this processor has no fast code for `type`. `layout` of the weights; any: oneDNN's choice.
  static std::optional<Matmul> make(Problem& problem, Type type, Tag layout) {
    try {
      Matmul made(problem, type, layout);
      if (made.implementation_.rfind("ref", 0) == 0) return std::nullopt;
      return made;
    } catch (const dnnl::error& error) {
      if (error.status == dnnl_unimplemented) return std::nullopt;
      throw;
    }
  }

  void run() {
    product_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  Matmul(Problem& problem, Type type, Tag layout) : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    const auto [outputs, inputs] = problem.shape;
    const dnnl::memory::desc x({problem.rows, inputs}, type, Tag::ab);
    const dnnl::memory::desc weight({inputs, outputs}, type, layout);
    const dnnl::memory::desc y({problem.rows, outputs}, Type::f32, Tag::ab);
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc description(engine_, x, weight, y);
#else
    const dnnl::matmul::primitive_desc description({x, weight, y}, engine_);
#endif
    implementation_ = description.impl_info_str();
    product_ = dnnl::matmul(description);
    const auto copy = [&](float* from, const dnnl::memory::dims& dims, Tag tag,
                          const dnnl::memory::desc& to) {
      dnnl::memory source({dims, Type::f32, tag}, engine_, from);
      dnnl::memory target(to, engine_);
      dnnl::reorder(source, target).execute(stream_, source, target);
      stream_.wait();
      return target;
    };
    // Ours are [outputs, inputs].
    arguments_ = {{DNNL_ARG_SRC, copy(problem.x.get(), {problem.rows, inputs}, Tag::ab, x)},
                  {DNNL_ARG_WEIGHTS,
                   copy(problem.weight_floats.get(), {inputs, outputs}, Tag::ba, description.weights_desc())},
                  {DNNL_ARG_DST, dnnl::memory(y, engine_, problem.expected.get())}};
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul product_;
  std::string implementation_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

cli::Timing measure(const std::function<void()>& function) {
  using Clock = std::chrono::steady_clock;
  // The other side's threads spin for some milliseconds before they sleep; then this side's have to wake up,
  // and the processor with them.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  for (const auto end = Clock::now() + std::chrono::milliseconds(100); Clock::now() < end;)
    function();
  const auto timing = cli::time_runs(
      [&]() -> Status {
        function();
        return {};
      },
      kRepeat);
  return *timing;
}

// The baseline is the fastest of what oneDNN has for the case.
void bench(const Shape& shape, int64_t rows, DType dtype, Products products, const Origin& origin) {
  struct Way {
    const char* name;
    Type type;
    Tag layout;
    double tolerance;
  };
  // oneDNN 2 and 3.1 take no f32 rows with bf16 weights.
  const Way ways[] = {{"oneDNN f32", Type::f32, Tag::any, 1e-4},
                      {"oneDNN f32, weights as ours", Type::f32, Tag::ba, 1e-4},
                      {"oneDNN bf16 x bf16", Type::bf16, Tag::any, 1e-2}};
  Problem problem(shape, rows, dtype, products);
  problem.run();
  Json all;
  std::string baseline;
  cli::Timing fastest;
  for (const Way& way : ways) {
    if (way.type == Type::bf16 && dtype != DType::bf16) continue;
    auto matmul = Matmul::make(problem, way.type, way.layout);
    if (!matmul) continue;
    std::fill_n(problem.expected.get(), rows * shape.outputs, NAN);
    matmul->run();
    problem.compare(products == Products::bf16 ? 1e-2 : way.tolerance, way.name);
    const auto timing = measure([&] { matmul->run(); });
    all[way.name] = timing.median_us;
    if (!baseline.empty() && timing.median_us >= fastest.median_us) continue;
    baseline = way.name;
    fastest = timing;
  }
  // Both sides' threads are awake between calls.
  const auto timing = with_team([&] { return measure([&] { problem.run(); }); });
  print_cell({{"bench", "linear"},
              {"backend", "cpu"},
              {"case",
               {{"outputs", shape.outputs},
                {"inputs", shape.inputs},
                {"rows", rows},
                {"dtype", dtype_name(dtype)},
                {"products", products_name(products)}}},
              {"threads", thread_limit()},
              {"target", best_ops_target().name},
              {"onednn_us", all},
              {"baseline_min_us", fastest.min_us}},
             timing, {{"gflops", problem.flop() / timing.median_us * 1e-3}}, baseline, fastest.median_us,
             origin);
}

}  // namespace
}  // namespace kdtree

int main(int argc, char** argv) {
  const char* text = std::getenv("OMP_NUM_THREADS");
  const int64_t threads = text == nullptr ? 0 : std::strtoll(text, nullptr, 10);
  if (argc != 3 || threads < 1) {
    std::fprintf(stderr, "usage: OMP_NUM_THREADS=THREADS bench_linear DATE COMMIT (run bench/run)\n");
    return 2;
  }
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(threads));
  if (kdtree::thread_limit() != threads) {
    std::fprintf(stderr, "bench_linear: OMP_NUM_THREADS is %lld, this machine gives us %lld\n",
                 static_cast<long long>(threads), static_cast<long long>(kdtree::thread_limit()));
    return 2;
  }
  // Those of a small model, then of a large one; the last is Kimi's projection of queries and KV.
  const kdtree::Shape shapes[] = {{96, 320},  {320, 256},   {576, 320},   {640, 320},
                                  {320, 640}, {2048, 2048}, {7168, 2048}, {2112, 7168}};
  using kdtree::DType;
  using kdtree::Products;
  constexpr std::pair<DType, Products> kinds[] = {
      {DType::f32, Products::f32}, {DType::bf16, Products::f32}, {DType::bf16, Products::bf16}};
  for (const kdtree::Shape& shape : shapes) {
    for (const auto& [dtype, products] : kinds) {
      // Emulated ones are for tests.
      if (products == Products::bf16 && !kdtree::best_ops_target().multiplies_bf16) continue;
      for (const int64_t rows : {1, 8, 16, 64})
        kdtree::bench(shape, rows, dtype, products, {argv[1], argv[2]});
    }
  }
  return 0;
}
