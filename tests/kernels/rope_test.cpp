// Rope against complex rotation.
#include <complex>

#include "zero3d/kernels/attention.h"
#include "zero3d/tests/kernels/kit.h"

namespace zero3d::kernels {
namespace {

using namespace test;

std::vector<float> powers(double base, std::int64_t count) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<float>(std::pow(base, static_cast<double>(i))));
  return values;
}

TEST(Rope, TurnsPairsAsComplexNumbers) {
  for_each_target([] {
    for (const DType dtype : float_dtypes())
      for (const std::int64_t half : {1, 3, 8, 20, 32}) {
        Kit kit;
        const std::int64_t batch = 2, seq = 19, heads = 3, dim = 2 * half;
        const View x = kit.random(dtype, {batch * seq, heads * dim + 5}, "x");
        const std::vector<float> frequencies =
            powers(std::pow(10000.0, -1 / static_cast<double>(half)), half);
        const Values before = kit.read(x);
        const double scaling = 1.25;
        rope(kit.stream(), Columns(x, 2, heads * dim), seq, dim, frequencies, 1.25f, false);
        Values want = before;
        const Values f(frequencies.begin(), frequencies.end());
        const auto stride = static_cast<std::size_t>(heads * dim + 5);
        const auto h = static_cast<std::size_t>(half);
        for (std::size_t row = 0; row < static_cast<std::size_t>(batch * seq); ++row)
          for (std::size_t head = 0; head < 3; ++head)
            for (std::size_t i = 0; i < h; ++i) {
              const std::size_t at = row * stride + 2 + head * 2 * h + i;
              const double angle = static_cast<double>(row % static_cast<std::size_t>(seq)) * f[i];
              const std::complex<double> turned =
                  std::complex<double>(before[at], before[at + h]) * std::polar(scaling, angle);
              want[at] = turned.real();
              want[at + h] = turned.imag();
            }
        // Rounded cosine, product and sum.
        expect_close(kit.read(x), want, dtype, 4,
                     dtype == DType::f32 ? 1e-5 : 16 * precision_of(dtype), "rope");
      }
  });
}

TEST(Rope, InverseTurnsBack) {
  Kit kit;
  const View x = kit.random(DType::f32, {2 * 50, 4 * 16}, "x");
  const std::vector<float> frequencies = powers(0.3, 8);
  const Values before = kit.read(x);
  rope(kit.stream(), Columns(x), 50, 16, frequencies, 1, false);
  rope(kit.stream(), Columns(x), 50, 16, frequencies, 1, true);
  expect_close(kit.read(x), before, DType::f32, 8, 1e-6, "rope and back");
}

TEST(Rope, DoesNotDependOnHowTheSequenceIsSplit) {
  Kit kit;
  const View whole = kit.random(DType::bf16, {50, 4 * 16}, "x");
  const View parts = kit.random(DType::bf16, {50, 4 * 16}, "x");
  const std::vector<float> frequencies = powers(0.3, 8);
  rope(kit.stream(), Columns(whole), 50, 16, frequencies, 1, false);
  for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>(0, 19), {19, 31}})
    rope(kit.stream(), Columns(parts.flat(first * 64, count * 64).reshaped({count, 64})),
         {count, first}, 16, frequencies, 1, false);
  EXPECT_EQ(kit.bits(parts), kit.bits(whole));
}

TEST(Rope, RoundsEachProductAndTheSumIn16Bits) {
  Kit kit;
  const View x = kit.random(DType::bf16, {64, 8}, "x");
  const std::vector<float> frequencies = powers(0.3, 4);
  const Values before = kit.read(x), f(frequencies.begin(), frequencies.end());
  rope(kit.stream(), Columns(x), 64, 8, frequencies, 1, false);
  const Values got = kit.read(x);
  const auto round = [](double value) {
    return static_cast<double>(to_float(to_bf16(static_cast<float>(value))));
  };
  for (std::size_t t = 0; t < 64; ++t)
    for (std::size_t i = 0; i < 4; ++i) {
      const float angle = static_cast<float>(t) * static_cast<float>(f[i]);
      const double c = round(static_cast<double>(std::cos(angle)));
      const double s = round(static_cast<double>(std::sin(angle)));
      const double low = before[t * 8 + i], high = before[t * 8 + 4 + i];
      EXPECT_EQ(got[t * 8 + i], round(round(low * c) - round(high * s)));
      EXPECT_EQ(got[t * 8 + 4 + i], round(round(high * c) + round(low * s)));
    }
}

TEST(Rope, BitsDependNeitherOnThreadsNorOnAlignment) {
  expect_same_bits(
      [](Kit& kit) {
        const View x = kit.random(DType::bf16, {3 * 41, 2 * 24}, "x");
        const std::vector<float> frequencies = powers(0.5, 12);
        rope(kit.stream(), Columns(x), 41, 24, frequencies, 1, false);
        return kit.bits(x);
      },
      "rope");
}

}  // namespace
}  // namespace zero3d::kernels
