#include "kernels/devices.h"

#include <gtest/gtest.h>

#include "attention/backend.h"
#include "attention/cuda_backends.h"

namespace kdtree {
namespace {

TEST(CudaDevices, AreListedOrTheReasonIsGiven) {
  const auto devices = cuda_devices();
#ifdef KDTREE_CUDA
  ASSERT_TRUE(devices) << devices.error().message;
  for (const CudaDevice& device : *devices) {
    EXPECT_FALSE(device.name.empty());
    EXPECT_GE(device.compute_capability, 50);
    EXPECT_GE(device.multiprocessors, 1);
    EXPECT_GE(device.shared_memory_bytes, 48 * 1024);
    EXPECT_GT(device.memory_bytes, 0);
  }
#else
  ASSERT_FALSE(devices);
  EXPECT_EQ(devices.error().code, KDTREE_UNSUPPORTED);
  EXPECT_NE(devices.error().message.find("required: nvcc"), std::string::npos);
#endif
}

#ifdef KDTREE_CUDA
TEST(CudaDevices, EachSaysWhatItRuns) {
  const auto devices = cuda_devices();
  ASSERT_TRUE(devices) << devices.error().message;
  const int before = current_cuda_device();
  for (size_t i = 0; i < devices->size(); ++i) {
    const OnCudaDevice on(static_cast<int>(i));
    EXPECT_EQ(current_cuda_device(), static_cast<int>(i));
    const CudaDevice& device = (*devices)[i];
    for (const Backend& backend : backends()) {
      if (backend.id < KDTREE_BACKEND_CUDA_NAIVE || backend.id == KDTREE_BACKEND_CUDA_SM90) continue;
      EXPECT_NE(backend.reason.find(device.name), std::string::npos) << backend.reason;
      EXPECT_TRUE(device.compute_capability >= 80 || !backend.available) << backend.reason;
    }
  }
  EXPECT_EQ(current_cuda_device(), before);
}
#endif

}  // namespace
}  // namespace kdtree
