// Memory the command takes: sizes are checked against the machine before anything is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/status.h"

namespace kdtree::cli {

// "1.5 GiB"
std::string format_bytes(int64_t bytes);

// `bytes` is nullopt when the sizes overflowed. Errors: KDTREE_OUT_OF_MEMORY, `what` in front.
Status check_memory(std::optional<int64_t> bytes, const std::string& what);

// Bytes aligned as workspaces need them.
class Workspace {
 public:
  static Result<Workspace> allocate(size_t bytes);
  void* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(void* pointer) const;
  };
  std::unique_ptr<void, Free> data_;
  size_t size_ = 0;
};

}  // namespace kdtree::cli
