#include "io/npy.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/io/files.h"

namespace kdtree {
namespace {

std::string file_of(const std::string& header, const std::string& data = "",
                    const std::string& version = {1, 0}) {
  return "\x93NUMPY" + version + little_endian(header.size(), version[0] == 1 ? 2 : 4) + header + data;
}

std::string header_of(const std::string& descr, const std::string& shape, const char* fortran = "False") {
  return fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': {}, }}\n", descr, fortran, shape);
}

void expect_invalid(const std::string& file, const std::string& message) {
  expect_error(parse_npy(as_bytes(file), "f"), KDTREE_INVALID_FILE, "f: " + message);
}

Tensor read(const std::string& name) {
  auto tensor = read_npy(golden(name));
  EXPECT_TRUE(tensor.has_value()) << tensor.error().message;
  return tensor ? std::move(*tensor) : Tensor();
}

template <class T>
std::vector<T> elements(const Tensor& tensor) {
  const auto values = tensor.as<T>();
  return {values.begin(), values.end()};
}

TEST(Npy, ReadsWhatNumpyWrites) {
  EXPECT_EQ(read("f2.npy").value(5), 1.5);
  EXPECT_EQ(read("f4.npy").value(5), 1.5);
  EXPECT_EQ(read("f8.npy").value(0), -1.0);
  EXPECT_EQ(read("f4.npy").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(elements<int32_t>(read("i4.npy")), (std::vector<int32_t>{-2, -1, 0, 1, 2, 3}));
  EXPECT_EQ(elements<int64_t>(read("i8.npy")), (std::vector<int64_t>{-2, -1, 0, 1, 2, 3}));
  EXPECT_EQ(elements<uint8_t>(read("u1.npy")), (std::vector<uint8_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(elements<uint64_t>(read("u8.npy")), (std::vector<uint64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(elements<uint8_t>(read("bool.npy")), (std::vector<uint8_t>{0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(read("version2.npy").value(5), 5.0);
  EXPECT_EQ(read("version3.npy").value(5), 5.0);
  EXPECT_EQ(read("scalar.npy").shape, std::vector<int64_t>());
  EXPECT_EQ(read("scalar.npy").value(0), 2.5);
  EXPECT_EQ(read("empty.npy").shape, (std::vector<int64_t>{0, 3}));
}

TEST(Npy, WritesTheBytesOfNumpy) {
  const TemporaryDirectory directory;
  for (const char* name : {"f2", "f4", "f8", "i4", "i8", "u1", "u8", "scalar", "empty", "one_dimension"}) {
    const std::string file = std::string(name) + ".npy";
    const auto status = write_npy(directory.file(file), read(file));
    ASSERT_TRUE(status.has_value()) << status.error().message;
    EXPECT_EQ(read_text(directory.file(file)), read_text(golden(file))) << name;
  }
}

TEST(Npy, ElementTypesThatAreNotRead) {
  expect_error(read_npy(golden("big_endian.npy")), KDTREE_INVALID_FILE,
               golden("big_endian.npy") + ": descr is '>f4' (big-endian), expected <f2, <f4");
  expect_error(read_npy(golden("objects.npy")), KDTREE_INVALID_FILE,
               "descr is '|O' (Python objects), expected");
  expect_error(read_npy(golden("structured.npy")), KDTREE_INVALID_FILE,
               "expected a quoted element type (structured types are not read)");
  expect_invalid(file_of(header_of("<c8", "()"), "12345678"), "descr is '<c8', expected");
}

TEST(Npy, FortranOrder) {
  expect_error(read_npy(golden("fortran.npy")), KDTREE_INVALID_FILE,
               "fortran_order is True, expected C order");
  const std::string vector = file_of(header_of("|u1", "(2,)", "True"), "ab");
  EXPECT_TRUE(parse_npy(as_bytes(vector), "f").has_value());
}

TEST(Npy, Preamble) {
  expect_invalid("", "the file does not start with \\x93NUMPY and a version");
  expect_invalid("\x93NUMPY\x01", "the file does not start with");
  expect_invalid("PK\x03\x04 and more", "the file does not start with");
  expect_invalid(file_of("{}", "", {4, 0}), "the format version is 4.0, expected 1.0, 2.0 or 3.0");
  expect_invalid(file_of("{}", "", {1, 1}), "the format version is 1.1");
  expect_invalid(std::string("\x93NUMPY\x01\x00\x05", 9), "the file has 9 bytes, expected at least 10");
  expect_invalid(std::string("\x93NUMPY\x02\x00\x05\x00", 10), "the file has 10 bytes, expected at least 12");
  expect_invalid(std::string("\x93NUMPY\x01\x00\x05\x00{}", 12),
                 "the header length is 5, expected at most 2 in a file of 12 bytes");
}

TEST(Npy, HeaderLiteral) {
  const auto header = [](const std::string& text, const std::string& message) {
    expect_invalid(file_of(text), message);
  };
  header("", "the header has \"\" at byte 0, expected '{'");
  header("{", "the header has \"\" at byte 1, expected a quoted key or '}'");
  header("{descr", "the header has \"descr\" at byte 1, expected a quoted key");
  header("{'descr", "the header has \"descr\" at byte 2, expected a quoted key");
  header("{'descr' 1", "the header has \"1\" at byte 9, expected ':'");
  header("{'descr': <f4", "the header has \"<f4\" at byte 10, expected a quoted element type");
  header("{'fortran_order': 1", "the header has \"1\" at byte 18, expected True or False");
  header("{'shape': 3", "the header has \"3\" at byte 10, expected '('");
  header("{'shape': (3)", "the header has \"\" at byte 13, expected a ',' in a tuple of one");
  header("{'shape': (,)", "the header has \",)\" at byte 11, expected a dimension of 0 .. 2^63 - 1");
  header("{'shape': (3 4)", "the header has \"4)\" at byte 13, expected ',' or ')'");
  header("{'shape': (-3,)", "the header has \"-3,)\" at byte 11, expected a dimension");
  header("{'shape': (9223372036854775808,)",
         "the header has \"9223372036854775\" at byte 11, expected a dimension");
  header("{'shape': (3, ", "the header has \"\" at byte 14, expected a dimension");
  header("{'shape': () 'descr'", "the header has \"'descr'\" at byte 13, expected ',' or '}'");
  header("{'shape': (), 'shape': ()}",
         "the header has a key 'shape', expected descr, fortran_order and shape");
  header("{'color': 1}", "the header has a key 'color'");
  header("{}", "the header lacks descr");
  header("{'descr': '<f4'}", "the header lacks fortran_order");
  header("{'descr': '<f4', 'fortran_order': False}", "the header lacks shape");
  header(header_of("<f4", "()") + "x", "the header has \"x\" at byte 56, expected nothing after '}'");
}

TEST(Npy, KeysInAnyOrderAndEitherQuote) {
  const std::string text = file_of("{\"shape\":(2,),\"fortran_order\":False,\"descr\":\"|u1\"}", "ab");
  const auto tensor = parse_npy(as_bytes(text), "f");
  ASSERT_TRUE(tensor.has_value()) << tensor.error().message;
  EXPECT_EQ(elements<uint8_t>(*tensor), (std::vector<uint8_t>{'a', 'b'}));
}

TEST(Npy, DataLength) {
  expect_invalid(file_of(header_of("<f4", "(2,)"), "1234567"),
                 "the file has 7 bytes of data, expected 8 for its shape of <f4");
  expect_invalid(file_of(header_of("<f4", "(2,)"), "123456789"), "the file has 9 bytes of data, expected 8");
  expect_invalid(file_of(header_of("<f4", "(4611686018427387904, 4)")),
                 "the product of its shape overflows 64 bits");
}

TEST(Npy, RefusesToWriteWhatNumpyLacks) {
  const TemporaryDirectory directory;
  expect_error(write_npy(directory.file("a"), Tensor(DType::bf16, {2})), KDTREE_INVALID_ARGUMENT,
               directory.file("a") + ": the tensor has dtype bf16 and 4 bytes, expected f16, f32");
  Tensor cut(DType::f32, {2});
  cut.bytes.pop_back();
  expect_error(write_npy(directory.file("a"), cut), KDTREE_INVALID_ARGUMENT,
               "the tensor has dtype f32 and 7 bytes");
  const Tensor wide(DType::u8, std::vector<int64_t>(30000, 1));
  expect_error(write_npy(directory.file("a"), wide), KDTREE_INVALID_ARGUMENT,
               "the tensor has 30000 dimensions, more than a header holds");
  EXPECT_EQ(directory.entries(), 0u);
}

RC_GTEST_PROP(NpyProperty, RoundTrip, ()) {
  const DType types[] = {DType::f16, DType::f32, DType::f64, DType::i32, DType::i64, DType::u8, DType::u64};
  Tensor tensor;
  tensor.dtype = types[static_cast<size_t>(*rc::gen::inRange(0, 7))];
  tensor.shape = *rc::gen::container<std::vector<int64_t>>(*rc::gen::inRange<size_t>(0, 6),
                                                           rc::gen::inRange<int64_t>(0, 5));
  int64_t count = dtype_size(tensor.dtype);
  for (const int64_t dimension : tensor.shape)
    count *= dimension;
  for (int64_t b = 0; b < count; ++b)
    tensor.bytes.push_back(static_cast<std::byte>(b * 7));
  const TemporaryDirectory directory;
  RC_ASSERT(write_npy(directory.file("a"), tensor).has_value());
  const auto read_back = read_npy(directory.file("a"));
  RC_ASSERT(read_back.has_value());
  RC_ASSERT(read_back->dtype == tensor.dtype);
  RC_ASSERT(read_back->shape == tensor.shape);
  RC_ASSERT(read_back->bytes == tensor.bytes);
}

RC_GTEST_PROP(NpyProperty, DamageIsAnErrorOrAnotherFile, ()) {
  std::string text = read_text(golden("f4.npy"));
  const auto changes = *rc::gen::container<std::vector<std::pair<size_t, char>>>(
      rc::gen::pair(rc::gen::inRange<size_t>(0, text.size()), rc::gen::arbitrary<char>()));
  for (const auto& [position, value] : changes)
    text[position] = value;
  text.resize(*rc::gen::inRange<size_t>(0, text.size() + 1));
  const auto tensor = parse_npy(as_bytes(text), "f");
  RC_ASSERT(tensor.has_value() || tensor.error().code == KDTREE_INVALID_FILE);
}

}  // namespace
}  // namespace kdtree
