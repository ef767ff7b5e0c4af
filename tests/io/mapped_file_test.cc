#include "io/mapped_file.h"

#include <sys/stat.h>

#include "tests/io/files.h"

namespace kdtree {
namespace {

TEST(MappedFile, HoldsTheBytes) {
  const TemporaryDirectory directory;
  write_text(directory.file("a"), "hello");
  auto opened = MappedFile::open(directory.file("a"));
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  const MappedFile moved = std::move(*opened);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(moved.bytes().data()), moved.bytes().size()), "hello");
  EXPECT_TRUE(opened->bytes().empty());
}

TEST(MappedFile, MoveAssignmentSwaps) {
  const TemporaryDirectory directory;
  write_text(directory.file("a"), "a");
  write_text(directory.file("bc"), "bc");
  auto a = MappedFile::open(directory.file("a"));
  auto bc = MappedFile::open(directory.file("bc"));
  *a = std::move(*bc);
  EXPECT_EQ(a->bytes().size(), 2u);
}

TEST(MappedFile, EmptyFile) {
  const TemporaryDirectory directory;
  write_text(directory.file("empty"), "");
  const auto file = MappedFile::open(directory.file("empty"));
  ASSERT_TRUE(file.has_value()) << file.error().message;
  EXPECT_TRUE(file->bytes().empty());
}

TEST(MappedFile, ErrorsNamePathAndReason) {
  const TemporaryDirectory directory;
  const std::string missing = directory.file("missing");
  expect_error(MappedFile::open(missing), KDTREE_IO_ERROR,
               missing + ": cannot open: No such file or directory");
  const std::string folder = directory.file("");
  expect_error(MappedFile::open(folder), KDTREE_IO_ERROR,
               folder + ": is a directory, expected a regular file");
  const std::string fifo = directory.file("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  expect_error(MappedFile::open(fifo), KDTREE_IO_ERROR,
               fifo + ": is a special file, expected a regular file");
}

}  // namespace
}  // namespace kdtree
