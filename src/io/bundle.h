// A bundle: one recorded verify step in a safetensors file. Format: docs/bundle.md.
#pragma once

#include <map>
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

// Errors: KDTREE_IO_ERROR (the operating system's reason), KDTREE_INVALID_FILE (what is wrong and where).
// A bundle that is read is structurally complete, and its arrays are as long as its sizes say.
Result<Bundle> read_bundle(const std::string& path);
// Writes a temporary file beside `path` and renames it: an error leaves what was there.
Status write_bundle(const std::string& path, const Bundle& bundle);

}  // namespace kdtree
