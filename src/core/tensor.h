// A dense row-major array that owns its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/dtype.h"

namespace kdtree {

struct Tensor {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;

  Tensor() = default;
  // Zero-filled. The product of `shape` must fit the machine's memory.
  Tensor(DType type, std::vector<int64_t> dimensions) : dtype(type), shape(std::move(dimensions)) {
    bytes.resize(static_cast<size_t>(size() * dtype_size(dtype)));
  }

  // A copy of `values` as a 1-D tensor. T must be the element type of `type`.
  template <class T>
  static Tensor from(DType type, std::span<const T> values) {
    Tensor tensor(type, {static_cast<int64_t>(values.size())});
    auto out = tensor.as<T>();
    for (size_t i = 0; i < values.size(); ++i)
      out[i] = values[i];
    return tensor;
  }

  int64_t size() const {
    int64_t count = 1;
    for (const int64_t dimension : shape)
      count *= dimension;
    return shape.empty() && bytes.empty() ? 0 : count;
  }
  // False for a default-constructed tensor: "not there". A tensor of zero elements is there.
  bool present() const { return !shape.empty(); }

  // The elements as T, whose size must be that of dtype.
  template <class T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  template <class T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

  double value(int64_t index) const { return load_element(bytes.data(), dtype, index); }
  void set(int64_t index, double x) { store_element(bytes.data(), dtype, index, x); }

  // The data pointer for the C ABI: null when the tensor is not there, and only then (an empty vector's is).
  const void* pointer() const {
    if (!present()) return nullptr;
    return bytes.empty() ? static_cast<const void*>(this) : bytes.data();
  }
  void* pointer() { return const_cast<void*>(std::as_const(*this).pointer()); }
};

}  // namespace kdtree
