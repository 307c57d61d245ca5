// Public kernels on streams of a CUDA device: their bodies run in the stream's order, a bad token
// or target fails the stream with the CPU's words, and host streams run the CPU's bodies.
#include <gtest/gtest.h>

#include "zero3d/device/cuda/cuda_device.h"
#include "zero3d/kernels/elementwise.h"
#include "zero3d/kernels/embedding.h"
#include "zero3d/kernels/gemm.h"
#include "zero3d/kernels/loss.h"
#include "zero3d/kernels/optimizer.h"
#include "zero3d/tests/support/host_access.h"

namespace zero3d::kernels::test {
namespace {

class CudaDispatch : public ::testing::Test {
 protected:
  Tensor floats(const Shape& shape, float value) {
    Tensor tensor(device->memory(), *stream, DType::f32, shape, Category::other);
    fill(*stream, tensor, value);
    return tensor;
  }
  Tensor integers(const std::vector<std::int32_t>& values) {
    Tensor tensor(device->memory(), *stream, DType::i32,
                  Shape{static_cast<std::int64_t>(values.size())}, Category::other);
    zero3d::test::upload(*stream, tensor, [&](const View& host) {
      std::copy(values.begin(), values.end(), host.as<std::int32_t>());
    });
    return tensor;
  }
  std::vector<float> values(const Tensor& tensor) {
    const Readback copy = zero3d::test::read_back(*stream, tensor.view());
    const float* data = copy.wait().as<float>();
    return {data, data + tensor.view().numel()};
  }
  std::string failure() {
    try {
      stream->synchronize();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
      return error.what();
    }
    return "";
  }

  const std::unique_ptr<Device> device = make_cuda_device({.check_hazards = true});
  std::unique_ptr<Stream> stream = device->create_stream("compute");
};

TEST_F(CudaDispatch, KernelsRunInTheStreamsOrder) {
  const Tensor a = floats({3, 4}, 2), b = floats({4, 5}, 0.5f), c = floats({3, 5}, 0);
  const Tensor m = floats({3, 5}, 0), v = floats({3, 5}, 0);
  gemm(*stream, {.a = a, .b = b, .c = c});
  scale(*stream, c, 3);
  EXPECT_EQ(values(c), std::vector<float>(15, 12.0f));
  const UpdateSlice slice{c, floats({3, 5}, 1), {m, v}, {}};
  adam(*stream, {&slice, 1}, {1, 0.1f, 0.001f, 1, 1e-8f, 0.01f, 0, true}, choose_isa());
  const std::vector<float> updated = values(c);
  EXPECT_LT(updated[0], 12.0f);
  EXPECT_EQ(updated, std::vector<float>(15, updated[0]));
}

TEST_F(CudaDispatch, ATokenOutsideTheVocabularyFailsTheStream) {
  const Tensor table = floats({5, 8}, 1), out = floats({3, 8}, 0);
  embedding_forward(*stream, integers({4, 0, 5}), table, {}, out);
  const std::string said = failure();
  for (const std::string part : {"embedding_forward", "[0, 5)", "token 2 is 5"})
    EXPECT_NE(said.find(part), std::string::npos) << said;
}

TEST_F(CudaDispatch, ATargetOutsideTheVocabularyFailsTheStream) {
  const Tensor logits = floats({2, 9}, 1), lse = floats({2}, 0), loss = floats({2}, 0);
  cross_entropy_forward(*stream, logits, integers({kIgnoreTarget, -1}), lse, loss);
  const std::string said = failure();
  for (const std::string part : {"targets in [0, 9)", "target 1 is -1"})
    EXPECT_NE(said.find(part), std::string::npos) << said;
}

TEST_F(CudaDispatch, AHostStreamRunsTheCpusBodies) {
  const auto host = device->create_host_stream("host");
  Tensor x(device->memory(Tier::pinned), *host, DType::f32, Shape{7}, Category::other);
  fill(*host, x, 2);
  scale(*host, x, 4);
  host->synchronize();
  const float* data = device->host_read(x.view()).as<float>();
  EXPECT_EQ(std::vector<float>(data, data + 7), std::vector<float>(7, 8.0f));
}

}  // namespace
}  // namespace zero3d::kernels::test
