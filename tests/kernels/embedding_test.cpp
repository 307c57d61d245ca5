// Embeddings against plain sums: rounding once, order by row, and tokens outside the table.
#include "zero3d/kernels/embedding.h"

#include "zero3d/tests/kernels/kit.h"

namespace zero3d::kernels {
namespace {

using namespace test;

constexpr std::int64_t kBatch = 3, kSeq = 37, kVocabulary = 23;

View tokens_of(Kit& kit) {
  return kit.filled(DType::i32, {kBatch, kSeq}, [](std::int64_t i) {
    return static_cast<double>(RandomKey{}.word(0, static_cast<std::uint64_t>(i)) %
                               (kVocabulary - 1));
  });
}

TEST(Embedding, AddsTokenAndPosition) {
  for_each_target([] {
    for (const DType dtype : float_dtypes())
      for (const std::int64_t width : {1, 8, 33, 70}) {
        Kit kit;
        const View tokens = tokens_of(kit);
        const View table = kit.random(dtype, {kVocabulary, width}, "table");
        const View positions = kit.random(dtype, {kSeq + 4, width}, "positions");
        const View out = kit.output(dtype, {kBatch * kSeq, width});
        const View plain = kit.output(dtype, {kBatch * kSeq, width});
        embedding_forward(kit.stream(), tokens, table, positions, out);
        embedding_forward(kit.stream(), tokens, table, {}, plain);
        const Values ids = kit.read(tokens), rows = kit.read(table), at = kit.read(positions);
        const Values got = kit.read(out), got_plain = kit.read(plain);
        const auto w = static_cast<std::size_t>(width);
        for (std::size_t i = 0; i < got.size(); ++i) {
          const double entry = rows[static_cast<std::size_t>(ids[i / w]) * w + i % w];
          const double sum = entry + at[i / w % static_cast<std::size_t>(kSeq) * w + i % w];
          std::byte rounded[8];
          write_element(rounded, dtype, 0, static_cast<float>(sum));
          ASSERT_EQ(got[i], read_element(rounded, dtype, 0));
          ASSERT_EQ(got_plain[i], entry);
        }
      }
  });
}

TEST(Embedding, GradientSumsInRowOrder) {
  for_each_target([] {
    for (const DType dtype : float_dtypes())
      for (const DType table_dtype : {dtype, DType::f32})
        for (const bool accumulate : {false, true}) {
          Kit kit;
          const std::int64_t width = 35;
          const View tokens = tokens_of(kit);
          const View dout = kit.random(dtype, {kBatch * kSeq, width}, "dout");
          const View dtable = kit.random(table_dtype, {kVocabulary, width}, "old");
          const View dpositions = kit.random(table_dtype, {kSeq + 4, width}, "old positions");
          const Values old = kit.read(dtable), old_positions = kit.read(dpositions);
          embedding_backward(kit.stream(), tokens, dout, dtable, accumulate);
          position_backward(kit.stream(), dout, kSeq, dpositions, accumulate);
          const Values ids = kit.read(tokens), d = kit.read(dout);
          const Values got = kit.read(dtable), got_positions = kit.read(dpositions);
          const auto w = static_cast<std::size_t>(width);
          const auto expect = [&](const Values& all, const Values& before, std::size_t row,
                                  const std::function<bool(std::size_t)>& belongs) {
            for (std::size_t c = 0; c < w; ++c) {
              float sum = 0;
              bool any = false;
              for (std::size_t r = 0; r < static_cast<std::size_t>(kBatch * kSeq); ++r)
                if (belongs(r)) {
                  sum += static_cast<float>(d[r * w + c]);
                  any = true;
                }
              if (accumulate && any) sum = static_cast<float>(before[row * w + c]) + sum;
              if (accumulate && !any) sum = static_cast<float>(before[row * w + c]);
              std::byte rounded[8];
              write_element(rounded, table_dtype, 0, sum);
              ASSERT_EQ(all[row * w + c], read_element(rounded, table_dtype, 0)) << row;
            }
          };
          for (std::size_t row = 0; row < static_cast<std::size_t>(kVocabulary); ++row)
            expect(got, old, row,
                   [&](std::size_t r) { return static_cast<std::size_t>(ids[r]) == row; });
          for (std::size_t row = 0; row < static_cast<std::size_t>(kSeq + 4); ++row)
            expect(got_positions, old_positions, row,
                   [&](std::size_t r) { return r % static_cast<std::size_t>(kSeq) == row; });
        }
  });
}

TEST(Embedding, BitsDependNeitherOnThreadsNorOnAlignment) {
  expect_same_bits(
      [](Kit& kit) {
        const View tokens = tokens_of(kit);
        const View dout = kit.random(DType::bf16, {kBatch * kSeq, 515}, "dout");
        const View dtable = kit.random(DType::bf16, {kVocabulary, 515}, "old");
        const View dpositions = kit.output(DType::bf16, {kSeq, 515});
        embedding_backward(kit.stream(), tokens, dout, dtable, true);
        position_backward(kit.stream(), dout, kSeq, dpositions, false);
        return kit.bits(dtable) + kit.bits(dpositions);
      },
      "embedding");
}

TEST(Embedding, PaddingGetsNoGradient) {
  for (const bool accumulate : {false, true}) {
    Kit kit;
    const View tokens =
        kit.filled(DType::i32, {1, 6}, [](std::int64_t i) { return static_cast<double>(i % 3); });
    const View dout = kit.random(DType::f32, {6, 4}, "d");
    const View table = kit.random(DType::f32, {3, 4}, "old"),
               other = kit.random(DType::f32, {3, 4}, "old");
    const Values old = kit.read(table);
    embedding_backward(kit.stream(), tokens, dout, table, accumulate, 1);
    embedding_backward(kit.stream(), tokens, dout, other, accumulate);
    const Values got = kit.read(table), all = kit.read(other);
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(got[i], i / 4 != 1 ? all[i] : accumulate ? old[i] : 0.0) << i;
  }
}

/// A table in parts of its rows: each part does its tokens, and the whole comes out, to the bit.
TEST(Embedding, TakesThePartsOfATableOneByOne) {
  for (const DType dtype : float_dtypes()) {
    const std::int64_t width = 35;
    Kit kit;
    const View tokens = tokens_of(kit);
    const View table = kit.random(dtype, {kVocabulary, width}, "table");
    const View positions = kit.random(dtype, {kSeq, width}, "positions");
    const View dout = kit.random(dtype, {kBatch * kSeq, width}, "dout");
    const View whole = kit.output(dtype, {kBatch * kSeq, width});
    const View parts = kit.output(dtype, {kBatch * kSeq, width});
    const View dwhole = kit.output(dtype, {kVocabulary, width});
    const View dparts = kit.output(dtype, {kVocabulary, width});
    embedding_forward(kit.stream(), tokens, table, positions, whole);
    embedding_backward(kit.stream(), tokens, dout, dwhole, false, 4);
    std::int64_t first = 0;
    for (const std::int64_t count : {9, 1, 13}) {
      const auto part_of = [&](const View& of) {
        return of.flat(first * width, count * width).reshaped({count, width});
      };
      const VocabularyPart part{first, count, kVocabulary};
      embedding_forward(kit.stream(), tokens, part_of(table), positions, parts, part,
                        OtherTokens::keep);
      embedding_backward(kit.stream(), tokens, dout, part_of(dparts), false, 4, part);
      first += count;
    }
    EXPECT_EQ(kit.bits(parts), kit.bits(whole));
    EXPECT_EQ(kit.bits(dparts), kit.bits(dwhole));
    EXPECT_THROW(
        embedding_forward(kit.stream(), tokens, table, {}, parts, {1, kVocabulary, kVocabulary}),
        Error);
  }
}

TEST(Embedding, FrozenTableIsLeftOut) {
  Kit kit;
  embedding_backward(kit.stream(), tokens_of(kit), kit.random(DType::f32, {kBatch * kSeq, 4}, "d"),
                     {}, false);
  EXPECT_EQ(kit.failure(), "");
}

TEST(Embedding, NamesATokenOutsideTheTable) {
  for (const int bad : {-1, 23, 50000}) {
    Kit kit;
    const View tokens =
        kit.filled(DType::i32, {1, 4}, [&](std::int64_t i) { return i == 2 ? bad : 1; });
    const View table = kit.random(DType::f32, {kVocabulary, 4}, "table");
    const View out = kit.output(DType::f32, {4, 4});
    embedding_forward(kit.stream(), tokens, table, {}, out);
    EXPECT_NE(kit.failure().find(concat("token 2 is ", bad)), std::string::npos) << kit.failure();
    Kit other;
    embedding_backward(
        other.stream(),
        other.filled(DType::i32, {1, 4}, [&](std::int64_t i) { return i == 2 ? bad : 1; }),
        other.random(DType::f32, {4, 4}, "d"), other.output(DType::f32, {kVocabulary, 4}), false);
    EXPECT_NE(other.failure().find(concat("token 2 is ", bad)), std::string::npos);
  }
}

}  // namespace
}  // namespace zero3d::kernels
