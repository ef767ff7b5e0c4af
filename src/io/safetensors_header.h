// The JSON header of a safetensors file, as written: names and numbers that nobody has checked against the
// file yet.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/status.h"

namespace kdtree {

struct SafetensorsEntry {
  std::optional<std::string> dtype;
  std::optional<std::vector<int64_t>> shape;         // none negative
  std::optional<std::vector<int64_t>> data_offsets;  // none negative
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> tensors;  // every field of an entry is there
  std::map<std::string, std::string> metadata;
};

// Reads the header event by event: nothing is built for what does not belong there, however deep it nests.
// Errors: KDTREE_INVALID_FILE.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json);

struct SafetensorsDtype {
  const char* name;
  DType type;
};
// In the order in which the Python package writes tensors.
inline constexpr SafetensorsDtype kSafetensorsDtypes[] = {
    {"U64", DType::u64}, {"I64", DType::i64},   {"F64", DType::f64}, {"F32", DType::f32},
    {"I32", DType::i32}, {"BF16", DType::bf16}, {"F16", DType::f16}, {"F8_E4M3", DType::e4m3},
    {"U8", DType::u8},   {"BOOL", DType::u8},
};

}  // namespace kdtree
