// Files for the tests of src/io.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "core/status.h"
#include "tests/temporary_directory.h"

namespace kdtree {

// A file that make_golden.py wrote.
inline std::string golden(const std::string& name) {
  return std::string(KDTREE_SOURCE_DIR "/tests/io/data/") + name;
}

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_text(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// The low bytes of `value`, little-endian.
inline std::string little_endian(uint64_t value, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i)
    text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

template <class T>
void expect_error(const T& result, int32_t code, const std::string& message) {
  ASSERT_FALSE(result.has_value()) << "expected: " << message;
  EXPECT_STREQ(status_name(result.error().code), status_name(code)) << result.error().message;
  EXPECT_NE(result.error().message.find(message), std::string::npos)
      << "message:  " << result.error().message << "\nexpected: " << message;
}

}  // namespace kdtree
