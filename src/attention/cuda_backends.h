// The CUDA backends as the table of backends sees them; src/kernels implements them. Every array of their
// problems is device memory, so only fields are checked: what the arrays say is the caller's word.
#pragma once

#include "attention/backend.h"
#include "core/scratch.h"

namespace kdtree {

// The number of the calling thread's current device, -1 where there is none.
int current_cuda_device();
// Available where the current device loads its kernels; else the reason.
Backend cuda_backend(int32_t id, const char* name);
// KDTREE_UNSUPPORTED for sizes or element types that the backend lacks, KDTREE_INVALID_ARGUMENT for bounds
// that are missing. After validate_fields.
Status cuda_supports(const VerifyProblem& problem, int32_t backend);
// The work is cut for as many multiprocessors as the current device has, or for another number that a test
// asks for. Errors: KDTREE_CUDA_ERROR.
Status cuda_scratch(const VerifyProblem& problem, int32_t backend, Scratch& scratch, int multiprocessors = 0);
// Enqueues the kernels. Neither allocates nor synchronises. Errors: KDTREE_CUDA_ERROR naming kernel, grid,
// shared memory and device.
Status run_cuda(const VerifyProblem& problem, int32_t backend, Scratch& scratch, void* stream,
                int multiprocessors = 0);

}  // namespace kdtree
