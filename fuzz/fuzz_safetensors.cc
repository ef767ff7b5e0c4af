// Any bytes are a safetensors file or an error.
#include <cstdlib>

#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = kdtree::SafetensorsFile::parse(std::as_bytes(std::span(data, size)), "input");
  if (!file) return 0;
  for (const auto& [name, view] : file->tensors()) {
    const kdtree::Tensor tensor = view.to_tensor();
    if (static_cast<size_t>(tensor.size() * dtype_size(tensor.dtype)) != tensor.bytes.size()) std::abort();
  }
  return 0;
}
