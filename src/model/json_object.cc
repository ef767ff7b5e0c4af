#include "model/json_object.h"

#include <cmath>
#include <limits>

#include "io/mapped_file.h"

namespace kdtree {
namespace {

// More than any configuration needs; an index of a model's weights has about 100,000 entries.
constexpr size_t kMostBytes = size_t{64} << 20;
// Copying and printing JSON is recursive.
constexpr int kMostDepth = 32;

std::optional<int64_t> as_integer(const nlohmann::json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return std::nullopt;
  }
  return value.get<int64_t>();
}

std::string integer_range(int64_t least, int64_t most) {
  return fmt::format("an integer in {} .. {}", least, most);
}

}  // namespace

Result<JsonObject> JsonObject::read(const std::string& path) {
  const auto file = MappedFile::open(path);
  if (!file) return tl::unexpected<Error>(file.error());
  if (file->bytes().size() > kMostBytes) {
    return fail(KDTREE_INVALID_FILE, "{}: {} bytes, expected at most {}", path, file->bytes().size(),
                kMostBytes);
  }
  const auto* begin = reinterpret_cast<const char*>(file->bytes().data());
  bool too_deep = false;
  const auto check_depth = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    too_deep = too_deep || depth > kMostDepth;
    return !too_deep;
  };
  auto json = nlohmann::json::parse(begin, begin + file->bytes().size(), check_depth, false);
  if (too_deep) {
    return fail(KDTREE_INVALID_FILE, "{}: nested more than {} deep, expected a configuration", path,
                kMostDepth);
  }
  if (!json.is_object()) return fail(KDTREE_INVALID_FILE, "{}: not JSON, expected a JSON object", path);
  return JsonObject(std::move(json), path);
}

bool JsonObject::has(const std::string& key) const {
  const auto found = json_.find(key);
  return found != json_.end() && !found->is_null();
}

std::string JsonObject::describe(const std::string& key) const {
  if (!has(key)) return fmt::format("{}: {} is absent", name_, key);
  std::string value = json_[key].dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (value.size() > 60) value.replace(57, std::string::npos, "...");
  return fmt::format("{}: {} is {}", name_, key, value);
}

tl::unexpected<Error> JsonObject::unsupported(const std::string& key, const std::string& expected) const {
  return fail(KDTREE_UNSUPPORTED, "{}, expected {}", describe(key), expected);
}

tl::unexpected<Error> JsonObject::invalid(const std::string& key, const std::string& expected) const {
  return fail(KDTREE_INVALID_FILE, "{}, expected {}", describe(key), expected);
}

Result<JsonObject> JsonObject::object(const std::string& key) const {
  const std::string inner = fmt::format("{}: {}", name_, key);
  if (!has(key)) return JsonObject(nlohmann::json::object(), inner);
  if (!json_[key].is_object()) return invalid(key, "an object");
  return JsonObject(json_[key], inner);
}

Result<int64_t> JsonObject::integer(const std::string& key, int64_t least, int64_t most,
                                    std::optional<int64_t> fallback) const {
  if (!has(key) && fallback) return *fallback;
  const auto value = has(key) ? as_integer(json_[key]) : std::nullopt;
  if (!value || *value < least || *value > most) return invalid(key, integer_range(least, most));
  return *value;
}

Result<double> JsonObject::number(const std::string& key, double least, double most,
                                  std::optional<double> fallback) const {
  if (!has(key) && fallback) return *fallback;
  const double value = has(key) && json_[key].is_number() ? json_[key].get<double>() : std::nan("");
  if (!(value >= least && value <= most))
    return invalid(key, fmt::format("a number in {} .. {}", least, most));
  return value;
}

Result<bool> JsonObject::boolean(const std::string& key, bool fallback) const {
  if (!has(key)) return fallback;
  if (!json_[key].is_boolean()) return invalid(key, "true or false");
  return json_[key].get<bool>();
}

Result<std::string> JsonObject::text(const std::string& key, const std::string& fallback) const {
  if (!has(key)) return fallback;
  if (!json_[key].is_string()) return invalid(key, "text");
  return json_[key].get<std::string>();
}

Result<std::vector<int64_t>> JsonObject::integers(const std::string& key, int64_t least, int64_t most) const {
  std::vector<int64_t> values;
  if (!has(key)) return values;
  const nlohmann::json list = json_[key].is_array() ? json_[key] : nlohmann::json::array({json_[key]});
  for (const auto& element : list) {
    const auto value = as_integer(element);
    if (!value || *value < least || *value > most) {
      return invalid(key, integer_range(least, most) + ", or a list of such");
    }
    values.push_back(*value);
  }
  return values;
}

Result<std::vector<std::string>> JsonObject::texts(const std::string& key) const {
  std::vector<std::string> values;
  if (!has(key)) return values;
  const bool list = json_[key].is_array();
  for (const auto& element : list ? json_[key] : nlohmann::json::array()) {
    if (!element.is_string()) return invalid(key, "a list of texts");
    values.push_back(element.get<std::string>());
  }
  if (!list) return invalid(key, "a list of texts");
  return values;
}

Result<std::map<std::string, std::string>> JsonObject::text_map(const std::string& key) const {
  std::map<std::string, std::string> values;
  if (!has(key) || !json_[key].is_object()) return invalid(key, "an object of texts");
  for (const auto& [name, value] : json_[key].items()) {
    if (!value.is_string()) return invalid(key, fmt::format("text at \"{}\"", name));
    values.emplace(name, value.get<std::string>());
  }
  return values;
}

}  // namespace kdtree
