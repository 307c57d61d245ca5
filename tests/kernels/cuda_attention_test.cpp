// Attention on a GPU against the CPU's: odd sequences, grouped heads, windows, dropout and head
// dims from 8 to 256. Both sum in fp32, in orders of their own; dropout keeps the same
// probabilities.
#include "zero3d/kernels/cpu/attention.h"
#include "zero3d/tests/kernels/cuda_kit.h"

namespace zero3d::kernels::test {
namespace {

struct AttentionCase {
  std::int64_t batch, seq, heads, kv_heads, head_dim, window;
  float dropout;
};

bool on_tensor_cores(DType dtype, std::int64_t head_dim, std::int64_t offset) {
  const bool taken = head_dim == 64 || head_dim == 96 || head_dim == 128 || head_dim == 256;
  return dtype != DType::f32 && taken && offset == 0;
}

class CudaAttention : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(CudaAttention, MatchesTheCpu) {
  const AttentionCase c = GetParam();
  for_dtypes([&](DType dtype, std::int64_t offset) {
    CudaKit kit(offset);
    const std::int64_t rows = c.batch * c.seq, width = c.heads * c.head_dim;
    const std::int64_t kv_width = c.kv_heads * c.head_dim, fused = width + 2 * kv_width;
    const Tensor qkv = kit.random(dtype, rows * fused, "qkv"),
                 out = kit.output(dtype, rows * width);
    const Tensor dout = kit.random(dtype, rows * width, "dout");
    const Tensor gradient = kit.output(dtype, rows * fused);
    const Tensor lse = kit.output(DType::f32, c.batch * c.heads * c.seq);
    const std::int64_t needed = std::max(
        cpu::attention_scratch(c.batch, c.seq, c.heads, c.kv_heads, c.head_dim), lse.count);
    const Tensor scratch = kit.output(DType::f32, needed);
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    const auto forward = [&](bool gpu) {
      AttentionArgs a;
      a.dtype = dtype;
      a.batch = c.batch;
      a.seq = c.seq;
      a.heads = c.heads;
      a.kv_heads = c.kv_heads;
      a.head_dim = c.head_dim;
      a.window = c.window;
      a.scale = 0.7f / std::sqrt(static_cast<float>(c.head_dim));
      a.dropout = c.dropout;
      a.head_offset = 3;
      a.key = {77, 5, 19, 11};
      const auto* base = qkv.on<std::byte>(gpu);
      a.q = {base, fused};
      a.k = {base + width * size, fused};
      a.v = {base + (width + kv_width) * size, fused};
      a.out = {out.on<void>(gpu), width};
      a.lse = lse.on<float>(gpu);
      return a;
    };
    cpu::attention_forward(forward(false));
    cuda::attention_forward(forward(true), kit.stream());
    const double ulps = dtype == DType::f32 ? 32 : 2;
    // Tensor cores take each probability, and each gradient of a score, rounded to the dtype:
    // results are off by that much of the sums of what they weigh, here values near 1.
    const bool rounds = on_tensor_cores(dtype, c.head_dim, offset);
    const double unit = precision_of(dtype);
    const double floor = dtype == DType::f32 ? 4e-6 : rounds ? unit : 0.1 * unit;
    const double gradient_floor = dtype == DType::f32 ? 2e-5 : rounds ? 2 * unit : 0.5 * unit;
    kit.expect_close(out, ulps, floor, "out");
    kit.expect_close(lse, 16, 2e-6, "lse");
    // Backward from the CPU's results on both sides.
    const Tensor same_out = kit.filled(
        dtype, out.count, [&](std::int64_t i) { return read_element(out.host, dtype, i); });
    const Tensor same_lse = kit.filled(DType::f32, lse.count, [&](std::int64_t i) {
      return read_element(lse.host, DType::f32, i);
    });
    const auto backward = [&](bool gpu) {
      AttentionGradientArgs g;
      g.forward = forward(gpu);
      g.dout = {dout.on<void>(gpu), width};
      g.out = {same_out.on<void>(gpu), width};
      g.lse = same_lse.on<float>(gpu);
      auto* base = gradient.on<std::byte>(gpu);
      g.dq = {base, fused};
      g.dk = {base + width * size, fused};
      g.dv = {base + (width + kv_width) * size, fused};
      g.scratch = scratch.on<float>(gpu);
      return g;
    };
    cpu::attention_backward(backward(false));
    cuda::attention_backward(backward(true), kit.stream());
    kit.expect_close(gradient, ulps, gradient_floor, "gradients");
  });
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaAttention,
    ::testing::Values(
        AttentionCase{1, 1, 1, 1, 8, 0, 0.0f}, AttentionCase{2, 67, 2, 2, 16, 0, 0.0f},
        AttentionCase{1, 130, 4, 2, 24, 0, 0.0f}, AttentionCase{1, 100, 2, 1, 64, 33, 0.0f},
        AttentionCase{1, 97, 2, 1, 40, 0, 0.2f}, AttentionCase{1, 65, 1, 1, 96, 1, 0.0f},
        AttentionCase{1, 70, 1, 1, 128, 0, 0.0f}, AttentionCase{1, 40, 2, 1, 256, 17, 0.1f},
        AttentionCase{1, 33, 1, 1, 200, 0, 0.0f}, AttentionCase{1, 140, 2, 1, 64, 0, 0.1f},
        AttentionCase{1, 150, 1, 1, 128, 70, 0.0f}, AttentionCase{1, 81, 1, 1, 96, 0, 0.0f}));

}  // namespace
}  // namespace zero3d::kernels::test
