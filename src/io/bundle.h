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
  Tensor eos_tokens;     // i32 tokens that end an accepted path; optional

  // What it takes to go on behind the recorded attention, with the model, to the target tokens: all or none,
  // with the four arrays above and drafts in the pool.
  int32_t layer = -1;  // whose attention this is; -1: none of this is there
  std::string model;   // TargetModel::fingerprint()
  Tensor residual;     // [T, hidden] f32 what the attention block's output is added to
  Tensor later_kv;  // [layers behind `layer`, kv_slots, latent + rope] as kv; the drafts' rows are not read
  Tensor temperature;  // [b] f64 how target tokens were sampled (model/sampling.h)
  Tensor top_k;        // [b] i32
  Tensor top_p;        // [b] f64
  Tensor min_p;        // [b] f64
  Tensor seed;         // [b] u64
  Tensor request;      // [b] u64 numbers of the requests, which their random numbers depend on

  std::map<std::string, std::string> provenance;  // free text: who made it, from what, when

  bool resumable() const { return layer >= 0; }
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
