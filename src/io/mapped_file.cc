#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "io/file_descriptor.h"

namespace kdtree {

Result<MappedFile> MappedFile::open(const std::string& path) {
  // Without O_NONBLOCK, opening a FIFO would wait for a writer before the check below can refuse it.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return os_error(path, "open");
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return os_error(path, "stat");
  if (!S_ISREG(info.st_mode)) {
    return fail(KDTREE_IO_ERROR, "{}: is a {}, expected a regular file", path,
                S_ISDIR(info.st_mode) ? "directory" : "special file");
  }
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) return MappedFile({});
  void* base = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (base == MAP_FAILED) return os_error(path, "map");
  return MappedFile({static_cast<const std::byte*>(base), size});
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace kdtree
