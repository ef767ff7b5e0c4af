// Integer arithmetic that cannot wrap: sizes and offsets are products of caller-given numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

namespace kdtree {

inline std::optional<int64_t> checked_mul(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

inline std::optional<int64_t> checked_add(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

// A sum and a product that stay at the largest int64 when they do not fit; for numbers >= 0.
inline int64_t saturating_add(int64_t a, int64_t b) {
  return checked_add(a, b).value_or(std::numeric_limits<int64_t>::max());
}
inline int64_t saturating_mul(int64_t a, int64_t b) {
  return checked_mul(a, b).value_or(std::numeric_limits<int64_t>::max());
}

// Bytes of the last element of a strided 2-D array plus one: (rows - 1) * stride + columns elements of
// `element` bytes. nullopt when it does not fit in int64.
inline std::optional<int64_t> checked_extent_bytes(int64_t rows, int64_t stride, int64_t columns,
                                                   int64_t element) {
  if (rows <= 0) return 0;
  const auto last_row = checked_mul(rows - 1, stride);
  if (!last_row) return std::nullopt;
  const auto elements = checked_add(*last_row, columns);
  if (!elements) return std::nullopt;
  return checked_mul(*elements, element);
}

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace kdtree
