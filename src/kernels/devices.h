// The CUDA devices of this machine.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"

namespace kdtree {

struct CudaDevice {
  std::string name;            // "NVIDIA H200"
  int compute_capability = 0;  // 90 for sm_90
  int multiprocessors = 0;
  int shared_memory_bytes = 0;  // the most a block may ask for
  int64_t memory_bytes = 0;
};

// Empty on a machine without a device. Errors: KDTREE_UNSUPPORTED in a build without CUDA; KDTREE_CUDA_ERROR
// with the runtime's reason (a driver that is missing or too old counts as no device).
Result<std::vector<CudaDevice>> cuda_devices();

// Makes device `index` the current one while it lives.
class OnCudaDevice {
 public:
  explicit OnCudaDevice(int index);
  ~OnCudaDevice();
  OnCudaDevice(const OnCudaDevice&) = delete;
  OnCudaDevice& operator=(const OnCudaDevice&) = delete;

 private:
  int before_;
};

}  // namespace kdtree
