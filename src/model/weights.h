// The weights of a checkpoint folder: model.safetensors, or shards listed in model.safetensors.index.json.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "io/safetensors.h"
#include "model/ops.h"

namespace kdtree {

// FNV-1a over 64 bits, going on from an earlier hash: it tells files apart that nobody made to collide.
uint64_t fnv1a(std::span<const std::byte> bytes, uint64_t seed = 14695981039346656037u);

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
  // Of every tensor's name, type, shape and bytes, whichever files they are in; goes on from `seed`.
  uint64_t hash(uint64_t seed) const;

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
