// Sizes that a file claims.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/checked.h"
#include "core/dtype.h"

namespace kdtree {

// Bytes of a dense array; nullopt when a product, taken from the left, does not fit in int64: Tensor::size()
// cannot overflow on a shape that passed. No dimension may be negative.
inline std::optional<int64_t> shape_bytes(const std::vector<int64_t>& shape, DType type) {
  std::optional<int64_t> bytes = dtype_size(type);
  for (const int64_t dimension : shape) {
    if (bytes) bytes = checked_mul(*bytes, dimension);
  }
  return bytes;
}

}  // namespace kdtree
