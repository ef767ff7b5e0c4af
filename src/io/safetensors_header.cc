#include "io/safetensors_header.h"

#include <limits>

#include <nlohmann/json.hpp>

namespace kdtree {
namespace {

using Json = nlohmann::json;

// {"__metadata__": {name: text, ...}, name: {"dtype": text, "shape": [...], "data_offsets": [...]}, ...}
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  SafetensorsHeader header;
  std::string message;  // of the first error

  bool null() override { return unexpected("null"); }
  bool boolean(bool value) override { return unexpected(value ? "true" : "false"); }
  bool number_float(double, const std::string& text) override { return unexpected(text); }
  bool number_integer(int64_t value) override { return unexpected(std::to_string(value)); }
  bool binary(Json::binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (place_ != Place::array) return unexpected(std::to_string(value));
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return reject("{} is {}, expected at most 2^63 - 1", field_, value);
    }
    numbers().push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::metadata) {
      header.metadata.emplace(field_, std::move(value));
      return true;
    }
    if (place_ != Place::tensor || field_ != "dtype") return unexpected('"' + value + '"');
    entry_.dtype = std::move(value);
    return true;
  }

  bool key(std::string& value) override {
    bool repeated = false;
    if (place_ == Place::root) {
      name_ = std::move(value);
      repeated = name_ == "__metadata__" ? metadata_seen_ : header.tensors.contains(name_);
      return !repeated || reject("appears twice");
    }
    field_ = std::move(value);
    if (place_ == Place::metadata) {
      repeated = header.metadata.contains(field_);
    } else if (field_ == "dtype") {
      repeated = entry_.dtype.has_value();
    } else if (field_ == "shape") {
      repeated = entry_.shape.has_value();
    } else if (field_ == "data_offsets") {
      repeated = entry_.data_offsets.has_value();
    } else {
      return reject("has a field \"{}\", expected dtype, shape and data_offsets", field_);
    }
    return !repeated || reject("field \"{}\" appears twice", field_);
  }

  bool start_object(size_t) override {
    if (place_ == Place::document) {
      place_ = Place::root;
    } else if (place_ == Place::root && name_ == "__metadata__") {
      metadata_seen_ = true;
      place_ = Place::metadata;
    } else if (place_ == Place::root) {
      entry_ = {};
      place_ = Place::tensor;
    } else {
      return unexpected("an object");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      if (!entry_.dtype) return reject("has no dtype");
      if (!entry_.shape) return reject("has no shape");
      if (!entry_.data_offsets) return reject("has no data_offsets");
      header.tensors.emplace(name_, std::move(entry_));
    }
    place_ = place_ == Place::root ? Place::document : Place::root;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::tensor || field_ == "dtype") return unexpected("an array");
    (field_ == "shape" ? entry_.shape : entry_.data_offsets).emplace();
    place_ = Place::array;
    return true;
  }

  bool end_array() override {
    place_ = Place::tensor;
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    message = fmt::format("the header is not JSON: {}", error.what());
    return false;
  }

 private:
  enum class Place { document, root, metadata, tensor, array };

  std::vector<int64_t>& numbers() { return *(field_ == "shape" ? entry_.shape : entry_.data_offsets); }

  template <class... Args>
  bool reject(fmt::format_string<Args...> format, Args&&... args) {
    message = name_ == "__metadata__" ? "__metadata__: " : fmt::format("tensor \"{}\": ", name_);
    message += fmt::format(format, std::forward<Args>(args)...);
    return false;
  }

  bool unexpected(const std::string& value) {
    switch (place_) {
      case Place::document:
        message = fmt::format("the header is {}, expected an object", value);
        return false;
      case Place::root:
        return reject("is {}, expected an object", value);
      case Place::metadata:
        return reject("\"{}\" is {}, expected a string", field_, value);
      case Place::tensor:
        return reject("{} is {}, expected {}", field_, value,
                      field_ == "dtype" ? "a string" : "an array of integers");
      case Place::array:
        return reject("{} has {}, expected a non-negative integer", field_, value);
    }
    return false;
  }

  Place place_ = Place::document;
  std::string name_;   // key in the root
  std::string field_;  // key below it
  bool metadata_seen_ = false;
  SafetensorsEntry entry_;
};

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json) {
  // The parser takes a NUL for the end of its input, which would hide what follows.
  const size_t nul = json.find('\0');
  if (nul != std::string_view::npos) {
    return fail(KDTREE_INVALID_FILE, "the header has a NUL at byte {}, expected JSON text", nul);
  }
  if (!json.starts_with('{')) {
    return fail(KDTREE_INVALID_FILE, "the header starts with \"{}\", expected \"{{\"", json.substr(0, 1));
  }
  HeaderReader reader;
  if (!Json::sax_parse(json.begin(), json.end(), &reader)) {
    return fail(KDTREE_INVALID_FILE, "{}", reader.message);
  }
  return std::move(reader.header);
}

}  // namespace kdtree
