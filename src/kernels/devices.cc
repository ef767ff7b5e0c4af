#include "kernels/devices.h"

#ifdef KDTREE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace kdtree {

#ifdef KDTREE_CUDA

namespace {

Status check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return {};
  return fail(KDTREE_CUDA_ERROR, "{}: {} ({})", call, cudaGetErrorString(error), cudaGetErrorName(error));
}

int get_device() {
  int index = 0;
  (void)cudaGetDevice(&index);
  return index;
}

void set_device(int index) {
  (void)cudaSetDevice(index);
}

}  // namespace

Result<std::vector<CudaDevice>> cuda_devices() {
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted == cudaErrorNoDevice || counted == cudaErrorInsufficientDriver)
    return std::vector<CudaDevice>{};
  KDTREE_RETURN_IF_ERROR(check(counted, "cudaGetDeviceCount"));
  std::vector<CudaDevice> devices;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    KDTREE_RETURN_IF_ERROR(check(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties"));
    devices.push_back({properties.name, 10 * properties.major + properties.minor,
                       properties.multiProcessorCount, static_cast<int>(properties.sharedMemPerBlockOptin),
                       static_cast<int64_t>(properties.totalGlobalMem)});
  }
  return devices;
}

#else

namespace {

int get_device() {
  return 0;
}

void set_device(int /*index*/) {}

}  // namespace

Result<std::vector<CudaDevice>> cuda_devices() {
  return fail(KDTREE_UNSUPPORTED, "this build has no CUDA (required: nvcc at build time, the cuda preset)");
}

#endif

OnCudaDevice::OnCudaDevice(int index) : before_(get_device()) {
  set_device(index);
}

OnCudaDevice::~OnCudaDevice() {
  set_device(before_);
}

}  // namespace kdtree
