#include "model/ops.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/checked.h"
#include "core/cpu_features.h"
#include "core/parallel.h"

// Compiled once a SIMD target and chosen at run time (Highway).
#include "core/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ops.cc"
// The first one includes this file again for each target.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
// clang-format on

#include "core/simd-inl.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace kdtree {
namespace HWY_NAMESPACE {
namespace {

// Elements of a weight as a vector of floats.
HWY_INLINE Vector load(const float* from) {
  return hn::LoadU(Floats(), from);
}
HWY_INLINE Vector load(const uint16_t* from) {
  return load_bf16(from);
}
#if HWY_TARGET == HWY_SSE4  // whose conversion makes infinities and NaN finite
HWY_INLINE Vector load(const hwy::float16_t* from) {
  float lanes[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, from + i, sizeof bits);
    lanes[i] = f16_to_float(bits);
  }
  return hn::LoadU(Floats(), lanes);
}
#else
HWY_INLINE Vector load(const hwy::float16_t* from) {
  return hn::PromoteTo(Floats(), hn::LoadU(hn::Rebind<hwy::float16_t, Floats>(), from));
}
#endif
// `count` < kLanes floats, the other lanes 0.
HWY_INLINE Vector load_some(const float* from, int64_t count) {
  float padded[kLanes] = {};
  std::copy_n(from, count, padded);
  return hn::LoadU(Floats(), padded);
}

// A row's outputs of one panel, of which `count` are there.
HWY_INLINE void store_panel(const Vector* sums, float* to, int64_t count) {
  const Floats d;
  if (count < kPanel) {
    float whole[kPanel];
    store_panel(sums, whole, kPanel);
    std::copy_n(whole, count, to);
    return;
  }
  unroll<kPanel / kLanes>(
      [&](auto v) KDTREE_INLINE { hn::StoreU(sums[v], d, to + static_cast<int64_t>(v) * kLanes); });
}

// Inputs whose weights are fetched before their turn: the processor does not look as far ahead as memory is
// away.
constexpr int64_t kInputsAhead = 32;

// kRows rows of kPanels panels, whose words are T in memory. Each output has its own accumulator, so no
// result depends on the tile.
template <size_t kRows, size_t kPanels, class T, class Product>
HWY_INLINE void linear_tile(const LinearTask& task, int64_t row, int64_t panel) {
  constexpr size_t kEach = kPanel / kLanes;
  constexpr size_t kVectors = kPanels * kEach;
  const Floats d;
  const Panels& w = task.weight;
  const float* x = task.x + row * task.x_stride;
  const T* weight = static_cast<const T*>(w.data) + panel * w.panel_stride;
  Vector sums[kRows * kVectors];
  unroll<kRows * kVectors>([&](auto i) KDTREE_INLINE { sums[i] = hn::Zero(d); });
  for (int64_t k = 0; k < w.inputs; ++k) {
    unroll<kPanels>([&](auto p) KDTREE_INLINE {
      // As a number: behind the last inputs it is no address of the array.
      const auto ahead =
          static_cast<int64_t>(sizeof(T)) *
          (static_cast<int64_t>(p) * w.panel_stride + kInputsAhead / Product::kPerWord * w.input_stride);
      __builtin_prefetch(
          reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(weight) + static_cast<uintptr_t>(ahead)));
    });
    Vector loaded[kVectors];
    unroll<kVectors>([&](auto v) KDTREE_INLINE {
      loaded[v] = load(weight + static_cast<int64_t>(v / kEach) * w.panel_stride +
                       static_cast<int64_t>(v % kEach) * kLanes);
    });
    unroll<kRows>([&](auto r) KDTREE_INLINE {
      const Vector factor = hn::Set(d, x[static_cast<int64_t>(r) * task.x_stride + k]);
      unroll<kVectors>([&](auto v) KDTREE_INLINE {
        Vector& sum = sums[r * kVectors + v];
        sum = Product::multiply_add(factor, loaded[v], sum);
      });
    });
    weight += w.input_stride;
  }
  unroll<kRows>([&](auto r) KDTREE_INLINE {
    unroll<kPanels>([&](auto p) KDTREE_INLINE {
      const int64_t output = (panel + static_cast<int64_t>(p)) * kPanel;
      store_panel(&sums[r * kVectors + p * kEach],
                  task.y + (row + static_cast<int64_t>(r)) * task.y_stride + output,
                  std::min(kPanel, w.outputs - output));
    });
  });
}

// Rows times panels of which the registers hold accumulators, besides the weights and one row's factor: of
// 32, those of nine rows (a root and eight nodes) times three panels.
constexpr size_t kRegisterPanels = (kManyRegisters ? 27 : 12) * kLanes / kPanel;
constexpr size_t kMostRows = std::min<size_t>(9, kRegisterPanels);

// The outputs of kRows rows in panels [begin, end): kPanels at a time, the rest fewer.
template <size_t kRows, size_t kPanels, class T, class Product>
void linear_rows(const LinearTask& task, int64_t row, int64_t begin, int64_t end) {
  for (; begin + static_cast<int64_t>(kPanels) <= end; begin += kPanels)
    linear_tile<kRows, kPanels, T, Product>(task, row, begin);
  if constexpr (kPanels > 1) linear_rows<kRows, kPanels / 2, T, Product>(task, row, begin, end);
}

template <class T, class Product = F32Products>
void typed_part(const LinearTask& task, int64_t begin, int64_t end) {
  // As even as they come: a single row takes a third of the time of eight.
  const int64_t tiles = ceil_div(task.rows, static_cast<int64_t>(kMostRows));
  for (; begin < end; begin += kPanelGroup) {
    const int64_t group_end = std::min(begin + kPanelGroup, end);
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t row = task.rows * i / tiles;
      const int64_t rows = task.rows * (i + 1) / tiles - row;
      unroll<kMostRows>([&](auto before) KDTREE_INLINE {
        constexpr size_t kRows = before + 1;
        constexpr size_t kFit = kRegisterPanels / kRows;
        constexpr size_t kPanels = kFit < 3 ? kFit : kFit < 6 ? 3 : 6;  // divisors of kPanelGroup
        if (rows == kRows) linear_rows<kRows, kPanels, T, Product>(task, row, begin, group_end);
      });
    }
  }
}

template <class Bf16>
void linear_part(const LinearTask& task, int64_t begin, int64_t end) {
  if (task.weight.products == Products::bf16) return typed_part<float, Bf16>(task, begin, end);
  switch (task.weight.dtype) {
    case DType::bf16:
      return typed_part<uint16_t>(task, begin, end);
    case DType::f16:
      return typed_part<hwy::float16_t>(task, begin, end);
    default:
      return typed_part<float>(task, begin, end);
  }
}

void to_bf16(const float* x, int64_t n, uint16_t* out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    store_bf16(hn::LoadU(Floats(), x + i), out + i);
  if (i < n) {
    uint16_t some[kLanes];
    store_bf16(load_some(x + i, n - i), some);
    std::copy_n(some, n - i, out + i);
  }
}

// body(offset, load, store) over [0, n): a vector at a time, the last one partly filled.
template <class Body>
HWY_INLINE void for_each_vector(int64_t n, const Body& body) {
  const Floats d;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    body(
        i, [&](const float* from) KDTREE_INLINE { return hn::LoadU(d, from + i); },
        [&](Vector v, float* to) KDTREE_INLINE { hn::StoreU(v, d, to + i); });
  }
  if (i < n) {
    const auto count = static_cast<size_t>(n - i);
    body(
        i, [&](const float* from) KDTREE_INLINE { return load_some(from + i, n - i); },
        [&](Vector v, float* to) KDTREE_INLINE {
          float lanes[kLanes];
          hn::StoreU(v, d, lanes);
          std::copy_n(lanes, count, to + i);
        });
  }
}

HWY_INLINE float sum_of_lanes(Vector v) {
  const Vector four[4] = {v, v, v, v};
  return hn::GetLane(sums_of_lanes(four));
}

void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  const Floats d;
  Vector squares = hn::Zero(d);
  for_each_vector(n, [&](int64_t, const auto& load_from, const auto&) KDTREE_INLINE {
    const Vector v = load_from(x);
    squares = hn::MulAdd(v, v, squares);
  });
  const float mean = sum_of_lanes(squares) / static_cast<float>(n);
  const auto scale = hn::Set(d, 1.0f / std::sqrt(mean + eps));
  for_each_vector(n, [&](int64_t, const auto& load_from, const auto& store_to) KDTREE_INLINE {
    store_to(hn::Mul(load_from(weight), hn::Mul(load_from(x), scale)), out);
  });
}

void swiglu(const float* gate, const float* up, int64_t n, float* out) {
  const Floats d;
  const auto one = hn::Set(d, 1.0f);
  for_each_vector(n, [&](int64_t, const auto& load_from, const auto& store_to) KDTREE_INLINE {
    const Vector g = load_from(gate);
    // Exp is good up to 104; beyond 88 the quotient is 0 to all bits that matter.
    const Vector power = hn::Exp(d, hn::Min(hn::Neg(g), hn::Set(d, 88.0f)));
    const Vector silu = hn::Div(g, hn::Add(one, power));
    store_to(hn::Mul(silu, load_from(up)), out);
  });
}

void softmax(float* x, int64_t n) {
  const Floats d;
  Vector largest = hn::Set(d, x[0]);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    largest = hn::Max(largest, hn::LoadU(d, x + i));
  for (; i < n; ++i)
    largest = hn::Max(largest, hn::Set(d, x[i]));
  float lanes[kLanes];
  hn::StoreU(largest, d, lanes);
  const auto most = hn::Set(d, *std::max_element(lanes, lanes + kLanes));
  Vector sums = hn::Zero(d);
  for_each_vector(n, [&](int64_t at, const auto& load_from, const auto& store_to) KDTREE_INLINE {
    Vector v = hn::Exp(d, hn::Sub(load_from(x), most));
    if (at + kLanes > n) v = hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(n - at)), v);
    store_to(v, x);
    sums = hn::Add(sums, v);
  });
  const auto scale = hn::Set(d, 1.0f / sum_of_lanes(sums));
  for_each_vector(n, [&](int64_t, const auto& load_from, const auto& store_to)
                         KDTREE_INLINE { store_to(hn::Mul(load_from(x), scale), x); });
}

}  // namespace

OpsTarget ops_target(const char* name) {
  const bool supported = (hwy::SupportedTargets() & HWY_TARGET) != 0;
  return {name, supported, false, linear_part<EmulatedBf16Products>, to_bf16, rms_norm, swiglu, softmax};
}
#if HWY_TARGET == HWY_AVX3
OpsTarget bf16_ops_target(const char* name) {
  OpsTarget target = ops_target(name);
  target.supported = target.supported && has_bf16_products();
  target.multiplies_bf16 = true;
  target.linear_part = linear_part<Bf16Products>;
  return target;
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace kdtree
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace kdtree {
namespace {

// Products of one piece of work: some microseconds, of which handing it to a thread is a small part.
constexpr int64_t kProductsPerUnit = 1 << 15;

// Panels of a task that one thread computes at once.
int64_t panels_per_unit(const LinearTask& task) {
  const int64_t products = std::max<int64_t>(1, task.rows * task.weight.inputs * kPanel);
  const int64_t panels = kProductsPerUnit / products / kPanelGroup * kPanelGroup;
  return std::max(panels, task.rows > 4 ? kPanelGroup / 2 : kPanelGroup);
}

// [inputs / kEach, kPanel, kEach].
template <int64_t kEach, class T>
void pack_panel(const Matrix& matrix, int64_t panel, T* to) {
  const int64_t count = std::min(kPanel, matrix.rows - panel * kPanel);
  for (int64_t i = 0; i < count; ++i) {
    const T* from = static_cast<const T*>(matrix.row(panel * kPanel + i));
    for (int64_t k = 0; k < matrix.columns; ++k)
      to[(k / kEach * kPanel + i) * kEach + k % kEach] = from[k * matrix.column_stride];
  }
}

// Floats that hold a row's inputs as bf16.
int64_t words_of(int64_t inputs) {
  return ceil_div(inputs, int64_t{2});
}

bool same_rows(const LinearTask& a, const LinearTask& b) {
  return a.x == b.x && a.x_stride == b.x_stride && a.rows == b.rows && a.weight.inputs == b.weight.inputs &&
         a.weight.products == b.weight.products;
}

// Tasks as linear_part wants them: those with bf16 products counted in words, their rows rounded, once where
// tasks side by side share them. Valid until this thread's next call.
std::vector<LinearTask> rounded_tasks(std::span<const LinearTask> tasks, const OpsTarget& target) {
  thread_local std::vector<float> memory;
  struct Row {
    const float* from;
    int64_t inputs;
    float* to;
  };
  int64_t size = 0;
  for (const LinearTask& task : tasks)
    if (task.weight.products == Products::bf16) size += task.rows * words_of(task.weight.inputs);
  memory.resize(std::max(memory.size(), static_cast<size_t>(size)));
  std::vector<LinearTask> out(tasks.begin(), tasks.end());
  std::vector<Row> rows;
  float* next = memory.data();
  for (size_t i = 0; i < tasks.size(); ++i) {
    Panels& weight = out[i].weight;
    if (weight.products != Products::bf16) continue;
    const int64_t inputs = weight.inputs;
    weight.inputs = words_of(inputs);
    weight.input_stride /= 2;
    weight.panel_stride /= 2;
    const bool shared = i > 0 && same_rows(tasks[i], tasks[i - 1]);
    out[i].x = shared ? out[i - 1].x : next;
    out[i].x_stride = weight.inputs;
    if (shared) continue;
    for (int64_t r = 0; r < tasks[i].rows; ++r, next += weight.inputs)
      rows.push_back({tasks[i].x + r * tasks[i].x_stride, inputs, next});
  }
  const auto count = static_cast<int64_t>(rows.size());
  parallel_rows(count, count > 0 ? rows[0].inputs : 0, [&](int64_t r) {
    const Row& row = rows[static_cast<size_t>(r)];
    row.to[words_of(row.inputs) - 1] = 0.0f;  // of an odd number
    target.round_to_bf16(row.from, row.inputs, static_cast<uint16_t*>(static_cast<void*>(row.to)));
  });
  return out;
}

}  // namespace

Packed::Packed(const Matrix& matrix, Products products) {
  if (matrix.dtype != DType::bf16) products = Products::f32;
  const int64_t each = products == Products::bf16 ? 2 : 1;
  const int64_t count = ceil_div(matrix.rows, kPanel);
  const int64_t size = ceil_div(matrix.columns, each) * each * kPanel;
  const auto bytes = static_cast<size_t>(count * size * dtype_size(matrix.dtype));
  memory_ = hwy::AllocateAligned<std::byte>(bytes);
  if (memory_ == nullptr) throw std::bad_alloc();
  std::fill_n(memory_.get(), bytes, std::byte{0});
  panels_ = {memory_.get(), matrix.dtype, matrix.columns, matrix.rows, each * kPanel, size, products};
  parallel_rows(count, size, [&](int64_t panel) {
    if (matrix.dtype == DType::f32) {
      pack_panel<1>(matrix, panel, reinterpret_cast<float*>(memory_.get()) + panel * size);
    } else if (products == Products::f32) {
      pack_panel<1>(matrix, panel, reinterpret_cast<uint16_t*>(memory_.get()) + panel * size);
    } else {
      pack_panel<2>(matrix, panel, reinterpret_cast<uint16_t*>(memory_.get()) + panel * size);
    }
  });
}

std::span<const OpsTarget> ops_targets() {
  static const OpsTarget table[] = {
#if HWY_TARGETS & HWY_AVX3
    N_AVX3::bf16_ops_target("avx512-bf16"),
    N_AVX3::ops_target("avx512"),
#endif
#if HWY_TARGETS & HWY_AVX2
    N_AVX2::ops_target("avx2"),
#endif
#if HWY_TARGETS & HWY_SSE4
    N_SSE4::ops_target("sse4"),
#endif
#if HWY_TARGETS & HWY_NEON
    N_NEON::ops_target("neon"),
#endif
  };
  return table;
}

const OpsTarget& best_ops_target() {
  static const OpsTarget& best = *std::find_if(ops_targets().begin(), ops_targets().end() - 1,
                                               [](const OpsTarget& target) { return target.supported; });
  return best;
}

Products fastest_products() {
  return best_ops_target().multiplies_bf16 && fast_bf16_products() ? Products::bf16 : Products::f32;
}

void linear(std::span<const LinearTask> tasks, const OpsTarget& target) {
  const std::vector<LinearTask> rounded = rounded_tasks(tasks, target);
  int64_t units = 0;
  std::vector<int64_t> first_unit;
  first_unit.reserve(rounded.size());
  for (const LinearTask& task : rounded) {
    first_unit.push_back(units);
    units += ceil_div(ceil_div(task.weight.outputs, kPanel), panels_per_unit(task));
  }
  std::atomic<int64_t> next = 0;
  parallel_run(std::min(thread_limit(), units), [&](int64_t) {
    for (int64_t unit = next++; unit < units; unit = next++) {
      const auto after = std::upper_bound(first_unit.begin(), first_unit.end(), unit);
      const auto index = static_cast<size_t>(after - first_unit.begin()) - 1;
      const LinearTask& task = rounded[index];
      const int64_t panels = panels_per_unit(task);
      const int64_t begin = (unit - first_unit[index]) * panels;
      target.linear_part(task, begin, std::min(begin + panels, ceil_div(task.weight.outputs, kPanel)));
    }
  });
}

void to_floats(const void* from, DType dtype, int64_t count, float* out) {
  switch (dtype) {
    case DType::bf16: {
      const auto* bits = static_cast<const uint16_t*>(from);
      std::transform(bits, bits + count, out, bf16_to_float);
      return;
    }
    case DType::f16: {
      const auto* bits = static_cast<const uint16_t*>(from);
      std::transform(bits, bits + count, out, f16_to_float);
      return;
    }
    default:
      std::copy_n(static_cast<const float*>(from), count, out);
  }
}

}  // namespace kdtree
#endif
