// A bump allocator over a caller's workspace. The same code path, run with a null base, measures the
// bytes it needs, so the size query and the run cannot disagree.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/checked.h"
#include "core/status.h"

namespace kdtree {

class Scratch {
 public:
  static constexpr int64_t kAlignment = 64;

  // Measures only: take() returns spans over nothing.
  Scratch() = default;
  Scratch(void* base, size_t bytes) : base_(static_cast<std::byte*>(base)), bytes_(bytes) {}

  // Over memory that need not be aligned: kAlignment bytes more than needed make up for it.
  static Scratch inside(std::span<std::byte> memory) {
    void* base = memory.data();
    size_t bytes = memory.size();
    base = std::align(kAlignment, 1, base, bytes);
    return base != nullptr ? Scratch(base, bytes) : Scratch(nullptr, 0);
  }

  template <class T>
  std::span<T> take(int64_t count) {
    const auto size = checked_mul(count, static_cast<int64_t>(sizeof(T)));
    const auto padded = size ? checked_add(*size, kAlignment - 1) : size;
    const auto end = padded ? checked_add(used_, *padded / kAlignment * kAlignment) : padded;
    if (!end) {
      overflow_ = true;
      return {};
    }
    std::span<T> result;
    if (base_ != nullptr && *end <= static_cast<int64_t>(bytes_)) {
      result = {reinterpret_cast<T*>(base_ + used_), static_cast<size_t>(count)};
    }
    used_ = *end;
    return result;
  }

  int64_t used() const { return used_; }
  // Bytes left in the workspace, for who can do with less.
  int64_t room() const { return std::max<int64_t>(0, static_cast<int64_t>(bytes_) - used_); }

  // The answer of a size query: bytes a workspace must have.
  Result<size_t> measured() const {
    if (overflow_) return fail(KDTREE_INVALID_ARGUMENT, "the sizes need a workspace of 2^63 bytes or more");
    return static_cast<size_t>(used_);
  }

  // Call after the last take(): whether the workspace held everything.
  Status check() const {
    KDTREE_RETURN_IF_ERROR(measured());
    if (used_ > 0 && base_ == nullptr) {
      return fail(KDTREE_WORKSPACE_TOO_SMALL, "workspace is null, expected {} bytes", used_);
    }
    if (reinterpret_cast<uintptr_t>(base_) % kAlignment != 0) {
      return fail(KDTREE_INVALID_ARGUMENT, "workspace is not aligned to {} bytes", kAlignment);
    }
    if (used_ > static_cast<int64_t>(bytes_)) {
      return fail(KDTREE_WORKSPACE_TOO_SMALL, "workspace has {} bytes, expected at least {}", bytes_, used_);
    }
    return {};
  }

 private:
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
  int64_t used_ = 0;
  bool overflow_ = false;
};

}  // namespace kdtree
