// The header of a .npy file: the literal of a Python dict.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace kdtree {

struct NpyHeader {
  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;  // none negative
};

// {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
// Strict: these three keys, once each, in any order, and values of just these forms. Errors:
// KDTREE_INVALID_FILE with the byte where reading stopped.
Result<NpyHeader> parse_npy_header(std::string_view text);

}  // namespace kdtree
