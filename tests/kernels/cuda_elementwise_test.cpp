// Elementwise passes, activations, dropout and rope on a GPU against the CPU's, over odd sizes: the
// same bits, but for rope's sines and cosines.
#include "zero3d/kernels/cpu/activation.h"
#include "zero3d/kernels/cpu/attention.h"
#include "zero3d/kernels/cpu/elementwise.h"
#include "zero3d/tests/kernels/cuda_kit.h"

namespace zero3d::kernels::test {
namespace {

const std::vector<std::int64_t>& counts() {
  static const std::vector<std::int64_t> kCounts = {0, 1, 7, 8, 257, 4099};
  return kCounts;
}

/// Ordinary values with the ends of the range among them.
double spread(std::int64_t i) {
  const double special[] = {0.0, -0.0, 1e-30, -88.0, 88.0, 3e4, -3e4, HUGE_VAL, -HUGE_VAL, NAN};
  if (i % 13 == 5) return special[i / 13 % 10];
  return 5 * random_normal(3, 7, static_cast<std::uint64_t>(i));
}

TEST(CudaElementwise, ConversionsAndSumsHaveTheCpusBits) {
  for_dtypes([](DType from, std::int64_t offset) {
    for (const DType to : {DType::f32, DType::bf16, DType::f16})
      for (const std::int64_t count : counts()) {
        CudaKit kit(offset);
        const Tensor x = kit.filled(from, count, spread);
        const Tensor converted = kit.output(to, count);
        const Tensor added = kit.random(to, count, "added"), scaled = kit.random(to, count, "s");
        const auto pair = [&](const Tensor& result, bool gpu) {
          return PairArgs{x.on<void>(gpu), from, count, result.on<void>(gpu), to};
        };
        cpu::convert(pair(converted, false));
        cuda::convert(pair(converted, true), kit.stream());
        cpu::add(pair(added, false));
        cuda::add(pair(added, true), kit.stream());
        cpu::add_scaled({pair(scaled, false), 0.37f});
        cuda::add_scaled({pair(scaled, true), 0.37f}, kit.stream());
        kit.expect_same(converted, "convert");
        kit.expect_same(added, "add");
        kit.expect_same(scaled, "add_scaled");
      }
  });
}

TEST(CudaElementwise, ScaleFillAndColumnsHaveTheCpusBits) {
  for_dtypes([](DType dtype, std::int64_t offset) {
    for (const std::int64_t count : counts()) {
      CudaKit kit(offset);
      const Tensor x = kit.filled(dtype, count, spread), filled = kit.output(dtype, count);
      const auto args = [&](const Tensor& t, bool gpu, float value) {
        return ScaleArgs{t.on<void>(gpu), dtype, count, value};
      };
      cpu::scale(args(x, false, 1.7f));
      cuda::scale(args(x, true, 1.7f), kit.stream());
      cpu::fill(args(filled, false, 0.3f));
      cuda::fill(args(filled, true, 0.3f), kit.stream());
      kit.expect_same(x, "scale");
      kit.expect_same(filled, "fill");
    }
    CudaKit kit(offset);
    const Tensor from = kit.random(dtype, 7 * 19, "from"), to = kit.output(dtype, 7 * 23);
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    const auto columns = [&](bool gpu) {
      return CopyColumnsArgs{{from.on<std::byte>(gpu) + 2 * size, 19},
                             {to.on<std::byte>(gpu) + 5 * size, 23},
                             7,
                             11 * size,
                             size};
    };
    cpu::copy_columns(columns(false));
    cuda::copy_columns(columns(true), kit.stream());
    kit.expect_same(to, "copy_columns");
  });
}

TEST(CudaElementwise, ColumnsAreSummedInTheOrderOfTheirParts) {
  for_dtypes([](DType dtype, std::int64_t offset) {
    for (const std::int64_t width : {5, 16}) {
      CudaKit kit(offset);
      const std::int64_t rows = 13, stride = width + 8;
      const Tensor from = kit.random(dtype, rows * stride * 3, "from");
      const Tensor to = kit.random(dtype, rows * stride, "to");
      const auto args = [&](bool gpu) {
        SumColumnsArgs a;
        a.dtype = dtype;
        for (std::int64_t part = 0; part < 3; ++part)
          a.parts.push_back(
              {from.on<std::byte>(gpu) + part * rows * stride * std::int64_t(size_of(dtype)),
               stride});
        a.to = {to.on<void>(gpu), stride};
        a.rows = rows;
        a.width = width;
        return a;
      };
      cpu::sum_columns(args(false));
      cuda::sum_columns(args(true), kit.stream());
      kit.expect_same(to, "sum_columns");
    }
  });
}

TEST(CudaElementwise, SquaresAreSummedInTheCpusTree) {
  for_dtypes([](DType dtype, std::int64_t offset) {
    for (const std::int64_t count : {1, 7, 1023, 1024, 1025, 40 * 1024 + 13}) {
      CudaKit kit(offset);
      const Tensor x = kit.random(dtype, count, "x", 3);
      const Tensor sums = kit.output(DType::f64, (count + 1023) / 1024);
      const auto args = [&](bool gpu) {
        return SquareSumsArgs{x.on<void>(gpu), dtype, count, sums.on<double>(gpu)};
      };
      cpu::square_sums(args(false));
      cuda::square_sums(args(true), kit.stream());
      kit.expect_same(sums, "square_sums");
    }
  });
}

TEST(CudaActivation, GeluHasTheCpusBits) {
  for_dtypes([](DType dtype, std::int64_t offset) {
    for (const std::int64_t count : counts()) {
      CudaKit kit(offset);
      const Tensor x = kit.filled(dtype, count, spread), dy = kit.random(dtype, count, "dy");
      const Tensor y = kit.output(dtype, count), dx = kit.output(dtype, count);
      const auto forward = [&](bool gpu) {
        return GeluArgs{dtype, count, x.on<void>(gpu), nullptr, y.on<void>(gpu)};
      };
      const auto backward = [&](bool gpu) {
        return GeluArgs{dtype, count, x.on<void>(gpu), dy.on<void>(gpu), dx.on<void>(gpu)};
      };
      cpu::gelu(forward(false));
      cuda::gelu(forward(true), kit.stream());
      cpu::gelu(backward(false));
      cuda::gelu(backward(true), kit.stream());
      kit.expect_same(y, "gelu_forward");
      kit.expect_same(dx, "gelu_backward");
    }
  });
}

TEST(CudaActivation, GatedActivationsHaveTheCpusBits) {
  for_dtypes([](DType dtype, std::int64_t offset) {
    for (const GateFunction function : {GateFunction::silu, GateFunction::gelu})
      for (const auto& [rows, width] :
           {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 24}, {5, 37}, {2, 2560}}) {
        CudaKit kit(offset);
        const std::int64_t stride = 2 * width;
        const Tensor both = kit.random(dtype, rows * stride, "both", 2);
        const Tensor dy = kit.random(dtype, rows * width, "dy");
        const Tensor y = kit.output(dtype, rows * width);
        const Tensor gradient = kit.output(dtype, rows * stride);
        const auto args = [&](bool gpu, bool backward) {
          const auto bytes = static_cast<std::int64_t>(size_of(dtype)) * width;
          GatedArgs a;
          a.function = function;
          a.dtype = dtype;
          a.rows = rows;
          a.width = width;
          a.gate = {both.on<void>(gpu), stride};
          a.up = {both.on<std::byte>(gpu) + bytes, stride};
          a.y = y.on<void>(gpu);
          if (backward) a.dy = dy.on<void>(gpu);
          a.dgate = {gradient.on<void>(gpu), stride};
          a.dup = {gradient.on<std::byte>(gpu) + bytes, stride};
          return a;
        };
        cpu::gated_forward(args(false, false));
        cuda::gated_forward(args(true, false), kit.stream());
        cpu::gated_backward(args(false, true));
        cuda::gated_backward(args(true, true), kit.stream());
        kit.expect_same(y, "gated forward");
        kit.expect_same(gradient, "gated backward");
      }
  });
}

TEST(CudaActivation, DropoutDrawsTheCpusNumbers) {
  for_dtypes([](DType dtype, std::int64_t offset) {
    for (const float p : {0.0f, 0.1f, 1.0f})
      for (const auto& [per_sample, first] :
           {std::pair<std::int64_t, std::int64_t>{1, 0}, {264, 8}, {264, 3}, {1021, 1020}}) {
        CudaKit kit(offset);
        const std::int64_t count = 3 * per_sample;
        const Tensor x = kit.random(dtype, count, "x"), more = kit.random(dtype, count, "more");
        const Tensor y = kit.output(dtype, count), sum = kit.output(dtype, count);
        const auto args = [&, per = per_sample, begin = first](bool gpu, bool adds) {
          DropoutArgs a;
          a.dtype = dtype;
          a.samples = 3;
          a.per_sample = per;
          a.first_element = begin;
          a.p = p;
          a.key = {0x123456789abcdefu, 17, 35, 0x1ffffffffu};
          a.x = x.on<void>(gpu);
          if (adds) a.residual = more.on<void>(gpu);
          a.y = (adds ? sum : y).on<void>(gpu);
          return a;
        };
        for (const bool adds : {false, true}) {
          cpu::dropout(args(false, adds));
          cuda::dropout(args(true, adds), kit.stream());
        }
        kit.expect_same(y, "dropout");
        kit.expect_same(sum, "dropout with residual");
      }
  });
}

TEST(CudaRope, TurnsByTheCpusAngles) {
  for_dtypes([](DType dtype, std::int64_t offset) {
    for (const std::int64_t head_dim : {2, 6, 64, 128}) {
      for (const bool inverse : {false, true}) {
        CudaKit kit(offset);
        const std::int64_t seq = 5, batch = 2, heads = 3, stride = heads * head_dim + 4;
        const Tensor x = kit.random(dtype, batch * seq * stride, "x");
        const auto args = [&](bool gpu) {
          RopeArgs a;
          a.dtype = dtype;
          a.batch = batch;
          a.seq = seq;
          a.first_position = 1000;
          a.heads = heads;
          a.head_dim = head_dim;
          a.x = {x.on<void>(gpu), stride};
          for (std::int64_t i = 0; i < head_dim / 2; ++i)
            a.inverse_frequencies.push_back(static_cast<float>(
                std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim))));
          a.attention_scaling = 1.1f;
          a.inverse = inverse;
          return a;
        };
        cpu::rope(args(false));
        cuda::rope(args(true), kit.stream());
        // A cosine two units off, in products of values up to four, of which one may cancel.
        kit.expect_close(x, 4, 16 * precision_of(dtype), "rope");
      }
    }
  });
}

}  // namespace
}  // namespace zero3d::kernels::test
