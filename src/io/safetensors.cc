#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>
#include <tuple>

#include <nlohmann/json.hpp>

#include "io/atomic_file.h"
#include "io/mapped_file.h"
#include "io/safetensors_header.h"
#include "io/shape.h"

namespace kdtree {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

const SafetensorsDtype* find_dtype(const std::string& name) {
  const auto* found = std::find_if(std::begin(kSafetensorsDtypes), std::end(kSafetensorsDtypes),
                                   [&](const SafetensorsDtype& entry) { return name == entry.name; });
  return found != std::end(kSafetensorsDtypes) ? found : nullptr;
}

// The first entry, so that u8 is U8 and not BOOL.
const SafetensorsDtype* find_dtype(DType type) {
  const auto* found = std::find_if(std::begin(kSafetensorsDtypes), std::end(kSafetensorsDtypes),
                                   [&](const SafetensorsDtype& entry) { return type == entry.type; });
  return found != std::end(kSafetensorsDtypes) ? found : nullptr;
}

std::string dtype_names() {
  std::string names;
  for (const auto& entry : kSafetensorsDtypes)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", entry.name);
  return names;
}

Result<TensorView> view_tensor(const SafetensorsEntry& entry, std::span<const std::byte> data) {
  const auto* dtype = find_dtype(*entry.dtype);
  if (dtype == nullptr) {
    return fail(KDTREE_INVALID_FILE, "dtype is \"{}\", expected one of {}", *entry.dtype, dtype_names());
  }
  const auto& offsets = *entry.data_offsets;
  if (offsets.size() != 2) {
    return fail(KDTREE_INVALID_FILE, "data_offsets has {} numbers, expected 2", offsets.size());
  }
  const int64_t begin = offsets[0];
  const int64_t end = offsets[1];
  if (begin > end || static_cast<uint64_t>(end) > data.size()) {
    return fail(KDTREE_INVALID_FILE, "data_offsets are [{}, {}], expected a range within [0, {}]", begin, end,
                data.size());
  }
  const auto bytes = shape_bytes(*entry.shape, dtype->type);
  if (!bytes) return fail(KDTREE_INVALID_FILE, "the product of its shape overflows 64 bits");
  if (*bytes != end - begin) {
    return fail(KDTREE_INVALID_FILE, "data_offsets [{}, {}] hold {} bytes, expected {} for its shape of {}",
                begin, end, end - begin, *bytes, dtype->name);
  }
  return TensorView{dtype->type, *entry.shape,
                    data.subspan(static_cast<size_t>(begin), static_cast<size_t>(*bytes))};
}

// The format allows neither holes nor overlaps: the tensors' ranges, in order, cover the data exactly.
Status check_coverage(const SafetensorsHeader& header, size_t data_bytes) {
  std::vector<std::tuple<int64_t, int64_t, std::string_view>> ranges;
  for (const auto& [name, entry] : header.tensors)
    ranges.emplace_back((*entry.data_offsets)[0], (*entry.data_offsets)[1], name);
  std::sort(ranges.begin(), ranges.end());
  int64_t covered = 0;
  for (const auto& [begin, end, name] : ranges) {
    if (begin != covered) {
      return fail(KDTREE_INVALID_FILE, "tensor \"{}\": data starts at byte {}, expected {}: the ranges {}",
                  name, begin, covered, begin < covered ? "overlap" : "leave a hole");
    }
    covered = end;
  }
  if (static_cast<size_t>(covered) != data_bytes) {
    return fail(KDTREE_INVALID_FILE, "the file has {} bytes of data, expected {}, where its tensors end",
                data_bytes, covered);
  }
  return {};
}

}  // namespace

Tensor TensorView::to_tensor() const {
  Tensor tensor;
  tensor.dtype = dtype;
  tensor.shape = shape;
  tensor.bytes.assign(bytes.begin(), bytes.end());
  return tensor;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  auto mapped = MappedFile::open(path);
  if (!mapped) return tl::unexpected(std::move(mapped).error());
  auto result = parse(mapped->bytes(), path);
  if (result) result->file_ = std::make_shared<const MappedFile>(std::move(*mapped));
  return result;
}

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> bytes, const std::string& name) {
  if (bytes.size() < kLengthBytes) {
    return fail(KDTREE_INVALID_FILE, "{}: the file has {} bytes, expected at least {} for the header length",
                name, bytes.size(), kLengthBytes);
  }
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;)
    length = length << 8 | std::to_integer<uint64_t>(bytes[i]);
  const uint64_t limit = std::min<uint64_t>(bytes.size() - kLengthBytes, kMaxHeaderBytes);
  if (length > limit) {
    return fail(KDTREE_INVALID_FILE, "{}: the header length is {}, expected at most {} in a file of {} bytes",
                name, length, limit, bytes.size());
  }
  const std::string context = name + ": ";
  const char* json = reinterpret_cast<const char*>(bytes.data()) + kLengthBytes;
  auto header = parse_safetensors_header({json, static_cast<size_t>(length)});
  if (!header) return with_context(std::move(header).error(), context);

  const auto data = bytes.subspan(kLengthBytes + static_cast<size_t>(length));
  SafetensorsFile file;
  file.metadata_ = std::move(header->metadata);
  for (const auto& [tensor_name, entry] : header->tensors) {
    auto view = view_tensor(entry, data);
    if (!view) {
      return with_context(std::move(view).error(), fmt::format("{}tensor \"{}\": ", context, tensor_name));
    }
    file.tensors_.emplace(tensor_name, std::move(*view));
  }
  if (auto status = check_coverage(*header, data.size()); !status) {
    return with_context(std::move(status).error(), context);
  }
  return file;
}

const TensorView* SafetensorsFile::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found != tensors_.end() ? &found->second : nullptr;
}

Status write_safetensors(const std::string& path, const std::map<std::string, const Tensor*>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  std::vector<std::tuple<const SafetensorsDtype*, std::string, const Tensor*>> order;
  for (const auto& [name, tensor] : tensors) {
    const auto* dtype = find_dtype(tensor->dtype);
    if (dtype == nullptr || name == "__metadata__" ||
        shape_bytes(tensor->shape, tensor->dtype) != static_cast<int64_t>(tensor->bytes.size())) {
      return fail(
          KDTREE_INVALID_ARGUMENT,
          "{}: tensor \"{}\" has dtype {} and {} bytes, expected the bytes of its shape and a name that "
          "is not __metadata__",
          path, name, dtype_name(tensor->dtype), tensor->bytes.size());
    }
    order.emplace_back(dtype, name, tensor);
  }
  std::sort(order.begin(), order.end());

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::vector<std::span<const std::byte>> parts(2);  // the length and the header come first
  size_t end = 0;
  for (const auto& [dtype, name, tensor] : order) {
    const size_t begin = end;
    end += tensor->bytes.size();
    auto& entry = header[name];
    entry["dtype"] = dtype->name;
    entry["shape"] = tensor->shape;
    entry["data_offsets"] = {begin, end};
    parts.emplace_back(tensor->bytes);
  }
  std::string json;
  try {
    json = header.dump();
  } catch (const nlohmann::ordered_json::type_error& error) {
    return fail(KDTREE_INVALID_ARGUMENT, "{}: names and metadata must be UTF-8: {}", path, error.what());
  }
  json.resize((json.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');  // aligns the data
  if (json.size() > kMaxHeaderBytes) {
    return fail(KDTREE_INVALID_ARGUMENT, "{}: the header has {} bytes, expected at most {}", path,
                json.size(), kMaxHeaderBytes);
  }
  std::array<std::byte, kLengthBytes> length{};
  for (size_t i = 0; i < kLengthBytes; ++i)
    length[i] = static_cast<std::byte>(json.size() >> (8 * i) & 0xff);
  parts[0] = length;
  parts[1] = std::as_bytes(std::span(json));
  return write_file_atomically(path, parts);
}

}  // namespace kdtree
