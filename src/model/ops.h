// The arithmetic of a transformer on fp32 rows, with SIMD and threads. Every function is row-invariant: a
// row's bits are the same whatever rows are computed with it, on however many threads.
#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.h"

namespace kdtree {

// A matrix somebody else stores, row-major. Rows of a weight are its outputs, as checkpoints store them.
struct Matrix {
  const void* data = nullptr;
  DType dtype = DType::f32;  // f32, bf16 or f16; aligned for it
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t row_stride = 0;  // elements

  const void* row(int64_t index) const {
    return static_cast<const std::byte*>(data) + index * row_stride * dtype_size(dtype);
  }
  // Rows [begin, begin + count).
  Matrix slice(int64_t begin, int64_t count) const { return {row(begin), dtype, count, columns, row_stride}; }
};

// y[r][n] = sum over k of x[r][k] * weight[n][k], or, turned, of x[r][k] * weight[k][n]. Strides count
// elements.
struct LinearTask {
  const float* x;  // [rows, inputs()]
  int64_t x_stride;
  int64_t rows;
  Matrix weight;
  float* y;  // [rows, outputs()], apart from x
  int64_t y_stride;
  bool turned = false;

  int64_t inputs() const { return turned ? weight.rows : weight.columns; }
  int64_t outputs() const { return turned ? weight.columns : weight.rows; }
};

// One SIMD target's code.
struct OpsTarget {
  const char* name;  // "avx2"
  bool supported;    // by this machine
  // Outputs [begin, end) of a task.
  void (*linear_part)(const LinearTask&, int64_t begin, int64_t end);
  // out[i] = weight[i] * x[i] / sqrt(mean(x^2) + eps); `out` may be `x`. [n] each.
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* out);
  // out[i] = gate[i] / (1 + exp(-gate[i])) * up[i]; `out` may be `gate` or `up`. [n] each.
  void (*swiglu)(const float* gate, const float* up, int64_t n, float* out);
  // x[i] = exp(x[i] - max) / sum. [n], n >= 1, finite.
  void (*softmax)(float* x, int64_t n);
};

// Best first, those compiled in.
std::span<const OpsTarget> ops_targets();
// The best that is supported; the last one is taken for granted.
const OpsTarget& best_ops_target();

// Runs the tasks on all threads: none may read what another writes. An output's products are summed in fp32
// in an order that follows from its column and the number of inputs alone.
void linear(std::span<const LinearTask> tasks, const OpsTarget& target = best_ops_target());

// Inputs whose products are summed apart (unless turned), so that the rows that share them stay in the
// first-level cache.
inline constexpr int64_t kLinearBlock = 1024;

// `count` elements of `from`, of a type as Matrix has, to floats.
void to_floats(const void* from, DType dtype, int64_t count, float* out);

}  // namespace kdtree
