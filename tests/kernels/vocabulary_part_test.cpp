// Vocabularies in parts, as tensor-parallel ranks hold them: the parts together are the whole, and
// padding is never seen.
#include <gtest/gtest.h>

#include "zero3d/kernels/elementwise.h"
#include "zero3d/kernels/embedding.h"
#include "zero3d/kernels/loss.h"
#include "zero3d/tests/kernels/kit.h"

namespace zero3d::kernels {
namespace {

using namespace test;

constexpr std::int64_t kRows = 11;

/// Columns (or rows) of a part with room for `stored`; what is padding is a trap.
Values part_of(const Values& whole, std::int64_t outer, std::int64_t total,
               const VocabularyPart& part, std::int64_t stored, std::int64_t inner) {
  Values values(static_cast<std::size_t>(outer * stored * inner), 1e4);
  for (std::int64_t row = 0; row < outer; ++row)
    for (std::int64_t i = 0; i < part.count * inner; ++i)
      values[static_cast<std::size_t>(row * stored * inner + i)] =
          whole[static_cast<std::size_t>((row * total + part.first) * inner + i)];
  return values;
}

TEST(VocabularyPart, DealsInOrderAndTheLastHoldLess) {
  EXPECT_EQ(VocabularyPart::of_rank(0, 16, 61).count, 16);
  EXPECT_EQ(VocabularyPart::of_rank(3, 16, 61).count, 13);
  EXPECT_EQ(VocabularyPart::of_rank(3, 2, 5).count, 0);
  EXPECT_EQ(VocabularyPart::of_rank(2, 2, 5).first, 4);
}

TEST(VocabularyPart, CrossEntropyOfPartsIsThatOfTheWhole) {
  for_each_target([] {
    for (const DType dtype : float_dtypes())
      for (const std::int64_t total : {1, 5, 61, 2500})
        for (const int ranks : {1, 2, 4}) {
          Kit kit;
          const std::int64_t stored = (total + ranks - 1) / ranks;
          const View logits = kit.random(dtype, {kRows, total}, "logits", 4);
          const Values before = kit.read(logits);
          const View targets = kit.filled(DType::i32, {kRows}, [&](std::int64_t i) {
            return i % 5 == 3 ? static_cast<double>(kIgnoreTarget)
                              : static_cast<double>((i * 7919 + 1) % total);
          });
          const View lse = kit.output(DType::f32, {kRows}), loss = kit.output(DType::f32, {2});
          const View seed = kit.from(DType::f32, {1}, {3});
          cross_entropy_forward(kit.stream(), logits, targets, lse, loss);
          cross_entropy_backward(kit.stream(), logits, targets, lse, loss, seed);

          const View all = kit.output(DType::f32, {ranks, 3, kRows});
          std::vector<View> parts;
          for (int rank = 0; rank < ranks; ++rank) {
            const auto part = VocabularyPart::of_rank(rank, stored, total);
            parts.push_back(
                kit.from(dtype, {kRows, stored}, part_of(before, kRows, total, part, stored, 1)));
            cross_entropy_statistics(kit.stream(), parts.back(), targets, part,
                                     all.flat(rank * 3 * kRows, 3 * kRows));
          }
          const View joined_lse = kit.output(DType::f32, {kRows});
          const View joined = kit.output(DType::f32, {2});
          cross_entropy_join(kit.stream(), all, targets, joined_lse, joined);
          expect_close(kit.read(joined_lse), kit.read(lse), DType::f32, 8, 1e-6, "lse");
          expect_close(kit.read(joined), kit.read(loss), DType::f32, 16, 1e-5, "loss");
          const Values want = kit.read(logits);
          for (int rank = 0; rank < ranks; ++rank) {
            const auto part = VocabularyPart::of_rank(rank, stored, total);
            const View& mine = parts[static_cast<std::size_t>(rank)];
            cross_entropy_backward(kit.stream(), mine, targets, lse, joined, seed, part);
            Values expected = part_of(want, kRows, total, part, stored, 1);
            for (double& value : expected)
              if (value == 1e4) value = 0;  // padding has no gradient
            const Values got = kit.read(mine);
            expect_close(got, expected, dtype, 16, 1e-5, "dlogits");
            for (std::int64_t i = 0; i < kRows * stored; ++i) {
              if (i % stored >= part.count) {
                ASSERT_EQ(got[static_cast<std::size_t>(i)], 0);
              }
            }
          }
        }
  });
}

TEST(VocabularyPart, EmbeddingsOfPartsAddUpToThatOfTheWhole) {
  constexpr std::int64_t kTotal = 23, kWidth = 19, kRanks = 4, kStored = 6, kSeq = 7;
  for (const DType dtype : float_dtypes()) {
    Kit kit;
    const View tokens = kit.filled(DType::i32, {3, kSeq}, [](std::int64_t i) {
      return static_cast<double>((i * 31 + 5) % kTotal);
    });
    const View table = kit.random(dtype, {kTotal, kWidth}, "table");
    const View positions = kit.random(dtype, {kSeq, kWidth}, "positions");
    const View want = kit.output(dtype, {3 * kSeq, kWidth});
    const View dout = kit.random(dtype, {3 * kSeq, kWidth}, "dout");
    const View dtable = kit.output(dtype, {kTotal, kWidth});
    embedding_forward(kit.stream(), tokens, table, positions, want);
    embedding_backward(kit.stream(), tokens, dout, dtable, false, 4);
    const Values rows = kit.read(table), gradient = kit.read(dtable);
    Values sum(static_cast<std::size_t>(3 * kSeq * kWidth), 0.0);
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto part = VocabularyPart::of_rank(rank, kStored, kTotal);
      const View mine =
          kit.from(dtype, {kStored, kWidth}, part_of(rows, 1, kTotal, part, kStored, kWidth));
      const View out = kit.output(dtype, {3 * kSeq, kWidth});
      embedding_forward(kit.stream(), tokens, mine, positions, out, part);
      const Values got = kit.read(out);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += got[i];
      const View dmine = kit.output(dtype, {kStored, kWidth});
      embedding_backward(kit.stream(), tokens, dout, dmine, false, 4, part);
      Values expected = part_of(gradient, 1, kTotal, part, kStored, kWidth);
      for (double& value : expected)
        if (value == 1e4) value = 0;
      EXPECT_EQ(kit.read(dmine), expected) << rank;
    }
    EXPECT_EQ(sum, kit.read(want));
  }
}

TEST(VocabularyPart, IsHeldToWhatIsStoredAndTokensToTheWhole) {
  Kit kit;
  const View table = kit.random(DType::f32, {4, 3}, "table");
  const View out = kit.output(DType::f32, {1, 3});
  const auto forward = [&](std::int32_t token, const VocabularyPart& part) {
    embedding_forward(kit.stream(), kit.from(DType::i32, {1, 1}, {static_cast<double>(token)}),
                      table, {}, out, part);
  };
  EXPECT_THROW(forward(0, {0, 5, 9}), Error);
  EXPECT_THROW(forward(0, {6, 4, 9}), Error);
  forward(8, {0, 4, 9});
  EXPECT_EQ(kit.read(out), Values(3, 0.0));
  forward(9, {0, 4, 9});
  EXPECT_NE(kit.failure().find("[0, 9)"), std::string::npos) << kit.failure();
}

TEST(CopyColumns, MovesColumnsBetweenMatrices) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Kit kit;
    const View from = kit.random(dtype, {5, 7}, "from");
    const View to = kit.from(dtype, {5, 4}, Values(20, 0.0));
    copy_columns(kit.stream(), Columns(from, 3, 2), Columns(to, 1, 2));
    const Values source = kit.read(from), got = kit.read(to);
    for (std::size_t row = 0; row < 5; ++row) {
      EXPECT_EQ(got[row * 4], 0);
      EXPECT_EQ(got[row * 4 + 1], source[row * 7 + 3]);
      EXPECT_EQ(got[row * 4 + 2], source[row * 7 + 4]);
      EXPECT_EQ(got[row * 4 + 3], 0);
    }
    EXPECT_THROW(copy_columns(kit.stream(), Columns(from, 3, 2), Columns(to, 3, 2)), Error);
  }
}

}  // namespace
}  // namespace zero3d::kernels
