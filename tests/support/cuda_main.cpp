// The main of tests that need a GPU: without one they are skipped.
#include <gtest/gtest.h>

#include <cstdio>

#include "zero3d/device/cuda/cuda_device.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (zero3d::cuda_device_count() == 0) {
    std::puts("skipped: no GPU, and no emulator of CUDA in LD_LIBRARY_PATH (tools/cuda_test.sh)");
    return 77;
  }
  return RUN_ALL_TESTS();
}
