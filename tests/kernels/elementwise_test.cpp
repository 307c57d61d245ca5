// Conversions against core/half.h bit for bit, sums and scalings against single fp32 operations,
// and the norm's block sums against their defined tree, for every instruction set.
#include "zero3d/kernels/elementwise.h"

#include <bit>
#include <cmath>

#include "kit.h"

namespace zero3d::kernels::test {
namespace {

constexpr std::int64_t kCounts[] = {0, 1, 7, 8, 31, 1023, 1024, 1025, 70001};

/// Bit patterns that spread over all fp32 values: both signs, subnormals, infinities and NaN.
float pattern(std::int64_t i) {
  constexpr std::uint32_t kEdges[] = {0x00000000, 0x80000000, 0x00000001, 0x807fffff, 0x7f800000,
                                      0xff800000, 0x7fc00000, 0x7f7fffff, 0x477fefff, 0x477ff000,
                                      0x387fffff, 0x33000000, 0x33000001, 0x3f808000, 0x3f818000};
  const auto at = static_cast<std::uint32_t>(i);
  const std::uint32_t bits = at < std::size(kEdges) ? kEdges[at] : at * 2654435761u;
  return std::bit_cast<float>(bits);
}

void expect_bits(const Values& got, const Values& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want[i])) {
      ASSERT_TRUE(std::isnan(got[i])) << what << ": element " << i;
    } else {
      ASSERT_EQ(std::bit_cast<std::uint64_t>(got[i]), std::bit_cast<std::uint64_t>(want[i]))
          << what << ": element " << i << " is " << got[i] << ", expected " << want[i];
    }
  }
}

double rounded(float value, DType dtype) {
  if (dtype == DType::bf16) return to_float(to_bf16(value));
  if (dtype == DType::f16) return to_float(to_f16(value));
  return value;
}

TEST(Convert, HasTheBitsOfTheScalarConversions) {
  for_each_target([] {
    for (const DType from : float_dtypes())
      for (const DType to : float_dtypes())
        for (const std::int64_t count : kCounts) {
          Kit kit(2, 1);
          const View src = kit.output(from, {count});
          for (std::int64_t i = 0; i < count; ++i)
            write_element(src.data(), from, i, static_cast<double>(pattern(i)));
          const View dst = kit.output(to, {count});
          Values want;
          for (const double value : kit.read(src))
            want.push_back(rounded(static_cast<float>(value), to));
          convert(kit.stream(), src, dst);
          expect_bits(kit.read(dst), want, concat(name_of(from), "->", name_of(to), " ", count));
        }
  });
}

TEST(Add, IsOneFp32AddAndOneRounding) {
  for_each_target([] {
    for (const DType from : float_dtypes())
      for (const DType to : float_dtypes())
        for (const std::int64_t count : kCounts) {
          Kit kit(2, 1);
          const View src = kit.random(from, {count}, "src");
          const View dst = kit.random(to, {count}, "dst");
          const Values a = kit.read(dst), b = kit.read(src);
          Values want;
          for (std::size_t i = 0; i < a.size(); ++i)
            want.push_back(rounded(static_cast<float>(a[i]) + static_cast<float>(b[i]), to));
          add(kit.stream(), src, dst);
          expect_bits(kit.read(dst), want, concat(name_of(from), "->", name_of(to), " ", count));
        }
  });
}

TEST(SumColumns, AddsInOrderInFp32AndRoundsOnce) {
  for_each_target([] {
    for (const DType dtype : float_dtypes())
      for (const std::int64_t width : {1, 7, 67}) {
        Kit kit(2, 1);
        constexpr std::int64_t kRows = 5;
        const View one = kit.random(dtype, {kRows, width + 3}, "one");
        const View other = kit.random(dtype, {kRows, 2 * width}, "other");
        const View to = kit.from(dtype, {kRows, width + 2}, Values((width + 2) * kRows, 0.0));
        const ConstColumns parts[] = {Columns(one, 2, width), Columns(other, 0, width),
                                      Columns(other, width, width)};
        sum_columns(kit.stream(), parts, Columns(to, 1, width));
        const Values a = kit.read(one), b = kit.read(other);
        Values want(static_cast<std::size_t>((width + 2) * kRows), 0.0);
        for (std::int64_t row = 0; row < kRows; ++row)
          for (std::int64_t i = 0; i < width; ++i) {
            const auto at = [](std::int64_t index) { return static_cast<std::size_t>(index); };
            const float sum = static_cast<float>(a[at(row * (width + 3) + 2 + i)]) +
                              static_cast<float>(b[at(row * 2 * width + i)]) +
                              static_cast<float>(b[at(row * 2 * width + width + i)]);
            want[at(row * (width + 2) + 1 + i)] = rounded(sum, dtype);
          }
        expect_bits(kit.read(to), want, concat(name_of(dtype), " ", width));
        EXPECT_THROW(sum_columns(kit.stream(), {}, Columns(to, 1, width)), Error);
        EXPECT_THROW(sum_columns(kit.stream(), parts, Columns(to, 0, width + 1)), Error);
      }
  });
}

TEST(AddScaled, IsOneFp32ProductOneFp32AddAndOneRounding) {
  for_each_target([] {
    for (const DType from : float_dtypes())
      for (const DType to : float_dtypes())
        for (const std::int64_t count : kCounts) {
          Kit kit(2, 1);
          const View src = kit.random(from, {count}, "src");
          const View dst = kit.random(to, {count}, "dst");
          const Values a = kit.read(dst), b = kit.read(src);
          Values want;
          for (std::size_t i = 0; i < a.size(); ++i) {
            const float product = static_cast<float>(b[i]) * 0.37f;
            want.push_back(rounded(static_cast<float>(a[i]) + product, to));
          }
          add_scaled(kit.stream(), src, 0.37f, dst);
          expect_bits(kit.read(dst), want, concat(name_of(from), "->", name_of(to), " ", count));
        }
  });
}

TEST(Scale, IsOneFp32ProductAndOneRounding) {
  for_each_target([] {
    for (const DType dtype : float_dtypes())
      for (const std::int64_t count : kCounts) {
        Kit kit(2, 1);
        const View x = kit.random(dtype, {count}, "x");
        Values want;
        for (const double value : kit.read(x))
          want.push_back(rounded(static_cast<float>(value) * 0.37f, dtype));
        scale(kit.stream(), x, 0.37f);
        expect_bits(kit.read(x), want, concat(name_of(dtype), " ", count));
      }
  });
}

/// The tree that square_sums promises: element j in partial sum j % 8, pairs of neighbours added.
double tree_sum(const Values& x, std::size_t begin, std::size_t end) {
  double s[8] = {};
  for (std::size_t i = begin; i < end; ++i) s[(i - begin) % 8] += x[i] * x[i];
  return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

Values doubles(Kit& kit, const View& sums) {
  kit.sync();
  const double* data = sums.as<double>();
  return Values(data, data + sums.numel());
}

/// fp64 sums of a kit: as many bytes as that many pairs of fp32.
View make_sums(Kit& kit, std::int64_t blocks) {
  const View pairs = kit.filled(DType::f32, {2 * blocks}, [](std::int64_t) { return -1.0; });
  return View(pairs.data(), DType::f64, {blocks});
}

TEST(Fill, RoundsOnceAndStaysWithinTheView) {
  for (const DType dtype : float_dtypes())
    for (const std::int64_t count : {0, 1, 15, 1027, 70001}) {
      Kit kit(2);
      const View x = kit.output(dtype, {count + 1});
      fill(kit.stream(), x.flat(0, count), 1.00390625f);
      const Values got = kit.read(x);
      const double want = dtype == DType::bf16 ? 1.0 : 1.00390625;
      for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(got[static_cast<std::size_t>(i)], want);
      EXPECT_NE(got.back(), want);
    }
}

TEST(SquareSums, FollowTheirTreeOnEveryInstructionSet) {
  for_each_target([] {
    for (const DType dtype : float_dtypes())
      for (const std::int64_t count : kCounts)
        for (const int threads : {1, 3}) {
          Kit kit(threads);
          const View x = kit.random(dtype, {count}, "x", 3);
          const View sums = make_sums(kit, (count + kNormBlock - 1) / kNormBlock);
          const Values values = kit.read(x);
          Values want;
          for (std::size_t begin = 0; begin < values.size(); begin += kNormBlock)
            want.push_back(tree_sum(values, begin, std::min(values.size(), begin + kNormBlock)));
          square_sums(kit.stream(), x, sums);
          expect_bits(doubles(kit, sums), want, concat(name_of(dtype), " ", count));
        }
  });
}

TEST(SquareSums, KeepInfinityAndNanInTheirBlock) {
  for_each_target([] {
    for (const DType dtype : float_dtypes()) {
      Kit kit;
      const View x = kit.filled(dtype, {3 * kNormBlock - 5}, [](std::int64_t i) -> double {
        return i == 5 ? -INFINITY : i == 3 * kNormBlock - 6 ? NAN : 1;
      });
      const View sums = make_sums(kit, 3);
      square_sums(kit.stream(), x, sums);
      const Values got = doubles(kit, sums);
      EXPECT_TRUE(std::isinf(got[0]) && got[1] == kNormBlock && std::isnan(got[2]))
          << name_of(dtype);
    }
  });
}

TEST(SquareSums, LargestFp32ValuesDoNotOverflow) {
  Kit kit;
  const View x = kit.filled(DType::f32, {kNormBlock}, [](std::int64_t) { return 3e38; });
  const View sums = make_sums(kit, 1);
  square_sums(kit.stream(), x, sums);
  const double value = 3e38f;
  EXPECT_EQ(doubles(kit, sums)[0], kNormBlock * (value * value));
}

TEST(Elementwise, RefusesOtherSizesAndDtypes) {
  Kit kit;
  const View five = kit.output(DType::f32, {5}), six = kit.output(DType::bf16, {6});
  const View words = kit.filled(DType::i32, {5}, [](std::int64_t) { return 0; });
  EXPECT_THROW(convert(kit.stream(), five, six), Error);
  EXPECT_THROW(add(kit.stream(), six, five), Error);
  EXPECT_THROW(scale(kit.stream(), words, 2), Error);
  EXPECT_THROW(square_sums(kit.stream(), five, five), Error);
  try {
    convert(kit.stream(), five, six);
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_TRUE(text.find("[5]") != std::string::npos && text.find("[6]") != std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace zero3d::kernels::test
