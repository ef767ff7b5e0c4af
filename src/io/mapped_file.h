// A regular file mapped for reading.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "core/status.h"

namespace kdtree {

// Unmaps when destroyed. Another process that truncates the file meanwhile makes reads past its new end
// fault: files are replaced (atomic_file.h), not rewritten in place.
class MappedFile {
 public:
  // Errors: KDTREE_IO_ERROR with the operating system's reason, or that it is no regular file.
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;  // empty for an empty file, which cannot be mapped
};

}  // namespace kdtree
