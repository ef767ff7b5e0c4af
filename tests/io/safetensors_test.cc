#include "io/safetensors.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/io/files.h"

namespace kdtree {
namespace {

std::string file_of(const std::string& header, const std::string& data = "") {
  return little_endian(header.size(), 8) + header + data;
}

// A header of one F32 tensor "x" with this shape and these offsets.
std::string f32_header(const std::string& shape, const std::string& offsets) {
  return R"({"x":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

Result<SafetensorsFile> parse(const std::string& text) {
  return SafetensorsFile::parse(as_bytes(text), "f");
}

void expect_invalid(const std::string& file, const std::string& message) {
  expect_error(parse(file), KDTREE_INVALID_FILE, "f: " + message);
}

template <class T>
std::vector<T> elements(const Tensor& tensor) {
  const auto values = tensor.as<T>();
  return {values.begin(), values.end()};
}

TEST(Safetensors, ReadsWhatThePythonPackageWrites) {
  const auto file = SafetensorsFile::open(golden("dtypes.safetensors"));
  ASSERT_TRUE(file.has_value()) << file.error().message;
  EXPECT_EQ(file->tensors().size(), 12u);
  EXPECT_TRUE(file->metadata().empty());
  const auto tensor = [&](const char* name, DType dtype, std::vector<int64_t> shape) {
    const TensorView* view = file->find(name);
    if (view == nullptr) return Tensor();
    EXPECT_EQ(view->dtype, dtype) << name;
    EXPECT_EQ(view->shape, shape) << name;
    return view->to_tensor();
  };
  EXPECT_EQ(elements<uint8_t>(tensor("bool", DType::u8, {2, 3})), (std::vector<uint8_t>{0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(elements<uint8_t>(tensor("u8", DType::u8, {2, 3})), (std::vector<uint8_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(elements<uint64_t>(tensor("u64", DType::u64, {2})), (std::vector<uint64_t>{0, UINT64_MAX}));
  EXPECT_EQ(tensor("f16", DType::f16, {2, 3}).value(5), 2.5);
  EXPECT_EQ(tensor("bf16", DType::bf16, {3}).value(1), -2.0);
  EXPECT_EQ(tensor("f32", DType::f32, {2, 3}).value(3), 1.5);
  EXPECT_EQ(tensor("f64", DType::f64, {2, 3}).value(1), 0.5);
  EXPECT_EQ(tensor("e4m3", DType::e4m3, {3}).value(2), 448.0);
  EXPECT_EQ(elements<int32_t>(tensor("i32", DType::i32, {2, 3})), (std::vector<int32_t>{-2, -1, 0, 1, 2, 3}));
  EXPECT_EQ(elements<int64_t>(tensor("i64", DType::i64, {2, 3})), (std::vector<int64_t>{-2, -1, 0, 1, 2, 3}));
  EXPECT_EQ(tensor("scalar", DType::f32, {}).value(0), 1.5);
  EXPECT_TRUE(tensor("empty", DType::i32, {0, 4}).present());
  EXPECT_EQ(file->find("none"), nullptr);
}

TEST(Safetensors, WritesTheBytesOfThePythonPackage) {
  const auto file = SafetensorsFile::open(golden("rewrite.safetensors"));
  ASSERT_TRUE(file.has_value()) << file.error().message;
  EXPECT_EQ(file->metadata(), (std::map<std::string, std::string>{{"made by", "safetensors é"}}));
  std::map<std::string, Tensor> owned;
  std::map<std::string, const Tensor*> tensors;
  for (const auto& [name, view] : file->tensors()) {
    owned[name] = view.to_tensor();
    tensors[name] = &owned[name];
  }
  const TemporaryDirectory directory;
  const auto status = write_safetensors(directory.file("a"), tensors, file->metadata());
  ASSERT_TRUE(status.has_value()) << status.error().message;
  EXPECT_EQ(read_text(directory.file("a")), read_text(golden("rewrite.safetensors")));
}

TEST(Safetensors, AnyMisalignmentIsRead) {
  for (size_t pad = 0; pad < 8; ++pad) {
    const std::string header = f32_header("[1]", "[0,4]") + std::string(pad, ' ');
    const std::string text = file_of(header, little_endian(0x3fc00000, 4));
    const auto file = parse(text);
    ASSERT_TRUE(file.has_value()) << file.error().message;
    EXPECT_EQ(file->find("x")->to_tensor().value(0), 1.5);
    EXPECT_EQ(file->find("x")->size(), 1);
  }
}

TEST(Safetensors, SmallestFile) {
  const std::string text = file_of("{}");
  const auto file = parse(text);
  ASSERT_TRUE(file.has_value()) << file.error().message;
  EXPECT_TRUE(file->tensors().empty());
}

TEST(Safetensors, HeaderLength) {
  expect_invalid("", "the file has 0 bytes, expected at least 8 for the header length");
  expect_invalid("1234567", "the file has 7 bytes, expected at least 8");
  expect_invalid(little_endian(3, 8) + "{}",
                 "the header length is 3, expected at most 2 in a file of 10 bytes");
  expect_invalid(little_endian(UINT64_MAX, 8) + "{}", "the header length is 18446744073709551615");
  const std::string large = little_endian(100'000'001, 8) + '{' + std::string(100'000'001, ' ');
  expect_invalid(large, "the header length is 100000001, expected at most 100000000");
}

TEST(Safetensors, HeaderText) {
  expect_invalid(file_of(""), "the header starts with \"\", expected \"{\"");
  expect_invalid(file_of(" {}"), "the header starts with \" \", expected \"{\"");
  expect_invalid(file_of("[]"), "the header starts with \"[\"");
  expect_invalid(file_of("{"), "the header is not JSON");
  expect_invalid(file_of("{} x"), "the header is not JSON");
  expect_invalid(file_of("{\"\xff\":{}}"), "the header is not JSON");
  expect_invalid(file_of(std::string("{}\0", 3)), "the header has a NUL at byte 2");
}

TEST(Safetensors, HeaderValuesOfTheWrongKind) {
  expect_invalid(file_of(R"({"x":1})"), "tensor \"x\": is 1, expected an object");
  expect_invalid(file_of(R"({"x":null})"), "tensor \"x\": is null, expected an object");
  expect_invalid(file_of(R"({"x":[]})"), "tensor \"x\": is an array, expected an object");
  expect_invalid(file_of(R"({"x":"t"})"), "tensor \"x\": is \"t\", expected an object");
  expect_invalid(file_of(R"({"__metadata__":[]})"), "__metadata__: is an array, expected an object");
  expect_invalid(file_of(R"({"__metadata__":{"a":1.5}})"), "__metadata__: \"a\" is 1.5, expected a string");
  expect_invalid(file_of(R"({"__metadata__":{"a":{}}})"),
                 "__metadata__: \"a\" is an object, expected a string");
  expect_invalid(file_of(R"({"x":{"dtype":true}})"), "tensor \"x\": dtype is true, expected a string");
  expect_invalid(file_of(R"({"x":{"dtype":["F32"]}})"), "tensor \"x\": dtype is an array, expected a string");
  expect_invalid(file_of(R"({"x":{"shape":3}})"), "tensor \"x\": shape is 3, expected an array of integers");
  expect_invalid(file_of(R"({"x":{"shape":"3"}})"), "tensor \"x\": shape is \"3\", expected an array");
  expect_invalid(file_of(R"({"x":{"shape":[-1]}})"), "tensor \"x\": shape has -1, expected a non-negative");
  expect_invalid(file_of(R"({"x":{"shape":[1.0]}})"), "tensor \"x\": shape has 1.0, expected a non-negative");
  expect_invalid(file_of(R"({"x":{"shape":[[1]]}})"),
                 "tensor \"x\": shape has an array, expected a non-negative");
  expect_invalid(file_of(R"({"x":{"shape":[9223372036854775808]}})"),
                 "tensor \"x\": shape is 9223372036854775808, expected at most 2^63 - 1");
}

TEST(Safetensors, HeaderFields) {
  expect_invalid(file_of(R"({"x":{"shape":[],"data_offsets":[0,0]}})"), "tensor \"x\": has no dtype");
  expect_invalid(file_of(R"({"x":{"dtype":"U8","data_offsets":[0,0]}})"), "tensor \"x\": has no shape");
  expect_invalid(file_of(R"({"x":{"dtype":"U8","shape":[0]}})"), "tensor \"x\": has no data_offsets");
  expect_invalid(file_of(R"({"x":{"color":1}})"),
                 "tensor \"x\": has a field \"color\", expected dtype, shape and");
  expect_invalid(file_of(R"({"x":{"dtype":"U8","dtype":"U8"}})"),
                 "tensor \"x\": field \"dtype\" appears twice");
  expect_invalid(file_of(R"({"x":{"shape":[],"shape":[]}})"), "tensor \"x\": field \"shape\" appears twice");
  expect_invalid(file_of(R"({"x":{"data_offsets":[],"data_offsets":[]}})"),
                 "tensor \"x\": field \"data_offsets\" appears twice");
  const std::string x = R"("x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  expect_invalid(file_of("{" + x + "," + x + "}"), "tensor \"x\": appears twice");
  expect_invalid(file_of(R"({"__metadata__":{},"__metadata__":{}})"), "__metadata__: appears twice");
  expect_invalid(file_of(R"({"__metadata__":{"a":"1","a":"2"}})"), "__metadata__: field \"a\" appears twice");
}

TEST(Safetensors, DeepNestingIsRefusedAtOnce) {
  expect_invalid(file_of(R"({"x":)" + std::string(1'000'000, '[')),
                 "tensor \"x\": is an array, expected an object");
  std::string objects;
  for (int i = 0; i < 100'000; ++i)
    objects += R"({"x":)";
  expect_invalid(file_of(objects), "tensor \"x\": has a field \"x\"");
}

TEST(Safetensors, TensorRanges) {
  const std::string four(4, 'x');
  expect_invalid(file_of(f32_header("[1]", "[0]"), four),
                 "tensor \"x\": data_offsets has 1 numbers, expected 2");
  expect_invalid(file_of(f32_header("[1]", "[0,4,8]"), four), "tensor \"x\": data_offsets has 3 numbers");
  expect_invalid(file_of(f32_header("[1]", "[0,5]"), four),
                 "tensor \"x\": data_offsets are [0, 5], expected a range within [0, 4]");
  expect_invalid(file_of(f32_header("[1]", "[4,0]"), four), "tensor \"x\": data_offsets are [4, 0]");
  expect_invalid(file_of(f32_header("[1]", "[0,9223372036854775807]"), four),
                 "tensor \"x\": data_offsets are [0, 9223372036854775807], expected");
  expect_invalid(file_of(f32_header("[2]", "[0,4]"), four),
                 "tensor \"x\": data_offsets [0, 4] hold 4 bytes, expected 8 for its shape of F32");
  expect_invalid(file_of(f32_header("[4294967296,4294967296]", "[0,4]"), four),
                 "tensor \"x\": the product of its shape overflows 64 bits");
  expect_invalid(file_of(f32_header("[4611686018427387904]", "[0,0]")),
                 "tensor \"x\": the product of its shape overflows");
  expect_error(SafetensorsFile::open(golden("i16.safetensors")), KDTREE_INVALID_FILE,
               "tensor \"bad\": dtype is \"I16\", expected one of U64, I64, F64, F32, I32, BF16, F16, "
               "F8_E4M3, U8, BOOL");
}

TEST(Safetensors, DataIsCoveredExactly) {
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)" + a +
           R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)" + b + "}}";
  };
  const std::string four(4, 'x');
  const std::string in_any_order = file_of(two("[2,4]", "[0,2]"), four);
  EXPECT_TRUE(parse(in_any_order).has_value());
  expect_invalid(file_of(two("[0,2]", "[1,3]"), four),
                 "tensor \"b\": data starts at byte 1, expected 2: the ranges overlap");
  expect_invalid(file_of(two("[0,2]", "[0,2]"), four), "tensor \"b\": data starts at byte 0, expected 2");
  expect_invalid(file_of(two("[0,2]", "[3,5]"), four + "x"),
                 "tensor \"b\": data starts at byte 3, expected 2: the ranges leave a hole");
  expect_invalid(file_of(two("[1,3]", "[3,5]"), four + "x"),
                 "tensor \"a\": data starts at byte 1, expected 0");
  expect_invalid(file_of(two("[0,2]", "[2,4]"), four + "x"),
                 "the file has 5 bytes of data, expected 4, where its tensors end");
  expect_invalid(file_of("{}", "x"), "the file has 1 bytes of data, expected 0");
}

TEST(Safetensors, OpenNamesThePath) {
  const TemporaryDirectory directory;
  expect_error(SafetensorsFile::open(directory.file("a")), KDTREE_IO_ERROR,
               directory.file("a") + ": cannot open");
  write_text(directory.file("a"), "short");
  expect_error(SafetensorsFile::open(directory.file("a")), KDTREE_INVALID_FILE,
               directory.file("a") + ": the file has 5 bytes");
}

TEST(Safetensors, RefusesToWriteWhatItCouldNotRead) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("a");
  const Tensor tensor(DType::f32, {2});
  expect_error(write_safetensors(path, {{"__metadata__", &tensor}}, {}), KDTREE_INVALID_ARGUMENT,
               "tensor \"__metadata__\"");
  Tensor cut = tensor;
  cut.bytes.pop_back();
  expect_error(write_safetensors(path, {{"x", &cut}}, {}), KDTREE_INVALID_ARGUMENT,
               "tensor \"x\" has dtype f32 and 7 bytes");
  expect_error(write_safetensors(path, {{"\xff", &tensor}}, {}), KDTREE_INVALID_ARGUMENT, "must be UTF-8");
  expect_error(write_safetensors(path, {}, {{"a", "\xff"}}), KDTREE_INVALID_ARGUMENT, "must be UTF-8");
  EXPECT_EQ(directory.entries(), 0u);
}

RC_GTEST_PROP(SafetensorsProperty, RoundTrip, ()) {
  const DType types[] = {DType::u64, DType::i64,  DType::f64,  DType::f32, DType::i32,
                         DType::f16, DType::bf16, DType::e4m3, DType::u8};
  std::map<std::string, Tensor> written;
  std::map<std::string, const Tensor*> pointers;
  for (const int i : *rc::gen::unique<std::vector<int>>(rc::gen::inRange(0, 100))) {
    const auto shape = *rc::gen::container<std::vector<int64_t>>(rc::gen::inRange<int64_t>(0, 4));
    if (shape.size() > 6) continue;
    Tensor tensor;
    tensor.dtype = types[static_cast<size_t>(*rc::gen::inRange(0, 9))];
    tensor.shape = shape;
    int64_t count = dtype_size(tensor.dtype);
    for (const int64_t dimension : shape)
      count *= dimension;
    for (int64_t b = 0; b < count; ++b)
      tensor.bytes.push_back(static_cast<std::byte>(b * 7 + i));
    pointers[std::to_string(i)] = &(written[std::to_string(i)] = tensor);
  }
  const std::map<std::string, std::string> metadata = {{"quote\" \\ \n", "\t\x01 é"}};
  const TemporaryDirectory directory;
  RC_ASSERT(write_safetensors(directory.file("a"), pointers, metadata).has_value());
  const auto file = SafetensorsFile::open(directory.file("a"));
  RC_ASSERT(file.has_value());
  RC_ASSERT(file->metadata() == metadata);
  RC_ASSERT(file->tensors().size() == written.size());
  for (const auto& [name, tensor] : written) {
    const Tensor read = file->find(name)->to_tensor();
    RC_ASSERT(read.dtype == tensor.dtype);
    RC_ASSERT(read.shape == tensor.shape);
    RC_ASSERT(read.bytes == tensor.bytes);
  }
}

// What a damaged file does is up to its bytes; that it is refused or read, and nothing else, is not.
RC_GTEST_PROP(SafetensorsProperty, DamageIsAnErrorOrAnotherFile, ()) {
  std::string text = read_text(golden("dtypes.safetensors"));
  const auto changes = *rc::gen::container<std::vector<std::pair<size_t, char>>>(
      rc::gen::pair(rc::gen::inRange<size_t>(0, text.size()), rc::gen::arbitrary<char>()));
  for (const auto& [position, value] : changes)
    text[position] = value;
  text.resize(*rc::gen::inRange<size_t>(0, text.size() + 1));
  const auto file = parse(text);
  if (file) {
    for (const auto& [name, view] : file->tensors())
      RC_ASSERT(view.to_tensor().bytes.size() == view.bytes.size());
  } else {
    RC_ASSERT(file.error().code == KDTREE_INVALID_FILE);
    RC_ASSERT(file.error().message.starts_with("f: "));
  }
}

}  // namespace
}  // namespace kdtree
