// The arithmetic of a transformer on fp32 rows, with SIMD and threads. Every function is row-invariant: a
// row's bits are the same whatever rows are computed with it, on however many threads.
#pragma once

#include <cstdint>
#include <span>

#include <hwy/aligned_allocator.h>

#include "core/dtype.h"

namespace kdtree {

// A matrix somebody else stores, row-major. Rows of a weight are its outputs, as checkpoints store them.
struct Matrix {
  const void* data = nullptr;
  DType dtype = DType::f32;  // f32, bf16 or f16; aligned for it
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t row_stride = 0;  // elements
  int64_t column_stride = 1;

  const void* row(int64_t index) const {
    return static_cast<const std::byte*>(data) + index * row_stride * dtype_size(dtype);
  }
  // Rows [begin, begin + count).
  Matrix slice(int64_t begin, int64_t count) const {
    return {row(begin), dtype, count, columns, row_stride, column_stride};
  }
  Matrix turned() const { return {data, dtype, columns, rows, column_stride, row_stride}; }
};

// What linear() multiplies: floats, to which weights are widened, or bf16, to which inputs are rounded. Both
// are summed in fp32. Only weights in bf16 have bf16 products.
enum class Products { f32, bf16 };
inline const char* products_name(Products products) {
  return products == Products::bf16 ? "bf16" : "f32";
}

// Outputs of a weight that lie side by side.
inline constexpr int64_t kPanel = 16;
// Panels that stay in the second-level cache while all rows pass: enough accumulators for a single row.
inline constexpr int64_t kPanelGroup = 6;

// A weight as linear() wants it: panels of kPanel outputs, each [inputs, kPanel], or, for bf16 products,
// [inputs / 2, kPanel, 2] with zeros behind an odd number of inputs. The last one is readable in whole as
// well, whatever it holds beyond the outputs.
struct Panels {
  const void* data = nullptr;
  DType dtype = DType::f32;  // f32, bf16 or f16; aligned for it
  int64_t inputs = 0;
  int64_t outputs = 0;
  int64_t input_stride = 0;  // elements; for bf16 products of two inputs
  int64_t panel_stride = 0;  // elements
  Products products = Products::f32;

  // Of a row-major [inputs, outputs], where it lies, for fp32 products. Its rows are readable up to whole
  // panels.
  static Panels of(const Matrix& m) { return {m.data, m.dtype, m.rows, m.columns, m.row_stride, kPanel}; }
};

// A copy of a matrix whose rows are outputs, as panels: what linear() reads then lies side by side.
class Packed {
 public:
  Packed() = default;
  // bf16 products where the matrix is in bf16.
  explicit Packed(const Matrix& matrix, Products products = Products::f32);

  const Panels& panels() const { return panels_; }
  bool empty() const { return panels_.data == nullptr; }

 private:
  hwy::AlignedFreeUniquePtr<std::byte[]> memory_;
  Panels panels_;
};

// y[r][n] = sum over k of x[r][k] * weight(k, n). Strides count elements.
struct LinearTask {
  const float* x;  // [rows, weight.inputs]
  int64_t x_stride;
  int64_t rows;
  Panels weight;
  float* y;  // [rows, weight.outputs], apart from x
  int64_t y_stride;
};

// One SIMD target's code.
struct OpsTarget {
  const char* name;      // "avx2"
  bool supported;        // by this machine
  bool multiplies_bf16;  // in one instruction; others emulate it slowly
  // Panels [begin, end) of a task; with bf16 products, `x` is rounded and in pairs already.
  void (*linear_part)(const LinearTask&, int64_t begin, int64_t end);
  // To nearest even. [n] each.
  void (*round_to_bf16)(const float* x, int64_t n, uint16_t* out);
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

// Of bf16 weights, on this machine.
Products fastest_products();

// Runs the tasks on all threads: none may read what another writes. An output's products are summed in fp32
// in the order of the inputs.
void linear(std::span<const LinearTask> tasks, const OpsTarget& target = best_ops_target());

// `count` elements of `from`, of a type as Matrix has, to floats.
void to_floats(const void* from, DType dtype, int64_t count, float* out);

}  // namespace kdtree
