// A verify problem of the host on the device: its arrays copied there, and its outputs back. For the command,
// tests and benches; servers have their arrays on the device already.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "attention/owned_problem.h"
#include "core/status.h"

namespace kdtree {

// Bytes of device memory. Errors: KDTREE_CUDA_ERROR, KDTREE_UNSUPPORTED in a build without CUDA.
class DeviceMemory {
 public:
  static Result<DeviceMemory> create(size_t bytes);

  void* data() const { return memory_.get(); }
  size_t size() const { return bytes_; }
  // The whole; waits for the device.
  Status copy_from_host(const void* from);
  Status copy_to_host(void* to) const;
  Status fill(int byte);

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  std::unique_ptr<void, Free> memory_;
  size_t bytes_ = 0;
};

// Until all that was enqueued is done. Errors: KDTREE_CUDA_ERROR, from any kernel before.
Status wait_for_device();

class DeviceProblem {
 public:
  // Copies the arrays of `problem`, and `out` and `lse` (which may be absent) with what they hold. `params`
  // are those of the problem on the host, with the strides and types of these outputs.
  static Result<DeviceProblem> create(const OwnedProblem& problem, const VerifyProblem& params,
                                      const Tensor& out, const Tensor& lse);

  // With KDTREE_MEMORY_CUDA, and the bounds that the host's arrays say.
  const VerifyProblem& params() const { return params_; }
  // Waits for the device; the outputs, into tensors like those of create().
  Status read_outputs(Tensor& out, Tensor& lse) const;

 private:
  static constexpr size_t kOut = 11;
  static constexpr size_t kLse = 12;
  static constexpr size_t kArrays = 13;

  std::array<DeviceMemory, kArrays> arrays_;
  VerifyProblem params_ = kdtree_init<VerifyProblem>();
};

}  // namespace kdtree
