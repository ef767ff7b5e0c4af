// The random checkpoints of tests/model/golden, with the logits that Hugging Face's transformers computes for
// them (make_golden.py).
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "io/safetensors.h"
#include "tests/temporary_directory.h"

namespace kdtree {

inline std::string golden(const std::string& name) {
  return fmt::format("{}/tests/model/golden/{}", KDTREE_SOURCE_DIR, name);
}

inline Tensor golden_tensor(const std::string& name, const std::string& tensor) {
  const auto file = SafetensorsFile::open(golden(name) + "/expected.safetensors");
  return file->find(tensor)->to_tensor();
}

// The other configurations that the results of a checkpoint's weights are known for, as "<tensor>_<name>": by
// name, keys of config.json and their values.
inline std::map<std::string, nlohmann::json> golden_variants(const std::string& name) {
  return nlohmann::json::parse(std::ifstream(golden(name) + "/variants.json"));
}

// A copy of a checkpoint that a test may spoil; it goes away with the object.
class CheckpointCopy : public TemporaryDirectory {
 public:
  explicit CheckpointCopy(const std::string& name) {
    for (const auto& entry : std::filesystem::directory_iterator(golden(name)))
      std::filesystem::copy(entry.path(), file(entry.path().filename().string()));
  }

  // Changes a file of JSON in place.
  void edit(const std::string& name, const std::function<void(nlohmann::json&)>& change) const {
    auto json = nlohmann::json::parse(std::ifstream(file(name)));
    change(json);
    std::ofstream(file(name)) << json.dump();
  }
};

}  // namespace kdtree
