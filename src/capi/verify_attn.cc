// Verify attention through the C ABI.
#include "attention/backend.h"
#include "capi/guard.h"

using namespace kdtree;

extern "C" {

int32_t kdtree_verify_attn_workspace_size(const kdtree_verify_attn_params* params, size_t* bytes) noexcept {
  return capi::call(params, [&](const VerifyProblem& p) -> Status {
    return capi::answer_size(verify_workspace_size(p), bytes);
  });
}

int32_t kdtree_verify_attn(const kdtree_verify_attn_params* params, void* workspace, size_t bytes,
                           void* stream) noexcept {
  return capi::call(params, [&](const VerifyProblem& p) { return run_verify(p, workspace, bytes, stream); });
}

}  // extern "C"
