// Reading a config.json key by key: every error names the file, the key, its value and what was expected.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/status.h"

namespace kdtree {

class JsonObject {
 public:
  // Errors: KDTREE_IO_ERROR; KDTREE_INVALID_FILE when the file holds no JSON object.
  static Result<JsonObject> read(const std::string& path);

  // A key that is null counts as absent, as in Hugging Face's configurations.
  bool has(const std::string& key) const;
  // The object under `key`, empty when absent. Errors here and below: KDTREE_INVALID_FILE.
  Result<JsonObject> object(const std::string& key) const;

  // With a fallback the key may be absent.
  Result<int64_t> integer(const std::string& key, int64_t least, int64_t most,
                          std::optional<int64_t> fallback = std::nullopt) const;
  // Finite and in [least, most].
  Result<double> number(const std::string& key, double least, double most,
                        std::optional<double> fallback = std::nullopt) const;
  Result<bool> boolean(const std::string& key, bool fallback) const;
  Result<std::string> text(const std::string& key, const std::string& fallback) const;
  // A list of integers, or one; empty when absent.
  Result<std::vector<int64_t>> integers(const std::string& key, int64_t least, int64_t most) const;
  Result<std::vector<std::string>> texts(const std::string& key) const;
  // An object whose values are texts.
  Result<std::map<std::string, std::string>> text_map(const std::string& key) const;

  // KDTREE_UNSUPPORTED: "<file>: <key> is <value>, expected <expected>".
  tl::unexpected<Error> unsupported(const std::string& key, const std::string& expected) const;
  // The same with KDTREE_INVALID_FILE.
  tl::unexpected<Error> invalid(const std::string& key, const std::string& expected) const;
  const std::string& name() const { return name_; }

 private:
  JsonObject(nlohmann::json json, std::string name) : json_(std::move(json)), name_(std::move(name)) {}
  std::string describe(const std::string& key) const;

  nlohmann::json json_;  // an object
  std::string name_;     // the file's, and the path of keys to this object
};

}  // namespace kdtree
