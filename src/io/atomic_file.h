// Writing a file so that a reader sees the old contents or the new, never a part.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "core/status.h"

namespace kdtree {

// Writes the concatenation of `parts` to a temporary file beside `path`, flushes it to the device and
// renames it over `path`. On failure `path` keeps what it had and the temporary file is removed.
// Errors: KDTREE_IO_ERROR with the operating system's reason.
Status write_file_atomically(const std::string& path, std::span<const std::span<const std::byte>> parts);

// Whether the above can begin, for those who would rather know before hours of work: creates the temporary
// file and removes it. A `path` that exists must be a regular file. Errors: KDTREE_IO_ERROR.
Status check_writable(const std::string& path);

}  // namespace kdtree
