// Any bytes are a bundle that every host backend runs without reading outside its arrays, or an error.
#include <vector>

#include "attention/backend.h"
#include "io/bundle.h"

namespace kdtree {
namespace {

constexpr int64_t kMostWork = 1 << 20;  // multiply-adds, and bytes of output

struct alignas(64) Line {
  std::byte bytes[64];
};

// A result of exactly the size that the strides say, where the file has none.
bool allocate_out(OwnedProblem& problem) {
  if (problem.out.present()) return true;
  const VerifyProblem& p = problem.params();
  const auto type = static_cast<DType>(p.out_dtype);
  const auto row = checked_extent_bytes(p.heads, out_head_stride(p), p.latent_dim, 1);
  const auto elements = row ? checked_extent_bytes(total_rows(p), out_token_stride(p), *row, 1) : row;
  if (!elements || *elements > kMostWork) return false;
  problem.out = Tensor(type, {*elements});
  return true;
}

bool is_small(const VerifyProblem& p) {
  const int64_t keys = max_prefix_length(p) + max_nodes(p);
  return total_rows(p) * p.heads * row_width(p) <= kMostWork / (keys + 1);
}

}  // namespace
}  // namespace kdtree

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto bundle = kdtree::parse_bundle(std::as_bytes(std::span(data, size)), "input");
  if (!bundle || !kdtree::allocate_out(bundle->problem)) return 0;
  kdtree::VerifyProblem problem = bundle->problem.params();
  if (!kdtree::is_small(problem)) return 0;
  for (const int32_t backend : {KDTREE_BACKEND_ORACLE, KDTREE_BACKEND_CPU}) {
    problem.backend = backend;
    const auto bytes = kdtree::verify_workspace_size(problem);
    if (!bytes) continue;
    std::vector<kdtree::Line> workspace((*bytes + sizeof(kdtree::Line) - 1) / sizeof(kdtree::Line));
    (void)kdtree::run_verify(problem, workspace.data(), *bytes, nullptr);
  }
  return 0;
}
