// Calling the C ABI from tests.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kdtree/kdtree.h"

namespace kdtree::testing {

inline std::string last_error() {
  std::string message(kdtree_last_error(nullptr, 0), '\0');
  kdtree_last_error(message.data(), message.size() + 1);
  return message;
}

// A 64-byte aligned workspace of the size that `query` answers.
class Workspace {
 public:
  template <class Params>
  Workspace(int32_t (*query)(const Params*, size_t*), const Params& params) {
    EXPECT_EQ(query(&params, &bytes_), KDTREE_OK) << last_error();
    memory_.resize(bytes_ + 64, 0xa5);
  }
  void* data() {
    const auto base = reinterpret_cast<uintptr_t>(memory_.data());
    return reinterpret_cast<void*>((base + 63) / 64 * 64);
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
  std::vector<unsigned char> memory_;
};

}  // namespace kdtree::testing
