#include "io/atomic_file.h"

#include <array>
#include <csignal>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/io/files.h"

namespace kdtree {
namespace {

Status write(const std::string& path, std::string_view first, std::string_view second = "") {
  const std::array parts{as_bytes(first), as_bytes(second)};
  return write_file_atomically(path, parts);
}

// Makes writes past `bytes` fail as a full disk does, for root too.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit old_{};
  void (*handler_)(int);
};

TEST(AtomicFile, WritesTheParts) {
  const TemporaryDirectory directory;
  const auto status = write(directory.file("a"), "one ", "two");
  ASSERT_TRUE(status.has_value()) << status.error().message;
  EXPECT_EQ(read_text(directory.file("a")), "one two");
  EXPECT_EQ(directory.entries(), 1u);
}

TEST(AtomicFile, PermissionsFollowTheUmask) {
  const TemporaryDirectory directory;
  const mode_t old = umask(027);
  const auto status = write(directory.file("a"), "text");
  umask(old);
  ASSERT_TRUE(status.has_value());
  struct stat info {};
  ASSERT_EQ(stat(directory.file("a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0640u);
}

TEST(AtomicFile, ReplacesTheOldFile) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(write(directory.file("a"), "old, and longer").has_value());
  ASSERT_TRUE(write(directory.file("a"), "new").has_value());
  EXPECT_EQ(read_text(directory.file("a")), "new");
  EXPECT_EQ(directory.entries(), 1u);
}

TEST(AtomicFile, AFailedWriteKeepsTheOldFileAndLeavesNoOther) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("a");
  ASSERT_TRUE(write(path, "old").has_value());
  {
    const FileSizeLimit limit(4);
    expect_error(write(path, "four", "more"), KDTREE_IO_ERROR, path + ": cannot write: File too large");
  }
  EXPECT_EQ(read_text(path), "old");
  EXPECT_EQ(directory.entries(), 1u);
}

TEST(AtomicFile, AFailedRenameLeavesNoTemporaryFile) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("folder");
  std::filesystem::create_directory(path);
  expect_error(write(path, "text"), KDTREE_IO_ERROR, path + ": cannot replace: Is a directory");
  EXPECT_EQ(directory.entries(), 1u);
}

TEST(AtomicFile, WritesWhereALinkPoints) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(write(directory.file("a"), "old"));
  ASSERT_EQ(symlink("a", directory.file("link").c_str()), 0);
  EXPECT_TRUE(check_writable(directory.file("link")));
  ASSERT_TRUE(write(directory.file("link"), "new"));
  EXPECT_EQ(read_text(directory.file("a")), "new");
  EXPECT_EQ(directory.entries(), 2u);
}

TEST(AtomicFile, MissingFolder) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("no/a");
  expect_error(write(path, "text"), KDTREE_IO_ERROR,
               path + ": cannot create a temporary file beside it: No such file or directory");
}

TEST(AtomicFile, WhetherItCanBeWrittenIsKnownBefore) {
  const TemporaryDirectory directory;
  EXPECT_TRUE(check_writable(directory.file("a")));
  EXPECT_EQ(directory.entries(), 0u);
  ASSERT_TRUE(write(directory.file("a"), "old"));
  EXPECT_TRUE(check_writable(directory.file("a")));
  EXPECT_EQ(read_text(directory.file("a")), "old");
  const auto absent = check_writable(directory.file("no/a"));
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, KDTREE_IO_ERROR);
  EXPECT_NE(absent.error().message.find("No such file"), std::string::npos) << absent.error().message;
  for (const std::string& path : {directory.path(), std::string("/dev/null")}) {
    const auto other = check_writable(path);
    ASSERT_FALSE(other) << path;
    EXPECT_EQ(other.error().message, path + ": is no regular file");
  }
}

}  // namespace
}  // namespace kdtree
