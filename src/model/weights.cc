#include "model/weights.h"

#include <filesystem>
#include <set>

#include <fmt/ranges.h>

#include "model/json_object.h"

namespace kdtree {
namespace {

// The shards that the index names, and each tensor's.
Result<std::map<std::string, std::string>> read_index(const std::string& path) {
  const auto index = JsonObject::read(path);
  KDTREE_RETURN_IF_ERROR(index);
  auto map = index->text_map("weight_map");
  KDTREE_RETURN_IF_ERROR(map);
  for (const auto& [tensor, file] : *map) {
    if (file.empty() || file.find('/') != std::string::npos || file == "..") {
      return fail(KDTREE_INVALID_FILE,
                  "{}: tensor \"{}\" is in \"{}\", expected the name of a file beside it", path, tensor,
                  file);
    }
  }
  return map;
}

}  // namespace

uint64_t fnv1a(std::span<const std::byte> bytes, uint64_t seed) {
  for (const std::byte byte : bytes)
    seed = (seed ^ std::to_integer<uint64_t>(byte)) * 1099511628211u;
  return seed;
}

Result<Weights> Weights::open(const std::string& folder) {
  Weights weights;
  weights.folder_ = folder;
  const std::string single = folder + "/model.safetensors";
  const std::string index = single + ".index.json";
  std::set<std::string> names = {"model.safetensors"};
  std::map<std::string, std::string> map;
  std::error_code ignored;
  if (!std::filesystem::exists(single, ignored) && std::filesystem::exists(index, ignored)) {
    auto read = read_index(index);
    KDTREE_RETURN_IF_ERROR(read);
    map = *std::move(read);
    names.clear();
    for (const auto& entry : map)
      names.insert(entry.second);
  }
  std::map<std::string, const SafetensorsFile*> files;
  weights.files_.reserve(names.size());
  for (const std::string& name : names) {
    auto file = SafetensorsFile::open(fmt::format("{}/{}", folder, name));
    KDTREE_RETURN_IF_ERROR(file);
    weights.files_.push_back(*std::move(file));
    files[name] = &weights.files_.back();
    for (const auto& [tensor, view] : weights.files_.back().tensors()) {
      weights.tensors_.emplace(tensor, &view);
      weights.bytes_ += static_cast<int64_t>(view.bytes.size());
    }
  }
  for (const auto& [tensor, file] : map) {
    const TensorView* view = files[file]->find(tensor);
    if (view == nullptr) {
      return fail(KDTREE_INVALID_FILE, "{}: tensor \"{}\" is not in {}, where the index has it", index,
                  tensor, file);
    }
    weights.tensors_[tensor] = view;  // whatever other shards hold under that name
  }
  return weights;
}

uint64_t Weights::hash(uint64_t seed) const {
  for (const auto& [name, view] : tensors_) {
    const std::string what = fmt::format("{} {} {}", name, dtype_name(view->dtype), view->shape);
    seed = fnv1a(view->bytes, fnv1a(std::as_bytes(std::span(what)), seed));
  }
  return seed;
}

const TensorView* Weights::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found != tensors_.end() ? found->second : nullptr;
}

Result<const TensorView*> Weights::find(const std::string& name, const std::vector<int64_t>& shape) const {
  const TensorView* view = find(name);
  if (view == nullptr) {
    return fail(KDTREE_INVALID_FILE, "{}: tensor \"{}\" is missing, expected one of shape [{}]", folder_,
                name, fmt::join(shape, ", "));
  }
  if (view->shape != shape) {
    return fail(KDTREE_INVALID_FILE, "{}: tensor \"{}\" has shape [{}], expected [{}]", folder_, name,
                fmt::join(view->shape, ", "), fmt::join(shape, ", "));
  }
  if (view->dtype != DType::bf16 && view->dtype != DType::f16 && view->dtype != DType::f32) {
    return fail(KDTREE_UNSUPPORTED, "{}: tensor \"{}\" is {}, expected bf16, f16 or f32", folder_, name,
                dtype_name(view->dtype));
  }
  return view;
}

Result<Matrix> Weights::matrix(const std::string& name, int64_t rows, int64_t columns) {
  const auto view = find(name, {rows, columns});
  if (!view) return tl::unexpected<Error>(view.error());
  const void* data = (*view)->bytes.data();
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(dtype_size((*view)->dtype)) != 0) {
    data = copies_.emplace_back((*view)->to_tensor()).pointer();
  }
  return Matrix{data, (*view)->dtype, rows, columns, columns};
}

Result<std::vector<float>> Weights::vector(const std::string& name, int64_t n) const {
  const auto view = find(name, {n});
  if (!view) return tl::unexpected<Error>(view.error());
  const Tensor aligned = (*view)->to_tensor();
  std::vector<float> values(static_cast<size_t>(n));
  to_floats(aligned.bytes.data(), aligned.dtype, n, values.data());
  return values;
}

}  // namespace kdtree
