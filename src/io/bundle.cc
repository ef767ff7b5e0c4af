#include "io/bundle.h"

#include <charconv>
#include <string_view>

#include "io/bundle_check.h"
#include "io/bundle_fields.h"
#include "io/safetensors.h"

namespace kdtree {
namespace {

constexpr const char* kFormat = "kdtree-bundle";
constexpr const char* kVersion = "1";
constexpr std::string_view kProvenance = "provenance.";
constexpr const char* kLayer = "layer";
constexpr const char* kModel = "model";

Status read_metadata(const std::map<std::string, std::string>& metadata, Bundle& bundle) {
  const auto value = [&](const char* key) {
    const auto found = metadata.find(key);
    return found != metadata.end() ? &found->second : nullptr;
  };
  const std::string* format = value("format");
  if (format == nullptr || *format != kFormat) {
    return fail(KDTREE_INVALID_FILE, "metadata \"format\" is {}, expected \"{}\"",
                format == nullptr ? "missing" : '"' + *format + '"', kFormat);
  }
  const std::string* version = value("version");
  if (version == nullptr || *version != kVersion) {
    return fail(KDTREE_INVALID_FILE, "bundle version is {}, expected \"{}\", the one this program reads",
                version == nullptr ? "missing" : '"' + *version + '"', kVersion);
  }
  const std::string* problem = value("problem");
  if (problem == nullptr) return fail(KDTREE_INVALID_FILE, "metadata \"problem\" is missing");
  auto scalars = problem_from_json(*problem);
  if (!scalars) return with_context(std::move(scalars).error(), "metadata \"problem\" ");
  bundle.problem.scalars = *scalars;
  if (const std::string* layer = value(kLayer)) {
    const char* end = layer->data() + layer->size();
    const auto [stop, error] = std::from_chars(layer->data(), end, bundle.layer);
    if (error != std::errc() || stop != end || bundle.layer < 0) {
      return fail(KDTREE_INVALID_FILE, "metadata \"{}\" is \"{}\", expected a number in 0 .. 2^31 - 1",
                  kLayer, *layer);
    }
  }
  if (const std::string* model = value(kModel)) bundle.model = *model;
  for (const auto& [key, text] : metadata) {
    if (key.starts_with(kProvenance)) {
      bundle.provenance.emplace(key.substr(kProvenance.size()), text);
    } else if (key != "format" && key != "version" && key != "problem" && key != kLayer && key != kModel) {
      return fail(KDTREE_INVALID_FILE, "metadata \"{}\" is unknown, expected a name that starts with \"{}\"",
                  key, kProvenance);
    }
  }
  return {};
}

Tensor* find_array(Bundle& bundle, const std::string& name) {
  for (const auto& array : problem_arrays()) {
    if (name == array.name) return &(bundle.problem.*array.tensor);
  }
  for (const auto& array : bundle_arrays()) {
    if (name == array.name) return &(bundle.*array.tensor);
  }
  return nullptr;
}

Status read_tensors(const SafetensorsFile& file, Bundle& bundle) {
  for (const auto& [name, view] : file.tensors()) {
    Tensor* tensor = find_array(bundle, name);
    if (tensor == nullptr) {
      return fail(KDTREE_INVALID_FILE, "tensor \"{}\" is unknown: bundles of version {} do not define it",
                  name, kVersion);
    }
    if (view.shape.empty()) {
      return fail(KDTREE_INVALID_FILE, "tensor \"{}\" has no dimension, expected at least one", name);
    }
    *tensor = view.to_tensor();
  }
  OwnedProblem& problem = bundle.problem;
  problem.scalars.q_dtype = static_cast<int32_t>(problem.q.dtype);
  problem.scalars.indptr_dtype = static_cast<int32_t>(problem.qo_indptr.dtype);
  problem.scalars.kv_dtype = static_cast<int32_t>(problem.kv.dtype);
  problem.scalars.kv_indices_dtype = static_cast<int32_t>(problem.kv_indices.dtype);
  return {};
}

Result<Bundle> bundle_from_file(const SafetensorsFile& file, const std::string& name) {
  Bundle bundle;
  Status status = read_metadata(file.metadata(), bundle);
  if (status) status = read_tensors(file, bundle);
  if (status) status = check_bundle(bundle);
  if (status) return bundle;
  Error error = std::move(status).error();
  error.code = KDTREE_INVALID_FILE;  // whatever a check would call it in an argument
  return with_context(std::move(error), name + ": ");
}

}  // namespace

Result<Bundle> read_bundle(const std::string& path) {
  const auto file = SafetensorsFile::open(path);
  if (!file) return tl::unexpected(file.error());
  return bundle_from_file(*file, path);
}

Result<Bundle> parse_bundle(std::span<const std::byte> bytes, const std::string& name) {
  const auto file = SafetensorsFile::parse(bytes, name);
  if (!file) return tl::unexpected(file.error());
  return bundle_from_file(*file, name);
}

Status write_bundle(const std::string& path, const Bundle& bundle) {
  if (auto status = check_bundle(bundle); !status) {
    return with_context(std::move(status).error(), path + ": ");
  }
  std::map<std::string, const Tensor*> tensors;
  for (const auto& array : problem_arrays()) {
    const Tensor& tensor = bundle.problem.*array.tensor;
    if (tensor.present()) tensors.emplace(array.name, &tensor);
  }
  for (const auto& array : bundle_arrays()) {
    const Tensor& tensor = bundle.*array.tensor;
    if (tensor.present()) tensors.emplace(array.name, &tensor);
  }
  std::map<std::string, std::string> metadata = {
      {"format", kFormat}, {"version", kVersion}, {"problem", problem_to_json(bundle.problem.scalars)}};
  if (bundle.resumable()) {
    metadata.emplace(kLayer, fmt::format("{}", bundle.layer));
    metadata.emplace(kModel, bundle.model);
  }
  for (const auto& [name, text] : bundle.provenance)
    metadata.emplace(fmt::format("{}{}", kProvenance, name), text);
  return write_safetensors(path, tensors, metadata);
}

}  // namespace kdtree
