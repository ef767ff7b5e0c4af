// Safetensors files (https://github.com/huggingface/safetensors, format of version 0.4): 8 bytes of
// little-endian header length, a JSON header, the tensors' bytes.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"

namespace kdtree {

// A tensor inside a mapped file: shape and bytes, not owned. The bytes may be misaligned for their type:
// to_tensor() makes them readable.
struct TensorView {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;

  int64_t size() const { return static_cast<int64_t>(bytes.size()) / dtype_size(dtype); }
  // An aligned copy.
  Tensor to_tensor() const;
};

class MappedFile;

// A file that stays mapped while the object lives. Every offset is checked before use. The element types are
// those of DType; BOOL is read as u8.
class SafetensorsFile {
 public:
  // Errors: KDTREE_IO_ERROR, KDTREE_INVALID_FILE naming the tensor and the byte range.
  static Result<SafetensorsFile> open(const std::string& path);
  // Parses bytes that the caller keeps alive. `name` stands before every message.
  static Result<SafetensorsFile> parse(std::span<const std::byte> bytes, const std::string& name);

  const std::map<std::string, TensorView>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // nullptr when there is none of that name.
  const TensorView* find(const std::string& name) const;

 private:
  std::shared_ptr<const MappedFile> file_;
  std::map<std::string, TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Atomic: writes beside `path`, then renames. The bytes are those the Python package writes (tensors by
// element type, largest alignment first, then by name). Errors: KDTREE_IO_ERROR; KDTREE_INVALID_ARGUMENT for
// text that is not UTF-8, the name "__metadata__", or a tensor whose bytes do not fit its shape.
Status write_safetensors(const std::string& path, const std::map<std::string, const Tensor*>& tensors,
                         const std::map<std::string, std::string>& metadata);

}  // namespace kdtree
