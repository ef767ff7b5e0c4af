// An open file descriptor, closed when destroyed, and the text of a failed system call.
#pragma once

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include <unistd.h>

#include "core/status.h"

namespace kdtree {

class FileDescriptor {
 public:
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (number_ >= 0) ::close(number_);
  }

  int get() const { return number_; }
  // Closes now and answers whether that worked: a failed close may be a failed write.
  bool close() { return ::close(std::exchange(number_, -1)) == 0; }

 private:
  int number_;
};

// The error of the system call that just failed: "path: cannot open: No such file or directory".
inline tl::unexpected<Error> os_error(const std::string& path, const char* action) {
  const int code = errno;
  return fail(KDTREE_IO_ERROR, "{}: cannot {}: {}", path, action, std::generic_category().message(code));
}

}  // namespace kdtree
