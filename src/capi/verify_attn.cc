// Verify attention through the C ABI.
#include "attention/backend.h"
#include "attention/tree_encoding.h"
#include "attention/validate.h"
#include "capi/guard.h"
#include "tree/ancestor_bits.h"

using namespace kdtree;

extern "C" {

int32_t kdtree_verify_attn_workspace_size(const kdtree_verify_attn_params* params, size_t* bytes) noexcept {
  return capi::call(params, [&](const VerifyProblem& p) -> Status {
    KDTREE_RETURN_IF_ERROR(capi::expect_pointer("bytes", bytes));
    const auto size = verify_workspace_size(p);
    if (!size) return tl::unexpected<Error>(size.error());
    *bytes = *size;
    return {};
  });
}

int32_t kdtree_verify_attn(const kdtree_verify_attn_params* params, void* workspace, size_t bytes,
                           void* stream) noexcept {
  return capi::call(params, [&](const VerifyProblem& p) { return run_verify(p, workspace, bytes, stream); });
}

}  // extern "C"
