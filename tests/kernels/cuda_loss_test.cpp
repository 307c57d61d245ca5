// Cross-entropy on a GPU against the CPU's, over odd vocabularies, and its promise that a row read
// in parts of whole blocks of 2,048 gives the same bits.
#include "zero3d/kernels/cpu/loss.h"
#include "zero3d/kernels/loss.h"
#include "zero3d/tests/kernels/cuda_kit.h"

namespace zero3d::kernels::test {
namespace {

std::int32_t target_of(std::int64_t row, std::int64_t vocabulary) {
  return row % 4 == 3 ? kIgnoreTarget : static_cast<std::int32_t>((row * 7919 + 5) % vocabulary);
}

TEST(CudaLoss, ForwardAndBackwardMatchTheCpu) {
  for_dtypes([](DType dtype, std::int64_t offset) {
    for (const std::int64_t vocabulary : {1, 8, 37, 2048, 5000, 50257}) {
      const std::int64_t rows = vocabulary > 10000 ? 3 : 9;
      SCOPED_TRACE(vocabulary);
      CudaKit kit(offset);
      const Tensor logits = kit.filled(dtype, rows * vocabulary, [](std::int64_t i) {
        return i % 211 == 7 ? -HUGE_VAL : 4 * random_normal(5, 6, static_cast<std::uint64_t>(i));
      });
      const Tensor targets = kit.filled(
          DType::i32, rows, [&](std::int64_t row) { return target_of(row, vocabulary); });
      const Tensor lse = kit.output(DType::f32, rows), loss = kit.output(DType::f32, 2);
      const Tensor seed = kit.filled(DType::f32, 1, [](std::int64_t) { return 512.0; });
      const auto forward = [&](bool gpu) {
        return CrossEntropyArgs{dtype,
                                rows,
                                vocabulary,
                                logits.on<void>(gpu),
                                targets.on<std::int32_t>(gpu),
                                lse.on<float>(gpu),
                                loss.on<float>(gpu)};
      };
      cpu::cross_entropy_forward(forward(false));
      const auto found = cuda::state_of(kit.stream()).begin_check();
      cuda::cross_entropy_forward(forward(true), kit.stream());
      kit.expect_close(lse, 8, 1e-6, "lse");
      kit.expect_close(loss, 16, 1e-5, "loss");
      const auto backward = [&](bool gpu) {
        CrossEntropyGradientArgs a;
        a.dtype = dtype;
        a.rows = rows;
        a.columns = vocabulary;
        a.part = VocabularyPart::all(vocabulary);
        a.logits = logits.on<void>(gpu);
        a.targets = targets.on<std::int32_t>(gpu);
        a.lse = lse.on<float>(gpu);
        a.loss = loss.on<float>(gpu);
        a.seed = seed.on<float>(gpu);
        return a;
      };
      cpu::cross_entropy_backward(backward(false));
      cuda::cross_entropy_backward(backward(true), kit.stream());
      kit.expect_close(logits, dtype == DType::f32 ? 64 : 2, dtype == DType::f16 ? 1e-7 : 1e-9,
                       "gradient");
      cuda::state_of(kit.stream()).end_check();
      kit.sync();
      EXPECT_EQ(*found, cuda::kNoBadElement);
    }
  });
}

/// Statistics of [rows, columns] logits of which `part` counts.
CrossEntropyPartArgs part_args(DType dtype, std::int64_t rows, std::int64_t columns,
                               const VocabularyPart& part, const void* logits,
                               const Tensor& targets, const Tensor& statistics, bool gpu) {
  CrossEntropyPartArgs a;
  a.dtype = dtype;
  a.rows = rows;
  a.columns = columns;
  a.part = part;
  a.logits = logits;
  a.targets = targets.on<std::int32_t>(gpu);
  a.statistics = statistics.on<float>(gpu);
  return a;
}

TEST(CudaLoss, PartsOfAVocabularyMatchTheCpuAndTheWhole) {
  constexpr std::int64_t kRows = 5, kVocabulary = 2048 * 2 + 77, kFirst = 2048;
  for_dtypes([](DType dtype, std::int64_t offset) {
    CudaKit kit(offset);
    const auto logit = [](std::int64_t row, std::int64_t column) {
      return 4 * random_normal(5, 6, static_cast<std::uint64_t>(row * kVocabulary + column));
    };
    const Tensor whole = kit.filled(dtype, kRows * kVocabulary, [&](std::int64_t i) {
      return logit(i / kVocabulary, i % kVocabulary);
    });
    const Tensor left = kit.filled(dtype, kRows * kFirst,
                                   [&](std::int64_t i) { return logit(i / kFirst, i % kFirst); });
    constexpr std::int64_t kStored = 2200;  // with padding
    const Tensor right = kit.filled(dtype, kRows * kStored, [&](std::int64_t i) {
      const std::int64_t column = kFirst + i % kStored;
      return column < kVocabulary ? logit(i / kStored, column) : 1e4;
    });
    const Tensor targets = kit.filled(
        DType::i32, kRows, [&](std::int64_t row) { return target_of(row, kVocabulary); });
    const Tensor statistics = kit.output(DType::f32, 2 * 3 * kRows);
    const Tensor going_on = kit.output(DType::f32, 3 * kRows);
    const Tensor lse = kit.output(DType::f32, kRows), loss = kit.output(DType::f32, 2);
    const Tensor one_lse = kit.output(DType::f32, kRows), one_loss = kit.output(DType::f32, 2);
    const VocabularyPart parts[] = {{0, kFirst, kVocabulary},
                                    {kFirst, kVocabulary - kFirst, kVocabulary}};
    for (const bool gpu : {false, true}) {
      CrossEntropyPartArgs a =
          part_args(dtype, kRows, kFirst, parts[0], left.on<void>(gpu), targets, statistics, gpu);
      CrossEntropyPartArgs b =
          part_args(dtype, kRows, kStored, parts[1], right.on<void>(gpu), targets, statistics, gpu);
      b.statistics += 3 * kRows;
      CrossEntropyPartArgs c = a, d = b;
      c.statistics = d.statistics = going_on.on<float>(gpu);
      d.continues = true;
      for (const CrossEntropyPartArgs& args : {a, b, c, d})
        gpu ? cuda::cross_entropy_statistics(args, kit.stream())
            : cpu::cross_entropy_statistics(args);
      const CrossEntropyJoinArgs join{2,
                                      kRows,
                                      statistics.on<float>(gpu),
                                      targets.on<std::int32_t>(gpu),
                                      lse.on<float>(gpu),
                                      loss.on<float>(gpu)};
      gpu ? cuda::cross_entropy_join(join, kit.stream()) : cpu::cross_entropy_join(join);
    }
    kit.expect_close(statistics, 16, 1e-6, "statistics");
    kit.expect_close(lse, 8, 1e-6, "lse of parts");
    kit.expect_close(loss, 16, 1e-5, "loss of parts");
    // Going on from part to part is the whole, to the bit.
    cuda::cross_entropy_join({1, kRows, going_on.on<float>(true), targets.on<std::int32_t>(true),
                              lse.on<float>(true), loss.on<float>(true)},
                             kit.stream());
    cuda::cross_entropy_forward(
        {dtype, kRows, kVocabulary, whole.on<void>(true), targets.on<std::int32_t>(true),
         one_lse.on<float>(true), one_loss.on<float>(true)},
        kit.stream());
    EXPECT_EQ(kit.read(lse), kit.read(one_lse));
    EXPECT_EQ(kit.read(loss), kit.read(one_loss));
  });
}

TEST(CudaLoss, MeanLossesAddUpAsOnTheCpu) {
  CudaKit kit;
  const Tensor loss = kit.filled(DType::f32, 4, [](std::int64_t i) { return i < 2 ? 7.3 - i : 0; });
  const Tensor means = kit.output(DType::f64, 2);
  for (const bool gpu : {false, true})
    for (const int at : {0, 2, 0}) {
      const MeanLossArgs args{loss.on<float>(gpu) + at, means.on<double>(gpu), at == 2};
      gpu ? cuda::add_mean_loss(args, kit.stream()) : cpu::add_mean_loss(args);
    }
  kit.expect_same(means, "mean loss");
}

TEST(CudaLoss, ATargetOutsideTheVocabularyIsReported) {
  CudaKit kit;
  const Tensor logits = kit.random(DType::f32, 4 * 10, "x");
  const Tensor targets = kit.filled(DType::i32, 4, [](std::int64_t row) {
    return row < 2 ? 3 : row == 2 ? 10 : -7;
  });
  const Tensor lse = kit.output(DType::f32, 4), loss = kit.output(DType::f32, 2);
  const auto word = cuda::state_of(kit.stream()).begin_check();
  cuda::cross_entropy_forward(
      {DType::f32, 4, 10, logits.on<void>(true), targets.on<std::int32_t>(true),
       lse.on<float>(true), loss.on<float>(true)},
      kit.stream());
  cuda::state_of(kit.stream()).end_check();
  kit.sync();
  const cuda::BadElement bad = cuda::bad_element(*word);
  EXPECT_EQ(bad.row, 2);
  EXPECT_EQ(bad.value, 10);
}

}  // namespace
}  // namespace zero3d::kernels::test
