// Prints what launches ask for beside what ptxas knows, for tools/cuda_gate: a kernel's name, its core ("-":
// it has one), threads, and bytes of dynamic shared memory with the largest sizes of DeepSeek V3.
#include <cstdio>

#include "kernels/verify_attn_flash_roles.cuh"
#include "kernels/verify_attn_flash_slabs.cuh"

namespace {

using namespace kdtree::cuda;

void row(const char* kernel, const char* core, int threads, size_t shared_bytes) {
  std::printf("%s %s %d %zu\n", kernel, core, threads, shared_bytes);
}

template <class Core>
void flash_row(const char* name) {
  row("verify_attn_flash", name, Core::kThreads, sizeof(typename Core::Shared));
}

}  // namespace

int main() {
  row("tree_bits", "-", kTreeBitsThreads, 0);
  row("verify_attn_naive", "-", kWarp, sizeof(float) * (3 * kLatent + kRope));
  flash_row<FlashSlabs<__nv_bfloat16, false>>("slabs");
  flash_row<FlashRoles<__nv_bfloat16, false, SmallRings>>("small-roles");
  flash_row<FlashRoles<__nv_bfloat16, false, LargeRings>>("large-roles");
  row("merge_partials", "-", kMergeThreads, 0);
}
