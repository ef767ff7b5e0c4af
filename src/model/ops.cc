#include "model/ops.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/checked.h"
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

// Weight rows that stay in the first-level cache while all rows of x pass.
constexpr int64_t kColumnGroup = 12;

// Elements of a weight as a vector of floats; `count` < kLanes of them, the other lanes 0.
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
template <class T>
HWY_INLINE Vector load_some(const T* from, int64_t count) {
  T padded[kLanes] = {};
  std::memcpy(padded, from, static_cast<size_t>(count) * sizeof(T));
  return load(padded);
}

// to[c * kRows + r] = dot(x row r, weight row c) over n columns.
template <size_t kRows, size_t kColumns, class T>
HWY_INLINE void dot_products(const float* const* x, const T* const* weight, int64_t n, float* to) {
  static_assert(kRows * kColumns % 4 == 0, "sums_of_lanes takes four");
  const Floats d;
  Vector sums[kRows * kColumns];
  unroll<kRows * kColumns>([&](auto i) KDTREE_INLINE { sums[i] = hn::Zero(d); });
  const auto step = [&](const auto& load_x, const auto& load_weight) KDTREE_INLINE {
    Vector w[kColumns];
    unroll<kColumns>([&](auto c) KDTREE_INLINE { w[c] = load_weight(weight[c]); });
    unroll<kRows>([&](auto r) KDTREE_INLINE {
      const Vector v = load_x(x[r]);
      unroll<kColumns>([&](auto c) KDTREE_INLINE {
        Vector& sum = sums[c * kRows + r];
        sum = hn::MulAdd(v, w[c], sum);
      });
    });
  };
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    step([&](const float* row) KDTREE_INLINE { return hn::LoadU(d, row + k); },
         [&](const T* row) KDTREE_INLINE { return load(row + k); });
  }
  if (k < n) {
    step([&](const float* row) KDTREE_INLINE { return load_some(row + k, n - k); },
         [&](const T* row) KDTREE_INLINE { return load_some(row + k, n - k); });
  }
  const hn::FixedTag<float, 4> quad;
  unroll<kRows * kColumns / 4>(
      [&](auto i) KDTREE_INLINE { hn::StoreU(sums_of_lanes(&sums[4 * i]), quad, to + 4 * i); });
}

// Outputs [column, column + columns) of kRows rows, of which `rows` are there, over weight columns
// [begin, end): stored when begin is 0, else added.
template <size_t kRows, size_t kColumns, class T>
void linear_tile(const LinearTask& task, int64_t row, int64_t rows, int64_t column, int64_t columns,
                 int64_t begin, int64_t end) {
  const float* x[kRows];
  for (size_t r = 0; r < kRows; ++r)
    x[r] = task.x + (row + std::min<int64_t>(static_cast<int64_t>(r), rows - 1)) * task.x_stride + begin;
  for (int64_t c = 0; c < columns; c += kColumns) {
    const int64_t used = std::min<int64_t>(kColumns, columns - c);
    const T* weight[kColumns];
    for (size_t i = 0; i < kColumns; ++i) {
      const int64_t at = column + c + std::min<int64_t>(static_cast<int64_t>(i), used - 1);
      weight[i] = static_cast<const T*>(task.weight.row(at)) + begin;
    }
    float products[kRows * kColumns];
    dot_products<kRows, kColumns>(x, weight, end - begin, products);
    for (int64_t r = 0; r < rows; ++r) {
      float* y = task.y + (row + r) * task.y_stride + column + c;
      for (int64_t i = 0; i < used; ++i) {
        const float sum = products[i * static_cast<int64_t>(kRows) + r];
        y[i] = begin == 0 ? sum : y[i] + sum;
      }
    }
  }
}

// Register tiles: accumulators, one vector a weight row and one of x must fit the registers.
template <class T>
void linear_columns(const LinearTask& task, int64_t column_begin, int64_t column_end) {
  constexpr size_t kFour = kManyRegisters ? 6 : 3;
  constexpr size_t kTwo = 6;
  constexpr size_t kOne = kManyRegisters ? 12 : 8;
  const int64_t k = task.weight.columns;
  for (int64_t begin = 0; begin < k; begin += kLinearBlock) {
    const int64_t end = std::min(begin + kLinearBlock, k);
    for (int64_t column = column_begin; column < column_end; column += kColumnGroup) {
      const int64_t columns = std::min(kColumnGroup, column_end - column);
      for (int64_t row = 0; row < task.rows; row += 4) {
        const int64_t rows = std::min<int64_t>(4, task.rows - row);
        if (rows > 2) {
          linear_tile<4, kFour, T>(task, row, rows, column, columns, begin, end);
        } else if (rows == 2) {
          linear_tile<2, kTwo, T>(task, row, rows, column, columns, begin, end);
        } else {
          linear_tile<1, kOne, T>(task, row, rows, column, columns, begin, end);
        }
      }
    }
  }
}

// Outputs [column, column + kVectors vectors) of kRows rows, of which `rows` are there: the inputs one after
// the other. The last `missing` lanes are not there.
template <size_t kRows, size_t kVectors, class T>
HWY_INLINE void turned_tile(const LinearTask& task, int64_t row, int64_t rows, int64_t column,
                            int64_t missing) {
  const Floats d;
  const float* x[kRows];
  for (size_t r = 0; r < kRows; ++r)
    x[r] = task.x + (row + std::min<int64_t>(static_cast<int64_t>(r), rows - 1)) * task.x_stride;
  Vector sums[kRows * kVectors];
  unroll<kRows * kVectors>([&](auto i) KDTREE_INLINE { sums[i] = hn::Zero(d); });
  for (int64_t k = 0; k < task.weight.rows; ++k) {
    const T* from = static_cast<const T*>(task.weight.row(k)) + column;
    Vector w[kVectors];
    unroll<kVectors>([&](auto v) KDTREE_INLINE {
      const int64_t at = static_cast<int64_t>(v) * kLanes;
      w[v] = v + 1 < kVectors || missing == 0 ? load(from + at) : load_some(from + at, kLanes - missing);
    });
    unroll<kRows>([&](auto r) KDTREE_INLINE {
      const Vector factor = hn::Set(d, x[r][k]);
      unroll<kVectors>([&](auto v) KDTREE_INLINE {
        Vector& sum = sums[r * kVectors + v];
        sum = hn::MulAdd(factor, w[v], sum);
      });
    });
  }
  float out[kRows * kVectors * kLanes];
  unroll<kRows * kVectors>(
      [&](auto i) KDTREE_INLINE { hn::StoreU(sums[i], d, out + static_cast<int64_t>(i) * kLanes); });
  constexpr int64_t kWidth = kVectors * kLanes;
  for (int64_t r = 0; r < rows; ++r)
    std::copy_n(out + r * kWidth, kWidth - missing, task.y + (row + r) * task.y_stride + column);
}

template <size_t kVectors, class T>
void turned_columns(const LinearTask& task, int64_t column, int64_t missing) {
  for (int64_t row = 0; row < task.rows; row += 4) {
    const int64_t rows = std::min<int64_t>(4, task.rows - row);
    if (rows > 1) {
      turned_tile<4, kVectors, T>(task, row, rows, column, missing);
    } else {
      turned_tile<1, kVectors, T>(task, row, rows, column, missing);
    }
  }
}

template <class T>
void turned_part(const LinearTask& task, int64_t column_begin, int64_t column_end) {
  // Accumulators of four rows, and a vector of weights for each.
  constexpr int64_t kMost = kManyRegisters ? 6 : 3;
  int64_t column = column_begin;
  for (; column + kMost * kLanes <= column_end; column += kMost * kLanes)
    turned_columns<kMost, T>(task, column, 0);
  for (; column < column_end; column += kLanes)
    turned_columns<1, T>(task, column, std::max<int64_t>(0, column + kLanes - column_end));
}

template <class T>
void typed_part(const LinearTask& task, int64_t column_begin, int64_t column_end) {
  if (task.turned) {
    turned_part<T>(task, column_begin, column_end);
  } else {
    linear_columns<T>(task, column_begin, column_end);
  }
}

void linear_part(const LinearTask& task, int64_t column_begin, int64_t column_end) {
  switch (task.weight.dtype) {
    case DType::bf16:
      return typed_part<uint16_t>(task, column_begin, column_end);
    case DType::f16:
      return typed_part<hwy::float16_t>(task, column_begin, column_end);
    default:
      return typed_part<float>(task, column_begin, column_end);
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
  const auto most = hn::Set(d, *std::max_element(x, x + n));
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
  return {name, (hwy::SupportedTargets() & HWY_TARGET) != 0, linear_part, rms_norm, swiglu, softmax};
}

}  // namespace HWY_NAMESPACE
}  // namespace kdtree
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace kdtree {
namespace {

// Products of one piece of work: handing it to another thread costs a few microseconds.
constexpr int64_t kProductsPerUnit = 1 << 17;

// Outputs of a task that one thread computes at once.
int64_t columns_per_unit(const LinearTask& task) {
  const int64_t round = task.turned ? 96 : 24;  // whole register tiles
  const int64_t per_column = std::max<int64_t>(1, task.rows * task.inputs());
  return ceil_div(ceil_div(kProductsPerUnit, per_column), round) * round;
}

}  // namespace

std::span<const OpsTarget> ops_targets() {
  static const OpsTarget table[] = {
#if HWY_TARGETS & HWY_AVX3
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

void linear(std::span<const LinearTask> tasks, const OpsTarget& target) {
  int64_t units = 0;
  std::vector<int64_t> first_unit;
  first_unit.reserve(tasks.size());
  for (const LinearTask& task : tasks) {
    first_unit.push_back(units);
    units += ceil_div(task.outputs(), columns_per_unit(task));
  }
  std::atomic<int64_t> next = 0;
  parallel_run(std::min(thread_limit(), units), [&](int64_t) {
    for (int64_t unit = next++; unit < units; unit = next++) {
      const auto after = std::upper_bound(first_unit.begin(), first_unit.end(), unit);
      const auto index = static_cast<size_t>(after - first_unit.begin()) - 1;
      const LinearTask& task = tasks[index];
      const int64_t columns = columns_per_unit(task);
      const int64_t begin = (unit - first_unit[index]) * columns;
      target.linear_part(task, begin, std::min(begin + columns, task.outputs()));
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
