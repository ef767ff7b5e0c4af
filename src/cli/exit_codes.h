// What the command's exit codes mean; docs/cli.md lists them for users.
#pragma once

#include <cstdint>

#include "core/status.h"

namespace kdtree::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitMismatch = 1;     // verification ran and something differs
inline constexpr int kExitUsage = 2;        // the command line is wrong
inline constexpr int kExitInput = 3;        // a file is missing, malformed or holds unusable values
inline constexpr int kExitUnavailable = 4;  // right, but not on this machine
inline constexpr int kExitInternal = 70;    // a defect of this program (EX_SOFTWARE of sysexits.h)
inline constexpr int kExitInterrupted = 130;

inline int exit_code_of(int32_t status) {
  switch (status) {
    case KDTREE_OK:
      return kExitOk;
    case KDTREE_INVALID_ARGUMENT:
      return kExitUsage;
    case KDTREE_INVALID_FILE:
    case KDTREE_INVALID_TREE:
    case KDTREE_NOT_A_NUMBER:
    case KDTREE_IO_ERROR:
      return kExitInput;
    case KDTREE_UNSUPPORTED:
    case KDTREE_BACKEND_UNAVAILABLE:
    case KDTREE_OUT_OF_MEMORY:
    case KDTREE_CUDA_ERROR:
      return kExitUnavailable;
    default:
      return kExitInternal;
  }
}

}  // namespace kdtree::cli
