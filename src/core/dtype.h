// Element types: sizes, names and conversions. Values of `DType` are the KDTREE_DTYPE_* of kdtree.h, and
// below 0 the types that only files hold.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "kdtree/kdtree.h"

namespace kdtree {

enum class DType : int32_t {
  f32 = KDTREE_DTYPE_F32,
  f16 = KDTREE_DTYPE_F16,
  bf16 = KDTREE_DTYPE_BF16,
  f64 = KDTREE_DTYPE_F64,
  e4m3 = KDTREE_DTYPE_E4M3,
  i32 = KDTREE_DTYPE_I32,
  i64 = KDTREE_DTYPE_I64,
  u8 = -1,
  u64 = -2,
};

// Bytes an element; 0 for a value that is no DType.
int64_t dtype_size(DType type);
// "bf16"; "invalid" for a value that is no DType.
const char* dtype_name(DType type);

inline float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}
// Round to nearest, ties to even; NaN stays NaN.
uint16_t float_to_bf16(float value);
float f16_to_float(uint16_t bits);
uint16_t float_to_f16(float value);
// OCP FP8 E4M3 (OCP 8-bit Floating Point Specification, revision 1.0): bias 7, no infinities,
// NaN = S.1111.111, largest finite 448.
float e4m3_to_float(uint8_t bits);
// Round to nearest even; magnitudes above 448 saturate, NaN stays NaN.
uint8_t float_to_e4m3(float value);

// Element `index` of an array of floating type `type`, exactly.
double load_element(const void* base, DType type, int64_t index);
// Rounds once from double to `type`.
void store_element(void* base, DType type, int64_t index, double value);

// A read-only array of int32 or int64 (the two index types of the C ABI); without one, element i is i.
class IndexArray {
 public:
  IndexArray() = default;
  IndexArray(const void* base, DType type) : base_(base), wide_(type == DType::i64) {}
  int64_t operator[](int64_t i) const {
    if (base_ == nullptr) return i;
    return wide_ ? static_cast<const int64_t*>(base_)[i] : static_cast<const int32_t*>(base_)[i];
  }
  explicit operator bool() const { return base_ != nullptr; }

 private:
  const void* base_ = nullptr;
  bool wide_ = false;
};

}  // namespace kdtree
