// The weights of a checkpoint folder: model.safetensors, or shards listed in model.safetensors.index.json.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "core/status.h"
#include "io/safetensors.h"
#include "model/ops.h"

namespace kdtree {

// The files stay mapped while the object lives, and matrices that were not packed point into them.
class Weights {
 public:
  // Errors: KDTREE_IO_ERROR, KDTREE_INVALID_FILE.
  static Result<Weights> open(const std::string& folder);

  bool has(const std::string& name) const { return find(name) != nullptr; }
  // A tensor of shape [rows, columns] in bf16, f16 or f32. Errors: KDTREE_INVALID_FILE naming the tensor,
  // what it is and what was expected; KDTREE_UNSUPPORTED for another element type.
  Result<Matrix> matrix(const std::string& name, int64_t rows, int64_t columns);
  // A tensor of shape [n], as floats.
  Result<std::vector<float>> vector(const std::string& name, int64_t n) const;

  int64_t bytes() const { return bytes_; }  // of all files

 private:
  const TensorView* find(const std::string& name) const;
  Result<const TensorView*> find(const std::string& name, const std::vector<int64_t>& shape) const;

  std::string folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, const TensorView*> tensors_;
  std::deque<Tensor> copies_;  // of tensors that are not aligned in their file
  int64_t bytes_ = 0;
};

}  // namespace kdtree
