// Activations against fp64, their gradients against numeric ones, and what dropout keeps.
#include "zero3d/kernels/activation.h"

#include "zero3d/tests/kernels/kit.h"

namespace zero3d::kernels {
namespace {

using namespace test;

double gelu(double x) {
  return 0.5 * x *
         (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}
double silu(double x) { return x / (1 + std::exp(-x)); }

double slope(double (*f)(double), double x) { return (f(x + 1e-5) - f(x - 1e-5)) / 2e-5; }

TEST(Activation, GeluMatchesTheReference) {
  for_each_target([] {
    for (const DType dtype : float_dtypes())
      for (const std::int64_t count : {1, 7, 16, 31, 1000, 20011}) {
        Kit kit;
        const View x = kit.filled(dtype, {count}, [&](std::int64_t i) {
          return -12 + 24.0 * static_cast<double>(i) / static_cast<double>(count);
        });
        const View dy = kit.random(dtype, {count}, "dy");
        const View y = kit.output(dtype, {count});
        const View dx = kit.output(dtype, {count});
        gelu_forward(kit.stream(), x, y);
        gelu_backward(kit.stream(), dy, x, dx);
        const Values at = kit.read(x), seed = kit.read(dy);
        Values want(at.size()), want_dx(at.size());
        for (std::size_t i = 0; i < at.size(); ++i) {
          want[i] = gelu(at[i]);
          want_dx[i] = seed[i] * slope(gelu, at[i]);
        }
        expect_close(kit.read(y), want, dtype, dtype == DType::f32 ? 16 : 1.05, 1e-7, "gelu");
        expect_close(kit.read(dx), want_dx, dtype, dtype == DType::f32 ? 16 : 1.05, 1e-6, "dgelu");
      }
  });
}

TEST(Activation, GeluOfExtremesIsFiniteAndNanStaysNan) {
  for_each_target([] {
    Kit kit;
    const View x = kit.from(DType::f32, {6}, {-1e4, 1e4, -1e30, 1e30, std::nan(""), 0});
    const View dy = kit.filled(DType::f32, {6}, [](std::int64_t) { return 1.0; });
    const View y = kit.output(DType::f32, {6});
    const View dx = kit.output(DType::f32, {6});
    gelu_forward(kit.stream(), x, y);
    gelu_backward(kit.stream(), dy, x, dx);
    const Values got = kit.read(y), slopes = kit.read(dx);
    EXPECT_NEAR(got[0], 0, 1e-30);
    EXPECT_EQ(got[1], 1e4);
    EXPECT_EQ(slopes[1], 1);
    EXPECT_NEAR(slopes[2], 0, 1e-5);
    EXPECT_EQ(slopes[3], 1);
    EXPECT_TRUE(std::isnan(got[4]));
    EXPECT_TRUE(std::isnan(slopes[4]));
    EXPECT_EQ(got[5], 0);
    EXPECT_EQ(slopes[5], 0.5);
  });
}

TEST(Activation, StoresRoundAsTheScalarConversionsDo) {
  // x + 0 * x with p = 0 is x: a way to send every 16-bit pattern, and fp32 values between them,
  // through load and store.
  for_each_target([] {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      Kit kit;
      const View x = kit.output(dtype, {65536});
      const View y = kit.output(dtype, {65536});
      auto* bits = reinterpret_cast<std::uint16_t*>(x.data());
      for (std::size_t i = 0; i < 65536; ++i) bits[i] = static_cast<std::uint16_t>(i);
      dropout(kit.stream(), x, 0, {}, 1, {}, y);
      const Values in = kit.read(x), out = kit.read(y);
      for (std::size_t i = 0; i < in.size(); ++i)
        ASSERT_TRUE(in[i] == out[i] || (std::isnan(in[i]) && std::isnan(out[i]))) << i;
      const View table = kit.random(dtype, {65536}, "factor");
      const View product = kit.output(dtype, {65536});
      dropout(kit.stream(), x, 0, {}, 1, table, product);
      const Values term = kit.read(table), got = kit.read(product);
      for (std::size_t i = 0; i < in.size(); ++i) {
        std::byte rounded[8];
        write_element(rounded, dtype, 0, static_cast<float>(in[i]) + static_cast<float>(term[i]));
        const double want = read_element(rounded, dtype, 0);
        ASSERT_TRUE(got[i] == want || (std::isnan(got[i]) && std::isnan(want)))
            << i << ": " << got[i] << " for " << want;
      }
    }
  });
}

/// A gated activation of the kernels, and its gate's function.
struct Gated {
  decltype(&swiglu_forward) forward;
  decltype(&swiglu_backward) backward;
  double (*function)(double);
};
constexpr Gated kGated[] = {{swiglu_forward, swiglu_backward, silu},
                            {geglu_forward, geglu_backward, gelu}};

void check_gated(const Gated& gated) {
  for_each_target([&] {
    for (const DType dtype : float_dtypes())
      for (const std::int64_t width : {1, 5, 16, 33, 64}) {
        Kit kit;
        const std::int64_t rows = 3;
        const View fused = kit.random(dtype, {rows, 2 * width + 3}, "fused", 3);
        const View dfused = kit.output(dtype, {rows, 2 * width + 3});
        const View dy = kit.random(dtype, {rows, width}, "dy");
        const View y = kit.output(dtype, {rows, width});
        gated.forward(kit.stream(), ConstColumns(fused, 1, width),
                      ConstColumns(fused, width + 2, width), y);
        gated.backward(kit.stream(), dy, ConstColumns(fused, 1, width),
                       ConstColumns(fused, width + 2, width), Columns(dfused, 1, width),
                       Columns(dfused, width + 2, width));
        const Values in = kit.read(fused), seed = kit.read(dy);
        Values want(seed.size()), want_fused(in.size(), -12345);
        for (std::size_t i = 0; i < want_fused.size(); ++i)
          want_fused[i] =
              kit.read(kit.filled(dtype, {1}, [](std::int64_t) { return -12345.0; }))[0];
        const auto w = static_cast<std::size_t>(width), stride = 2 * w + 3;
        for (std::size_t r = 0; r < 3; ++r)
          for (std::size_t i = 0; i < w; ++i) {
            const double g = in[r * stride + 1 + i], u = in[r * stride + w + 2 + i];
            want[r * w + i] = gated.function(g) * u;
            want_fused[r * stride + 1 + i] = seed[r * w + i] * u * slope(gated.function, g);
            want_fused[r * stride + w + 2 + i] = seed[r * w + i] * gated.function(g);
          }
        const double ulps = dtype == DType::f32 ? 16 : 2.1;  // two roundings
        expect_close(kit.read(y), want, dtype, ulps, 1e-6, "gated");
        expect_close(kit.read(dfused), want_fused, dtype, ulps, 1e-6, "dgated");
      }
  });
}

TEST(Activation, GatedMatchesTheReference) {
  for (const Gated& gated : kGated) check_gated(gated);
}

TEST(Activation, SwigluRoundsSiluBeforeTheProduct) {
  Kit kit;
  const View gate = kit.random(DType::bf16, {1, 1000}, "gate");
  const View up = kit.random(DType::bf16, {1, 1000}, "up");
  const View y = kit.output(DType::bf16, {1, 1000});
  swiglu_forward(kit.stream(), ConstColumns(gate), ConstColumns(up), y);
  const Values g = kit.read(gate), u = kit.read(up), got = kit.read(y);
  int differ = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const float rounded = to_float(to_bf16(static_cast<float>(silu(g[i]))));
    const double want = to_float(to_bf16(rounded * static_cast<float>(u[i])));
    differ += got[i] != want;
  }
  EXPECT_LE(differ, 2);  // silu itself may round the other way at a tie
  // Backward: the gradient of silu, dy * up, is rounded before it meets the slope.
  const View dy = kit.random(DType::bf16, {1, 1000}, "dy");
  const View dgate = kit.output(DType::bf16, {1, 1000});
  const View dup = kit.output(DType::bf16, {1, 1000});
  swiglu_backward(kit.stream(), dy, ConstColumns(gate), ConstColumns(up), Columns(dgate),
                  Columns(dup));
  const Values d = kit.read(dy), got_gate = kit.read(dgate);
  differ = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double sigmoid = 1 / (1 + std::exp(-g[i]));
    const float dsilu = to_float(to_bf16(static_cast<float>(d[i] * u[i])));
    const double want = static_cast<double>(dsilu) * sigmoid * (1 + g[i] * (1 - sigmoid));
    differ += got_gate[i] != static_cast<double>(to_float(to_bf16(static_cast<float>(want))));
  }
  EXPECT_LE(differ, 4);
}

TEST(Activation, BitsDependNeitherOnThreadsNorOnAlignment) {
  for (const DType dtype : float_dtypes())
    expect_same_bits(
        [&](Kit& kit) {
          const View x = kit.random(dtype, {63, 1030}, "x");
          const View dy = kit.random(dtype, {63, 515}, "dy");
          const View y = kit.output(dtype, {63, 1030});
          const View z = kit.output(dtype, {63, 515});
          const View d = kit.output(dtype, {63, 1030});
          const View e = kit.output(dtype, {63, 1030});
          gelu_forward(kit.stream(), x, y);
          gelu_backward(kit.stream(), x, y, y);
          swiglu_forward(kit.stream(), ConstColumns(x, 0, 515), ConstColumns(x, 515, 515), z);
          swiglu_backward(kit.stream(), dy, ConstColumns(x, 0, 515), ConstColumns(x, 515, 515),
                          Columns(d, 0, 515), Columns(d, 515, 515));
          const View f = kit.output(dtype, {63, 1030}), g = kit.output(dtype, {63, 515});
          geglu_forward(kit.stream(), ConstColumns(x, 0, 515), ConstColumns(x, 515, 515), g);
          geglu_backward(kit.stream(), dy, ConstColumns(x, 0, 515), ConstColumns(x, 515, 515),
                         Columns(f, 0, 515), Columns(f, 515, 515));
          dropout(kit.stream(), x, 0.3f, {}, 9, y, e);
          return kit.bits(y) + kit.bits(z) + kit.bits(d) + kit.bits(e) + kit.bits(f) + kit.bits(g);
        },
        "activation");
}

TEST(Dropout, KeepsByTheKeyAndScales) {
  for_each_target([] {
    for (const std::int64_t width : {1, 3, 50, 1366}) {
      Kit kit;
      RandomKey key;
      key.seed = 0x123456789abcdef0u;
      key.step = 7;
      key.layer = 35;
      key.sample = 0xfffffffeu;  // crosses 2^32
      const std::int64_t rows = 12, per_sample = 3;
      const View x = kit.random(DType::f32, {rows, width}, "x");
      const View residual = kit.random(DType::f32, {rows, width}, "residual");
      const View y = kit.output(DType::f32, {rows, width});
      dropout(kit.stream(), x, 0.25f, key, per_sample, residual, y);
      const Values in = kit.read(x), other = kit.read(residual), got = kit.read(y);
      for (std::size_t i = 0; i < got.size(); ++i) {
        const std::uint64_t element = i % static_cast<std::size_t>(per_sample * width);
        const std::uint64_t sample = key.sample + i / static_cast<std::size_t>(per_sample * width);
        const bool keep = to_uniform(key.word(sample, element)) >= 0.25f;
        const float want =
            (keep ? static_cast<float>(in[i]) * (1 / 0.75f) : 0.0f) + static_cast<float>(other[i]);
        ASSERT_EQ(got[i], want) << i << " of width " << width;
      }
    }
  });
}

TEST(Dropout, KeepsTheExpectedShare) {
  for (const float p : {0.0f, 0.1f, 0.5f, 1.0f}) {
    Kit kit(2);
    const View x = kit.filled(DType::bf16, {400, 500}, [](std::int64_t) { return 1.0; });
    const View y = kit.output(DType::bf16, {400, 500});
    dropout(kit.stream(), x, p, RandomKey{3, 1, 2, 0}, 100, {}, y);
    double kept = 0;
    for (const double value : kit.read(y)) kept += value != 0;
    EXPECT_NEAR(kept / 200000, 1 - static_cast<double>(p),
                4 * std::sqrt(static_cast<double>(p * (1 - p)) / 200000));
  }
}

TEST(Dropout, DoesNotDependOnHowTheBatchIsSplit) {
  Kit kit;
  const RandomKey key{9, 4, 18, 6};
  const View x = kit.random(DType::f16, {4 * 5, 21}, "x");
  const View whole = kit.output(DType::f16, {4 * 5, 21});
  const View halves = kit.output(DType::f16, {4 * 5, 21});
  dropout(kit.stream(), x, 0.4f, key, 5, {}, whole);
  for (const std::int64_t half : {0, 1}) {
    RandomKey shifted = key;
    shifted.sample += static_cast<std::uint64_t>(2 * half);
    dropout(kit.stream(), x.flat(half * 210, 210).reshaped({10, 21}), 0.4f, shifted, 5, {},
            halves.flat(half * 210, 210).reshaped({10, 21}));
  }
  EXPECT_EQ(kit.bits(whole), kit.bits(halves));
}

TEST(Dropout, DoesNotDependOnHowTheSequenceIsSplit) {
  for_each_target([] {
    for (const std::int64_t width : {21, 1366}) {
      Kit kit;
      const RandomKey key{9, 4, 18, 6};
      const View x = kit.random(DType::f16, {5, width}, "x");
      const View whole = kit.output(DType::f16, {5, width});
      const View parts = kit.output(DType::f16, {5, width});
      dropout(kit.stream(), x, 0.4f, key, 5, {}, whole);
      for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>(0, 1), {1, 4}})
        dropout(kit.stream(), x.flat(first * width, count * width).reshaped({count, width}), 0.4f,
                key, {count, first}, {},
                parts.flat(first * width, count * width).reshaped({count, width}));
      EXPECT_EQ(kit.bits(parts), kit.bits(whole)) << width;
    }
  });
}

}  // namespace
}  // namespace zero3d::kernels
