// The options that describe a generated verify problem: shared by make-case and bench.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cases/verify_case.h"
#include "core/status.h"

namespace kdtree::cli {

struct CaseOptions {
  int32_t heads = 8;
  int32_t latent_dim = 512;
  int32_t rope_dim = 64;
  int32_t batch = 0;  // 0 = the longer of the two lists
  std::vector<int64_t> prefix = {512};
  std::vector<int64_t> nodes = {17};
  std::string shape = "random";
  std::string dtype = "bf16";
  std::string kv_dtype;  // "" = dtype
  std::string index = "i32";
  std::string encoding = "bits";
  std::string draft = "pool";
  int64_t page_size = 1;
  float logit_cap = 0.0f;
  uint64_t seed = 1;
};

void add_case_options(CLI::App& command, CaseOptions& options);

// Errors: KDTREE_INVALID_ARGUMENT for lists whose lengths disagree; KDTREE_OUT_OF_MEMORY, before anything is
// allocated, for a problem that this machine cannot hold.
Result<CaseSpec> case_spec(const CaseOptions& options);

// The options as a command line that makes the same case, every default written out.
std::string command_line(const CaseOptions& options);

}  // namespace kdtree::cli
