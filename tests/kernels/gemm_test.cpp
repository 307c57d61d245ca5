// Matrix products and column sums against fp64 references over extents 0, 1, primes and tile edges,
// all transposes and dtypes; and the same bits whatever the threads and the alignment.
#include "zero3d/kernels/gemm.h"

#include <cmath>

#include "kit.h"

namespace zero3d::kernels::test {
namespace {

struct Case {
  std::int64_t m, n, k;
  bool trans_a = false, trans_b = false;
  DType in = DType::f32, out = DType::f32;
  bool bias = false, residual = false, accumulate = false;

  std::string text() const {
    return concat(m, "x", n, "x", k, trans_a ? " A^T" : "", trans_b ? " B^T" : "", " ", name_of(in),
                  "->", name_of(out), bias ? " bias" : "", residual ? " residual" : "",
                  accumulate ? " accumulate" : "");
  }
};

struct Tensors {
  View a, b, bias, residual, c;
};

/// Normal values, repeated: large operands cost little to make.
View operand(Kit& kit, DType dtype, const Shape& shape, std::size_t start) {
  static const Values values = [] {
    Values all;
    for (std::uint64_t i = 0; i < 4099; ++i) all.push_back(random_normal(1, 2, i));
    return all;
  }();
  return kit.filled(dtype, shape, [start](std::int64_t i) {
    return values[(static_cast<std::size_t>(i) + start) % values.size()];
  });
}

Tensors make_tensors(Kit& kit, const Case& t) {
  Tensors tensors;
  tensors.a = operand(kit, t.in, t.trans_a ? Shape{t.k, t.m} : Shape{t.m, t.k}, 0);
  tensors.b = operand(kit, t.in, t.trans_b ? Shape{t.n, t.k} : Shape{t.k, t.n}, 1000);
  if (t.bias) tensors.bias = kit.random(t.in, {t.n}, "bias");
  if (t.residual) tensors.residual = kit.random(t.out, {t.m, t.n}, "residual");
  tensors.c = t.accumulate ? kit.random(t.out, {t.m, t.n}, "c") : kit.output(t.out, {t.m, t.n});
  return tensors;
}

Gemm arguments(const Case& t, const Tensors& tensors) {
  Gemm g;
  g.a = tensors.a;
  g.b = tensors.b;
  g.trans_a = t.trans_a ? Transpose::yes : Transpose::no;
  g.trans_b = t.trans_b ? Transpose::yes : Transpose::no;
  g.c = tensors.c;
  g.bias = tensors.bias;
  g.residual = tensors.residual;
  g.accumulate = t.accumulate;
  return g;
}

/// The result in fp64, and for each element the sum of the magnitudes that went into it.
void reference(Kit& kit, const Case& t, const Tensors& tensors, Values& want, Values& magnitude) {
  const Values a = kit.read(tensors.a), b = kit.read(tensors.b), c = kit.read(tensors.c);
  const Values bias = t.bias ? kit.read(tensors.bias) : Values();
  const Values residual = t.residual ? kit.read(tensors.residual) : Values();
  for (std::int64_t i = 0; i < t.m; ++i) {
    for (std::int64_t j = 0; j < t.n; ++j) {
      const auto at = static_cast<std::size_t>(i * t.n + j);
      double sum = 0, size = 0;
      const auto add = [&](double term) {
        sum += term;
        size += std::abs(term);
      };
      for (std::int64_t p = 0; p < t.k; ++p)
        add(a[static_cast<std::size_t>(t.trans_a ? p * t.m + i : i * t.k + p)] *
            b[static_cast<std::size_t>(t.trans_b ? j * t.k + p : p * t.n + j)]);
      if (t.bias) add(bias[static_cast<std::size_t>(j)]);
      if (t.residual) add(residual[at]);
      if (t.accumulate) add(c[at]);
      want.push_back(sum);
      magnitude.push_back(size);
    }
  }
}

/// The product's error is bounded by that of its fp32 sums plus the one rounding of the store.
void check(const Case& t, std::int64_t offset = 1) {
  SCOPED_TRACE(t.text());
  Kit kit(2, offset);
  const Tensors tensors = make_tensors(kit, t);
  Values want, magnitude;
  reference(kit, t, tensors, want, magnitude);
  gemm(kit.stream(), arguments(t, tensors));
  const Values got = kit.read(tensors.c);
  const double sum_error = 0x1p-24 * (4 + 2 * std::sqrt(static_cast<double>(t.k)));
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double allowed = sum_error * magnitude[i] + precision_of(t.out) * std::abs(want[i]) +
                           0x1p-24 * precision_of(t.out);
    ASSERT_LE(std::abs(got[i] - want[i]), allowed)
        << "element " << i << " is " << got[i] << ", expected " << want[i];
  }
}

TEST(Gemm, OddExtentsAndAllTransposes) {
  for (const std::int64_t m : {1, 2, 17, 97})
    for (const std::int64_t n : {1, 3, 31, 101})
      for (const std::int64_t k : {0, 1, 7, 67, 131})
        for (const bool trans_a : {false, true})
          for (const bool trans_b : {false, true}) check({m, n, k, trans_a, trans_b});
}

TEST(Gemm, EmptyResultsAreNoWork) {
  check({0, 5, 3});
  check({5, 0, 3});
  check({0, 0, 0});
}

TEST(Gemm, AllDtypesAndEpilogues) {
  for (const DType in : float_dtypes())
    for (const DType out : float_dtypes())
      for (int flags = 0; flags < 8; ++flags)
        for (const bool trans : {false, true})
          check({37, 53, 41, trans, !trans, in, out, (flags & 1) != 0, (flags & 2) != 0,
                 (flags & 4) != 0});
}

TEST(Gemm, TransposesOf16Bit) {
  for (const DType in : {DType::bf16, DType::f16})
    for (const bool trans_a : {false, true})
      for (const bool trans_b : {false, true})
        for (const std::int64_t k : {0, 1, 2, 63, 521})
          check({35, 49, k, trans_a, trans_b, in, in});
}

/// Where oneDNN 2.6 by itself may run into an illegal instruction.
TEST(Gemm, KOneBelowAMultipleOf32) {
  for (const DType out : {DType::bf16, DType::f32})
    for (const std::int64_t m : {36, 65, 130})
      for (const std::int64_t k : {31, 63, 95, 2047})
        for (const bool trans : {false, true})
          check({m, 36, k, trans, !trans, DType::bf16, out, true});
}

TEST(Gemm, SeveralTilesWithRaggedEdges) {
  for (const DType in : float_dtypes())
    for (const bool trans : {false, true}) {
      check({259, 1543, 29, trans, !trans, in, in, true, true});
      check({521, 97, 600, trans, trans, in, DType::f32, true, false, true});
    }
}

TEST(Gemm, LongSumsAreRoundedOnce) {
  for (const DType dtype : float_dtypes())
    for (const bool trans_a : {false, true})
      for (const bool trans_b : {false, true})
        check({5, 18, 50257, trans_a, trans_b, dtype, dtype, true});
}

TEST(Gemm, RoundsOnce) {
  // 1 + 2^-9 + 3 * 2^-9 is a bf16 value; rounding the product first would lose its 2^-9.
  Kit kit;
  const auto constant = [&](DType dtype, const Shape& shape, double value) {
    return kit.filled(dtype, shape, [value](std::int64_t) { return value; });
  };
  Gemm g;
  g.a = kit.from(DType::bf16, {1, 2}, {1, 0x1p-9});
  g.b = constant(DType::bf16, {2, 1}, 1);
  g.residual = constant(DType::bf16, {1, 1}, 3 * 0x1p-9);
  g.c = kit.output(DType::bf16, {1, 1});
  gemm(kit.stream(), g);
  EXPECT_EQ(kit.read(g.c)[0], 1 + 0x1p-7);
}

TEST(Gemm, ResidualMayBeTheResult) {
  for (const DType dtype : float_dtypes()) {
    const Case t{33, 70, 19, false, false, dtype, dtype, true, true};
    Kit kit;
    const Tensors apart = make_tensors(kit, t);
    gemm(kit.stream(), arguments(t, apart));
    Gemm together = arguments(t, apart);
    together.c = apart.residual;
    const std::string want = kit.bits(apart.c);
    gemm(kit.stream(), together);
    EXPECT_TRUE(kit.bits(apart.residual) == want) << name_of(dtype);
  }
}

TEST(Gemm, AccumulationIsOneAddAfterTheProduct) {
  for (const std::int64_t k : {1, 300, 4096}) {
    Case t{64, 64, k};
    Kit kit;
    Tensors tensors = make_tensors(kit, t);
    gemm(kit.stream(), arguments(t, tensors));
    const Values product = kit.read(tensors.c);
    t.accumulate = true;
    tensors.c = kit.random(DType::f32, {t.m, t.n}, "c");
    const Values before = kit.read(tensors.c);
    gemm(kit.stream(), arguments(t, tensors));
    const Values after = kit.read(tensors.c);
    for (std::size_t i = 0; i < after.size(); ++i)
      ASSERT_EQ(after[i], static_cast<float>(before[i]) + static_cast<float>(product[i]))
          << "k " << k << " element " << i;
  }
}

TEST(Gemm, SameBitsWhateverTheThreadsAndTheAlignment) {
  for (const DType in : float_dtypes())
    for (const bool trans_a : {false, true})
      for (const bool trans_b : {false, true})
        for (const Case& t : {Case{64, 64, 4096, trans_a, trans_b, in, in, true},
                              Case{131, 1601, 67, trans_a, trans_b, in, DType::f32, false, true}})
          expect_same_bits(
              [&](Kit& kit) {
                const Tensors tensors = make_tensors(kit, t);
                gemm(kit.stream(), arguments(t, tensors));
                return kit.bits(tensors.c);
              },
              t.text());
}

TEST(Gemm, InfinityAndNanReachTheResult) {
  for (const DType dtype : float_dtypes()) {
    Kit kit;
    Gemm g;
    g.a = kit.from(dtype, {2, 2}, {INFINITY, 1, 1, 1});
    g.b = kit.from(dtype, {2, 2}, {1, NAN, 2, 3});
    g.c = kit.output(dtype, {2, 2});
    gemm(kit.stream(), g);
    const Values c = kit.read(g.c);
    EXPECT_TRUE(std::isinf(c[0]) && std::isnan(c[1]) && c[2] == 3 && std::isnan(c[3]))
        << name_of(dtype);
  }
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

TEST(Gemm, RefusesWhatDoesNotFitAndNamesBothShapes) {
  Kit kit;
  Gemm g;
  g.a = kit.output(DType::f32, {2, 3});
  g.b = kit.output(DType::f32, {4, 5});
  g.c = kit.output(DType::f32, {2, 5});
  g.what = "query projection";
  const std::string inner = message_of([&] { gemm(kit.stream(), g); });
  for (const char* part : {"query projection", "[2, 3]", "[4, 5]"})
    EXPECT_NE(inner.find(part), std::string::npos) << inner;
  g.b = kit.output(DType::f32, {3, 4});
  const std::string outer = message_of([&] { gemm(kit.stream(), g); });
  for (const char* part : {"[2, 4]", "[2, 5]"})
    EXPECT_NE(outer.find(part), std::string::npos) << outer;
  g.b = kit.output(DType::bf16, {3, 5});
  EXPECT_NE(message_of([&] { gemm(kit.stream(), g); }).find("one dtype"), std::string::npos);
  g.b = kit.output(DType::f32, {3, 5});
  g.bias = kit.output(DType::f32, {2});
  EXPECT_NE(message_of([&] { gemm(kit.stream(), g); }).find("bias"), std::string::npos);
}

/// Columns of wider matrices, at a ragged place: the product of copies of them, and nothing else
/// of C is written.
TEST(Gemm, TakesColumnsOfWiderMatrices) {
  for (const DType dtype : float_dtypes())
    for (const bool trans : {false, true}) {
      const std::int64_t m = 37, n = 53, k = 41, wide = 70, first = 11;
      Kit kit(2, 1);
      const auto narrow = [&](const View& of, std::int64_t rows, std::int64_t count) {
        const Values values = kit.read(of);
        return kit.filled(of.dtype(), {rows, count}, [&](std::int64_t i) {
          return values[static_cast<std::size_t>(i / count * wide + first + i % count)];
        });
      };
      const Transpose turned = trans ? Transpose::yes : Transpose::no;
      const View a = kit.random(dtype, {trans ? k : m, wide}, "a");
      const View b = kit.random(dtype, {trans ? n : k, wide}, "b");
      const View c = kit.output(dtype, {m, wide});
      const View residual = kit.random(dtype, {m, wide}, "residual");
      Gemm g;
      g.a = a;
      g.b = b;
      g.c = c;
      g.trans_a = g.trans_b = turned;
      g.bias = kit.random(dtype, {n}, "bias");
      g.residual = residual;
      g.a_columns = {first, trans ? m : k};
      g.b_columns = {first, trans ? k : n};
      g.c_columns = {first, n};
      gemm(kit.stream(), g);
      Gemm copies;
      copies.a = narrow(a, trans ? k : m, trans ? m : k);
      copies.b = narrow(b, trans ? n : k, trans ? k : n);
      copies.c = kit.output(dtype, {m, n});
      copies.trans_a = copies.trans_b = turned;
      copies.bias = g.bias;
      copies.residual = narrow(residual, m, n);
      gemm(kit.stream(), copies);
      EXPECT_EQ(kit.bits(narrow(c, m, n)), kit.bits(copies.c)) << name_of(dtype) << trans;
      const Values all = kit.read(c);
      const double untouched = kit.read(kit.output(dtype, {1}))[0];
      for (std::int64_t i = 0; i < m * wide; ++i) {
        if (i % wide < first || i % wide >= first + n) {
          ASSERT_EQ(all[static_cast<std::size_t>(i)], untouched);
        }
      }
      g.c_columns.first = wide - n + 1;
      EXPECT_THROW(gemm(kit.stream(), g), Error);
    }
}

TEST(Gemm, NamesThePathOf16BitProducts) {
  const std::string path = gemm_bf16_path();
  EXPECT_TRUE(path == "avx512_bf16" || path == "amx" || path == "fp32") << path;
}

TEST(ColumnSums, OddExtentsAllDtypes) {
  for (const DType in : float_dtypes())
    for (const DType out : float_dtypes())
      for (const bool accumulate : {false, true})
        for (const std::int64_t rows : {0, 1, 127, 257})
          for (const std::int64_t columns : {0, 1, 131, 300}) {
            Kit kit(2, 1);
            const View x = kit.random(in, {rows, columns}, "x");
            const View sums = kit.random(out, {columns}, "sums");
            Values want = accumulate ? kit.read(sums) : Values(static_cast<std::size_t>(columns));
            const Values values = kit.read(x);
            for (std::size_t i = 0; i < values.size(); ++i)
              want[i % static_cast<std::size_t>(columns)] += values[i];
            column_sums(kit.stream(), x, sums, accumulate);
            expect_close(kit.read(sums), want, out, 1.01, 1e-4, concat("column_sums of ", rows));
          }
}

TEST(ColumnSums, SameBitsWhateverTheThreadsAndTheAlignment) {
  for (const DType dtype : float_dtypes())
    expect_same_bits(
        [&](Kit& kit) {
          const View x = kit.random(dtype, {300, 1031}, "x");
          const View sums = kit.output(dtype, {1031});
          column_sums(kit.stream(), x, sums);
          return kit.bits(sums);
        },
        "column_sums");
}

TEST(ColumnSums, OfSomeColumnsAreThoseOfAll) {
  for (const DType dtype : float_dtypes()) {
    Kit kit;
    const View x = kit.random(dtype, {300, 400}, "x");
    const View all = kit.output(dtype, {400}), some = kit.output(dtype, {150});
    column_sums(kit.stream(), x, all);
    column_sums(kit.stream(), x, some, false, {77, 150});
    EXPECT_EQ(kit.bits(some), kit.bits(all.flat(77, 150)));
    EXPECT_THROW(column_sums(kit.stream(), x, some, false, {300, 150}), Error);
  }
}

TEST(ColumnSums, RefusesAnotherWidth) {
  Kit kit;
  const View x = kit.output(DType::f32, {3, 4});
  const View sums = kit.output(DType::f32, {3});
  EXPECT_NE(message_of([&] { column_sums(kit.stream(), x, sums); }).find("[3, 4]"),
            std::string::npos);
}

}  // namespace
}  // namespace zero3d::kernels::test
