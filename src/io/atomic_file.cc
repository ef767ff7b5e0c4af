#include "io/atomic_file.h"

#include <atomic>
#include <filesystem>

#include <fcntl.h>
#include <sys/stat.h>

#include "io/file_descriptor.h"

namespace kdtree {
namespace {

// What a symbolic link stands for: replacing the link would leave its target as it was.
std::string resolved(const std::string& path) {
  std::error_code error;
  const auto target = std::filesystem::canonical(path, error);
  return error ? path : target.string();
}

// Creates a file of a name nobody has, with the permissions that any new file gets (mkstemp's are 0600).
int create_temporary(const std::string& path, std::string& temporary) {
  static std::atomic<unsigned> counter{0};
  int file = -1;
  do {
    temporary = fmt::format("{}.{}.{}.tmp", path, ::getpid(), counter++);
    file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (file < 0 && errno == EEXIST);
  return file;
}

bool write_all(int file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

Status write_file_atomically(const std::string& path, std::span<const std::span<const std::byte>> parts) {
  const std::string target = resolved(path);
  std::string temporary;
  FileDescriptor file(create_temporary(target, temporary));
  if (file.get() < 0) return os_error(path, "create a temporary file beside it");
  const auto give_up = [&](const char* action) {
    auto error = os_error(path, action);
    ::unlink(temporary.c_str());
    return error;
  };
  for (const auto part : parts) {
    if (!write_all(file.get(), part)) return give_up("write");
  }
  if (::fsync(file.get()) != 0) return give_up("flush");
  if (!file.close()) return give_up("close");
  if (::rename(temporary.c_str(), target.c_str()) != 0) return give_up("replace");
  return {};
}

Status check_writable(const std::string& path) {
  struct stat existing {};
  if (::stat(path.c_str(), &existing) == 0 && !S_ISREG(existing.st_mode)) {
    return fail(KDTREE_IO_ERROR, "{}: is no regular file", path);
  }
  std::string temporary;
  const FileDescriptor file(create_temporary(resolved(path), temporary));
  if (file.get() < 0) return os_error(path, "create a temporary file beside it");
  ::unlink(temporary.c_str());
  return {};
}

}  // namespace kdtree
