// Any bytes are a .npy file or an error.
#include <cstdlib>

#include "io/npy.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tensor = kdtree::parse_npy(std::as_bytes(std::span(data, size)), "input");
  if (!tensor || !tensor->present()) return 0;
  if (static_cast<size_t>(tensor->size() * dtype_size(tensor->dtype)) != tensor->bytes.size()) std::abort();
  return 0;
}
