// Run calls with a workspace do not allocate: a CUDA graph can capture them later, and a step costs no
// malloc.
#include <cstdlib>
#include <functional>
#include <new>
#include <vector>

#include <gtest/gtest.h>

#include "tests/capi/calls.h"
#include "tests/cases/case_table.h"

namespace {

thread_local int64_t allocations = 0;

void* counted(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}

}  // namespace

// Not inlined: the compiler would see free() meet new and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return counted(bytes);
}
[[gnu::noinline]] void* operator new[](std::size_t bytes) {
  return counted(bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace kdtree {
namespace {

using testing::Workspace;
using Ints = std::vector<int32_t>;
using Longs = std::vector<int64_t>;

void expect_no_allocation(const char* what, const std::function<int32_t()>& run) {
  EXPECT_EQ(run(), KDTREE_OK) << what << ": "
                              << testing::last_error();  // the first call chooses a SIMD target
  const int64_t before = allocations;
  const int32_t status = run();
  EXPECT_EQ(allocations - before, 0) << what;
  EXPECT_EQ(status, KDTREE_OK) << what;
}

TEST(Abi, RunCallsDoNotAllocate) {
  const int64_t before = allocations;
  { const Ints counted(3); }
  ASSERT_EQ(allocations, before + 1) << "allocations are not counted";

  std::vector<float> logits(2 * 500);
  for (size_t i = 0; i < logits.size(); ++i)
    logits[i] = static_cast<float>(i % 37);
  Ints candidates(2 * 8);
  std::vector<float> log_probs(2 * 8);
  auto top_k = KDTREE_INIT(kdtree_top_k_params);
  top_k.logits = logits.data();
  top_k.rows = 2;
  top_k.logits_dtype = KDTREE_DTYPE_F32;
  top_k.vocab = 500;
  top_k.k = 8;
  top_k.tokens = candidates.data();
  top_k.log_probs = log_probs.data();
  Workspace top_k_memory(kdtree_top_k_workspace_size, top_k);
  expect_no_allocation(
      "top_k", [&] { return kdtree_top_k(&top_k, top_k_memory.data(), top_k_memory.bytes(), nullptr); });

  const Ints roots = {1};
  Ints indptr(2), tokens(17), parents(17), depths(17);
  auto build = KDTREE_INIT(kdtree_tree_build_params);
  build.tokens = candidates.data();
  build.log_probs = log_probs.data();
  build.root_tokens = roots.data();
  build.batch = 1;
  build.depth = 2;
  build.k = 8;
  build.node_budget = 16;
  build.capacity = 17;
  build.qo_indptr = indptr.data();
  build.out_tokens = tokens.data();
  build.out_parents = parents.data();
  build.out_depths = depths.data();
  Workspace build_memory(kdtree_tree_build_workspace_size, build);
  expect_no_allocation("tree_build", [&] {
    return kdtree_tree_build(&build, build_memory.data(), build_memory.bytes(), nullptr);
  });

  const Ints target(17, candidates[0]);
  Ints path(3), emitted(3), count(1), next_root(1);
  auto accept = KDTREE_INIT(kdtree_tree_accept_params);
  accept.qo_indptr = indptr.data();
  accept.tokens = tokens.data();
  accept.parents = parents.data();
  accept.target_tokens = target.data();
  accept.batch = 1;
  accept.path_stride = 3;
  accept.accept_path = path.data();
  accept.accept_count = count.data();
  accept.emitted_tokens = emitted.data();
  accept.next_root = next_root.data();
  expect_no_allocation("tree_accept", [&] { return kdtree_tree_accept(&accept); });

  Ints slots(17);
  for (size_t i = 0; i < slots.size(); ++i)
    slots[i] = static_cast<int32_t>(40 - i);
  Longs src(3), dst(3);
  Ints move_indptr(2);
  auto plan = KDTREE_INIT(kdtree_compaction_plan_params);
  plan.qo_indptr = indptr.data();
  plan.accept_path = path.data();
  plan.accept_count = count.data();
  plan.draft_slots = slots.data();
  plan.path_stride = 3;
  plan.batch = 1;
  plan.slot_dtype = KDTREE_DTYPE_I32;
  plan.capacity = 3;
  plan.src = src.data();
  plan.dst = dst.data();
  plan.move_indptr = move_indptr.data();
  Workspace plan_memory(kdtree_compaction_plan_workspace_size, plan);
  expect_no_allocation("compaction_plan", [&] {
    return kdtree_compaction_plan(&plan, plan_memory.data(), plan_memory.bytes(), nullptr);
  });

  std::vector<unsigned char> pool(64 * 16);
  void* layers[] = {pool.data()};
  auto compact = KDTREE_INIT(kdtree_kv_compact_params);
  compact.layers = layers;
  compact.src = src.data();
  compact.dst = dst.data();
  compact.moves = move_indptr[1];
  compact.slots = 64;
  compact.row_bytes = 16;
  compact.num_layers = 1;
  Workspace compact_memory(kdtree_kv_compact_workspace_size, compact);
  expect_no_allocation("kv_compact", [&] {
    return kdtree_kv_compact(&compact, compact_memory.data(), compact_memory.bytes(), nullptr);
  });

  for (const CaseSpec& spec : testing::case_table()) {
    auto c = make_verify_case(spec);
    ASSERT_TRUE(c);
    const kdtree_verify_attn_params p = c->problem.params();
    Workspace memory(kdtree_verify_attn_workspace_size, p);
    expect_no_allocation(spec.name.c_str(),
                         [&] { return kdtree_verify_attn(&p, memory.data(), memory.bytes(), nullptr); });
  }
}

}  // namespace
}  // namespace kdtree
