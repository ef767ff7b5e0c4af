// The measurements of `kdtree bench`: attention backends on one problem, tree operations on one tree.
#pragma once

#include <string>
#include <vector>

#include "attention/backend.h"
#include "cases/verify_case.h"
#include "cli/timing.h"
#include "core/status.h"

namespace kdtree::cli {

struct BenchCell {
  std::string bench;    // "verify-attn"
  std::string backend;  // "cpu"
  Timing timing;
  double flop = 0.0;  // work of one run; one of the three is set
  double bytes = 0.0;
  double items = 0.0;    // nodes
  std::string baseline;  // "" = none
  double baseline_us = 0.0;
};

// The oracle first: it is the baseline of the others. Where nobody `named` them, backends that lack the case
// are left out, which stderr says.
Result<std::vector<BenchCell>> bench_attention(VerifyCase& verify_case, const std::vector<Backend>& chosen,
                                               bool named, int repeat);

struct TreeBenchSize {
  int64_t positions = 7;
  int64_t vocab = 32000;
  int32_t budget = 16;
  uint64_t seed = 1;
};

// top-k of the logits, best-first build, compile (depths, bits, links) and the acceptance walk.
Result<std::vector<BenchCell>> bench_tree(const TreeBenchSize& size, int repeat);

}  // namespace kdtree::cli
