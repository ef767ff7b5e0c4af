// A bundle: one recorded verify step in a safetensors file. Format: docs/bundle.md.
#pragma once

#include <map>
#include <span>
#include <string>

#include "attention/owned_problem.h"
#include "core/status.h"

namespace kdtree {

struct Bundle {
  OwnedProblem problem;  // `out` and `lse`, when present, are the recorded result of some implementation
  Tensor tokens;         // [T] i32 draft tokens; optional
  Tensor target_tokens;  // [T] i32 the target model's token at each row; optional
  Tensor accept_path;    // [b, longest path] i32 local nodes, -1 padded; optional
  Tensor accept_count;   // [b] i32; optional, with accept_path
  std::map<std::string, std::string> provenance;  // free text: who made it, from what, when
};

// A bundle that is read is complete: every array its fields ask for is there, of the right type, at least as
// long as the sizes, strides and indptr arrays say, and passes validate_fields and validate_contents, so any
// backend may run it. Its `backend` and `plan` are the defaults: a bundle does not record them.
// Errors: KDTREE_IO_ERROR (the operating system's reason), KDTREE_INVALID_FILE (what is wrong and where).
Result<Bundle> read_bundle(const std::string& path);
// The same over bytes in memory. `name` stands before every message.
Result<Bundle> parse_bundle(std::span<const std::byte> bytes, const std::string& name);
// Writes a temporary file beside `path` and renames it: an error leaves what was there. Writes only what
// read_bundle would take; errors are those of validate_fields and validate_contents besides.
Status write_bundle(const std::string& path, const Bundle& bundle);

}  // namespace kdtree
