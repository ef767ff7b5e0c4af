#include "kernels/devices.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace kdtree
