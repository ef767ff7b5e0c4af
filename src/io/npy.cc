#include "io/npy.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "io/atomic_file.h"
#include "io/mapped_file.h"
#include "io/npy_header.h"
#include "io/shape.h"

namespace kdtree {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kVersionBytes = 2;
constexpr size_t kAlignment = 64;             // of the data
constexpr size_t kFirstDimensionDigits = 21;  // NumPy leaves room for the first dimension to grow

struct NpyDtype {
  std::string_view descr;
  DType type;
};
constexpr NpyDtype kDtypes[] = {
    {"<f2", DType::f16}, {"<f4", DType::f32}, {"<f8", DType::f64}, {"<i4", DType::i32},
    {"<i8", DType::i64}, {"|u1", DType::u8},  {"<u8", DType::u64}, {"|b1", DType::u8},
};

Result<DType> read_dtype(std::string_view descr) {
  for (const auto& entry : kDtypes) {
    if (entry.descr == descr) return entry.type;
  }
  const char* why = descr.starts_with('>')                      ? " (big-endian)"
                    : descr.find('O') != std::string_view::npos ? " (Python objects)"
                                                                : "";
  return fail(KDTREE_INVALID_FILE, "descr is '{}'{}, expected <f2, <f4, <f8, <i4, <i8, |u1, <u8 or |b1",
              descr, why);
}

Result<Tensor> parse(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t version_end = kMagic.size() + kVersionBytes;
  if (!text.starts_with(kMagic) || text.size() < version_end) {
    return fail(KDTREE_INVALID_FILE, "the file does not start with \\x93NUMPY and a version");
  }
  const auto byte = [&](size_t i) { return std::to_integer<uint32_t>(bytes[i]); };
  const uint32_t major = byte(kMagic.size());
  const uint32_t minor = byte(kMagic.size() + 1);
  if (major < 1 || major > 3 || minor != 0) {
    return fail(KDTREE_INVALID_FILE, "the format version is {}.{}, expected 1.0, 2.0 or 3.0", major, minor);
  }
  const size_t length_bytes = major == 1 ? 2 : 4;
  const size_t header_begin = version_end + length_bytes;
  if (bytes.size() < header_begin) {
    return fail(KDTREE_INVALID_FILE, "the file has {} bytes, expected at least {} for the header length",
                bytes.size(), header_begin);
  }
  size_t length = 0;
  for (size_t i = header_begin; i-- > version_end;)
    length = length << 8 | byte(i);
  if (length > bytes.size() - header_begin) {
    return fail(KDTREE_INVALID_FILE, "the header length is {}, expected at most {} in a file of {} bytes",
                length, bytes.size() - header_begin, bytes.size());
  }
  auto header = parse_npy_header(text.substr(header_begin, length));
  if (!header) return tl::unexpected(std::move(header).error());
  const auto dtype = read_dtype(header->descr);
  if (!dtype) return tl::unexpected(dtype.error());
  // With one dimension both orders are the same.
  if (header->fortran_order && header->shape.size() > 1) {
    return fail(KDTREE_INVALID_FILE, "fortran_order is True, expected C order");
  }
  const auto expected = shape_bytes(header->shape, *dtype);
  if (!expected) return fail(KDTREE_INVALID_FILE, "the product of its shape overflows 64 bits");
  const auto data = bytes.subspan(header_begin + length);
  if (static_cast<uint64_t>(*expected) != data.size()) {
    return fail(KDTREE_INVALID_FILE, "the file has {} bytes of data, expected {} for its shape of {}",
                data.size(), *expected, header->descr);
  }
  Tensor tensor;
  tensor.dtype = *dtype;
  tensor.shape = std::move(header->shape);
  tensor.bytes.assign(data.begin(), data.end());
  return tensor;
}

// "(3, 4)", "(3,)" or "()"
std::string shape_literal(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t dimension : shape)
    text += fmt::format("{}{}", text.empty() ? "" : ", ", dimension);
  return fmt::format("({}{})", text, shape.size() == 1 ? "," : "");
}

}  // namespace

Result<Tensor> read_npy(const std::string& path) {
  const auto file = MappedFile::open(path);
  if (!file) return tl::unexpected(file.error());
  return parse_npy(file->bytes(), path);
}

Result<Tensor> parse_npy(std::span<const std::byte> bytes, const std::string& name) {
  auto tensor = parse(bytes);
  if (!tensor) return with_context(std::move(tensor).error(), name + ": ");
  return tensor;
}

Status write_npy(const std::string& path, const Tensor& tensor) {
  const auto* dtype = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                   [&](const NpyDtype& entry) { return entry.type == tensor.dtype; });
  if (dtype == std::end(kDtypes) ||
      shape_bytes(tensor.shape, tensor.dtype) != static_cast<int64_t>(tensor.bytes.size())) {
    return fail(
        KDTREE_INVALID_ARGUMENT,
        "{}: the tensor has dtype {} and {} bytes, expected f16, f32, f64, i32, i64, u8 or u64 and the "
        "bytes of its shape",
        path, dtype_name(tensor.dtype), tensor.bytes.size());
  }
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", dtype->descr,
                                   shape_literal(tensor.shape));
  if (!tensor.shape.empty()) {
    const size_t digits = std::to_string(tensor.shape.front()).size();
    header.append(kFirstDimensionDigits - digits, ' ');
  }
  const size_t prefix = kMagic.size() + kVersionBytes + sizeof(uint16_t);
  const size_t length = (prefix + header.size() + 1 + kAlignment - 1) / kAlignment * kAlignment - prefix;
  header.resize(length - 1, ' ');
  header += '\n';
  if (length > UINT16_MAX) {
    return fail(KDTREE_INVALID_ARGUMENT, "{}: the tensor has {} dimensions, more than a header holds", path,
                tensor.shape.size());
  }
  const std::string start = fmt::format("{}\x01{}{}{}{}", kMagic, '\0', static_cast<char>(length & 0xff),
                                        static_cast<char>(length >> 8), header);
  const std::array parts{std::as_bytes(std::span(start)), std::span<const std::byte>(tensor.bytes)};
  return write_file_atomically(path, parts);
}

}  // namespace kdtree
