// LayerNorm and RMSNorm on a GPU against the CPU's, over odd widths. Parameters' gradients are
// summed in the CPU's order, to the bit; rows are summed in another order.
#include "zero3d/kernels/cpu/norm.h"
#include "zero3d/tests/kernels/cuda_kit.h"

namespace zero3d::kernels::test {
namespace {

struct Case {
  bool rms, one_plus;
};

class CudaNorm : public ::testing::TestWithParam<Case> {};

TEST_P(CudaNorm, MatchesTheCpu) {
  const Case which = GetParam();
  for_dtypes([&](DType dtype, std::int64_t offset) {
    for (const auto& [rows, width] : {std::pair<std::int64_t, std::int64_t>{1, 1},
                                      {3, 7},
                                      {9, 64},
                                      {300, 40},
                                      {5, 768},
                                      {3, 1600},
                                      {2, 5001}}) {
      SCOPED_TRACE(concat(rows, " x ", width));
      CudaKit kit(offset);
      const std::int64_t count = rows * width;
      const Tensor x = kit.filled(dtype, count, [](std::int64_t i) {
        return 3 + random_normal(1, 2, static_cast<std::uint64_t>(i));
      });
      const Tensor weight = kit.random(dtype, width, "weight"),
                   bias = kit.random(dtype, width, "b");
      const Tensor dy = kit.random(dtype, count, "dy"), residual = kit.random(dtype, count, "r");
      const Tensor y = kit.output(dtype, count), dx = kit.output(dtype, count);
      const Tensor mean = kit.output(DType::f32, rows), rstd = kit.output(DType::f32, rows);
      const Tensor dweight = kit.random(DType::f32, width, "dw");
      const Tensor dbias = kit.random(DType::f32, width, "db");
      NormArgs args[2];
      for (const bool gpu : {false, true}) {
        NormArgs& a = args[gpu];
        a.rms = which.rms;
        a.one_plus_weight = which.one_plus;
        a.dtype = dtype;
        a.rows = rows;
        a.width = width;
        a.eps = 1e-5f;
        a.x = x.on<void>(gpu);
        a.weight = weight.on<void>(gpu);
        if (!which.rms) a.bias = bias.on<void>(gpu);
        a.y = y.on<void>(gpu);
        if (!which.rms) a.mean = mean.on<float>(gpu);
        a.rstd = rstd.on<float>(gpu);
      }
      cpu::norm_forward(args[0]);
      cuda::norm_forward(args[1], kit.stream());
      const double ulps = dtype == DType::f32 ? 16 : 2;
      // Where a row nearly cancels, its error is that of its mean.
      kit.expect_close(y, ulps, dtype == DType::f32 ? 2e-5 : 4 * precision_of(dtype), "y");
      kit.expect_close(rstd, 16 + 2e-7 / 0x1p-24, 0, "rstd");
      if (!which.rms) kit.expect_close(mean, 16, 0, "mean");

      // Backward from the CPU's statistics on both sides.
      const Tensor saved_mean = kit.filled(DType::f32, rows, [&](std::int64_t i) {
        return which.rms ? 0.0 : read_element(mean.host, DType::f32, i);
      });
      const Tensor saved_rstd = kit.filled(
          DType::f32, rows, [&](std::int64_t i) { return read_element(rstd.host, DType::f32, i); });
      for (const bool gpu : {false, true}) {
        NormArgs& a = args[gpu];
        a.saved_mean = saved_mean.on<float>(gpu);
        a.saved_rstd = saved_rstd.on<float>(gpu);
        a.dy = dy.on<void>(gpu);
        a.residual = residual.on<void>(gpu);
        a.y = dx.on<void>(gpu);
        a.dweight = dweight.on<void>(gpu);
        if (!which.rms) a.dbias = dbias.on<void>(gpu);
        a.accumulate = true;
      }
      cpu::norm_backward_input(args[0]);
      cuda::norm_backward_input(args[1], kit.stream());
      kit.expect_close(dx, ulps, dtype == DType::f32 ? 2e-5 : 4 * precision_of(dtype), "dx");
      cpu::norm_backward_weight(args[0]);
      cuda::norm_backward_weight(args[1], kit.stream());
      kit.expect_same(dweight, "dweight");
      if (!which.rms) kit.expect_same(dbias, "dbias");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, CudaNorm,
                         ::testing::Values(Case{false, false}, Case{true, false},
                                           Case{true, true}));

}  // namespace
}  // namespace zero3d::kernels::test
