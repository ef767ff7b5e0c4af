#include "core/dtype.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace kdtree {
namespace {

// Rounds |value| < 2^(max exponent + 1) to a format of `mantissa` explicit bits whose smallest normal
// exponent is `min_exponent`, ties to even. Exact in double for every format here.
double round_to_format(double value, int mantissa, int min_exponent) {
  if (value == 0.0) return value;
  const int exponent = std::max(std::ilogb(value), min_exponent);
  const double unit = std::ldexp(1.0, exponent - mantissa);
  return std::nearbyint(value / unit) * unit;
}

// Encodes an already representable magnitude of a binary format with the given bias.
uint32_t encode(double magnitude, int mantissa, int bias) {
  if (magnitude == 0.0) return 0;
  const int exponent = std::ilogb(magnitude);
  if (exponent < 1 - bias) {  // subnormal
    return static_cast<uint32_t>(std::ldexp(magnitude, bias - 1 + mantissa));
  }
  const double fraction = std::ldexp(magnitude, -exponent) - 1.0;
  return (static_cast<uint32_t>(exponent + bias) << mantissa) |
         static_cast<uint32_t>(std::ldexp(fraction, mantissa));
}

double decode(uint32_t magnitude, int mantissa, int bias) {
  const uint32_t fraction = magnitude & ((1u << mantissa) - 1u);
  const int exponent = static_cast<int>(magnitude >> mantissa);
  if (exponent == 0) return std::ldexp(static_cast<double>(fraction), 1 - bias - mantissa);
  return std::ldexp(static_cast<double>(fraction | (1u << mantissa)), exponent - bias - mantissa);
}

std::array<float, 256> make_e4m3_table() {
  std::array<float, 256> table{};
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const uint32_t magnitude = bits & 0x7fu;
    const float value = magnitude == 0x7fu ? std::numeric_limits<float>::quiet_NaN()
                                           : static_cast<float>(decode(magnitude, 3, 7));
    table[bits] = (bits & 0x80u) != 0 ? -value : value;
  }
  return table;
}

// double -> bf16, f16: one rounding, infinities kept, overflow to infinity.
uint16_t encode16(double value, int mantissa, int bias, int max_exponent) {
  const uint16_t sign = std::signbit(value) ? 0x8000u : 0u;
  const uint32_t infinity = static_cast<uint32_t>(max_exponent + bias + 1) << mantissa;
  if (std::isnan(value)) return static_cast<uint16_t>(sign | infinity | (1u << (mantissa - 1)));
  double magnitude = std::fabs(value);
  if (!std::isinf(magnitude)) magnitude = round_to_format(magnitude, mantissa, 1 - bias);
  if (std::isinf(magnitude) || std::ilogb(magnitude) > max_exponent) {
    if (magnitude != 0.0) return static_cast<uint16_t>(sign | infinity);
  }
  return static_cast<uint16_t>(sign | encode(magnitude, mantissa, bias));
}

uint8_t encode_e4m3(double value) {
  const uint32_t sign = std::signbit(value) ? 0x80u : 0u;
  if (std::isnan(value)) return static_cast<uint8_t>(sign | 0x7fu);
  const double magnitude = std::min(round_to_format(std::min(std::fabs(value), 1024.0), 3, -6), 448.0);
  return static_cast<uint8_t>(sign | encode(magnitude, 3, 7));
}

}  // namespace

int64_t dtype_size(DType type) {
  switch (type) {
    case DType::e4m3:
    case DType::u8:
      return 1;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f64:
    case DType::i64:
    case DType::u64:
      return 8;
  }
  return 0;
}

const char* dtype_name(DType type) {
  switch (type) {
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::f64:
      return "f64";
    case DType::e4m3:
      return "e4m3";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::u8:
      return "u8";
    case DType::u64:
      return "u64";
  }
  return "invalid";
}

uint16_t float_to_bf16(float value) {
  return encode16(value, 7, 127, 127);
}
uint16_t float_to_f16(float value) {
  return encode16(value, 10, 15, 15);
}
uint8_t float_to_e4m3(float value) {
  return encode_e4m3(value);
}

float f16_to_float(uint16_t bits) {
  const uint32_t magnitude = bits & 0x7fffu;
  float value = 0.0f;
  if (magnitude > 0x7c00u) {
    value = std::numeric_limits<float>::quiet_NaN();
  } else if (magnitude == 0x7c00u) {
    value = std::numeric_limits<float>::infinity();
  } else {
    value = static_cast<float>(decode(magnitude, 10, 15));
  }
  return (bits & 0x8000u) != 0 ? -value : value;
}

float e4m3_to_float(uint8_t bits) {
  static const std::array<float, 256> table = make_e4m3_table();
  return table[bits];
}

double load_element(const void* base, DType type, int64_t index) {
  switch (type) {
    case DType::f32:
      return static_cast<const float*>(base)[index];
    case DType::f16:
      return f16_to_float(static_cast<const uint16_t*>(base)[index]);
    case DType::bf16:
      return bf16_to_float(static_cast<const uint16_t*>(base)[index]);
    case DType::f64:
      return static_cast<const double*>(base)[index];
    case DType::e4m3:
      return e4m3_to_float(static_cast<const uint8_t*>(base)[index]);
    default:
      break;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

void store_element(void* base, DType type, int64_t index, double value) {
  switch (type) {
    case DType::f32:
      static_cast<float*>(base)[index] = static_cast<float>(value);
      break;
    case DType::f16:
      static_cast<uint16_t*>(base)[index] = encode16(value, 10, 15, 15);
      break;
    case DType::bf16:
      static_cast<uint16_t*>(base)[index] = encode16(value, 7, 127, 127);
      break;
    case DType::f64:
      static_cast<double*>(base)[index] = value;
      break;
    case DType::e4m3:
      static_cast<uint8_t*>(base)[index] = encode_e4m3(value);
      break;
    default:
      break;
  }
}

}  // namespace kdtree
