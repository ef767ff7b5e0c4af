// NumPy .npy files, versions 1.0 to 3.0
// (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html): C order, little-endian f2, f4,
// f8, i4, i8, u1, u8 and bool (as u8).
#pragma once

#include <span>
#include <string>

#include "core/status.h"
#include "core/tensor.h"

namespace kdtree {

// Errors: KDTREE_IO_ERROR, KDTREE_INVALID_FILE (what was seen and expected).
Result<Tensor> read_npy(const std::string& path);
// `name` stands before every message.
Result<Tensor> parse_npy(std::span<const std::byte> bytes, const std::string& name);
// Atomic. The bytes are those of numpy.save. Errors: KDTREE_IO_ERROR; KDTREE_INVALID_ARGUMENT for a type
// NumPy lacks (bf16, e4m3).
Status write_npy(const std::string& path, const Tensor& tensor);

}  // namespace kdtree
