// The update loops, exact sums, Newton-Schulz passes and sums in rank order on a GPU against the
// CPU's: the same bits.
#include "zero3d/kernels/cpu/exact_sums.h"
#include "zero3d/kernels/cpu/newton_schulz.h"
#include "zero3d/kernels/cpu/optimizer.h"
#include "zero3d/kernels/cpu/reduce_sum.h"
#include "zero3d/tests/kernels/cuda_kit.h"

namespace zero3d::kernels::test {
namespace {

/// What the tensors of an update are.
struct Kinds {
  DType master, gradient, state;
  DType copy;
  bool copies;
};

const std::vector<Kinds>& all_kinds() {
  static const std::vector<Kinds> kAll = {
      {DType::f32, DType::f32, DType::f32, DType::f32, false},
      {DType::f32, DType::bf16, DType::f32, DType::bf16, true},
      {DType::f32, DType::f16, DType::bf16, DType::f16, true},
      {DType::bf16, DType::f32, DType::f32, DType::f16, true},
  };
  return kAll;
}

/// More slices than one launch takes, of lengths with tails.
constexpr std::int64_t kLengths[] = {0, 1, 7, 8, 263, 4097};
constexpr int kSliceCount = 52;

/// `touched`: states that the rule keeps; `reads_master` false: it has none.
template <typename Constants>
void expect_same_update(const Constants& constants, std::size_t states, std::int64_t offset,
                        const char* what, bool writes_master = true) {
  for (const Kinds& kinds : all_kinds()) {
    SCOPED_TRACE(concat(what, " with master ", name_of(kinds.master), ", gradient ",
                        name_of(kinds.gradient), ", states ", name_of(kinds.state)));
    CudaKit kit(offset);
    UpdateArgs<Constants> args[2];
    std::vector<Tensor> results;
    for (int s = 0; s < kSliceCount; ++s) {
      const std::int64_t count = s < 6 ? kLengths[s] : 3 + s;
      const Tensor master = kit.random(kinds.master, count, "master");
      const Tensor gradient = kit.filled(kinds.gradient, count, [s](std::int64_t i) {
        return i % 97 == 96 ? HUGE_VAL : random_normal(9, 9, static_cast<std::uint64_t>(i + s));
      });
      std::vector<Tensor> kept;
      for (std::size_t k = 0; k < states; ++k)
        kept.push_back(kit.filled(kinds.state, count, [k](std::int64_t i) {
          return std::abs(random_normal(11, k, static_cast<std::uint64_t>(i)));
        }));
      const Tensor copy = kit.output(kinds.copy, count);
      for (const bool gpu : {false, true}) {
        ElementArrays a;
        a.numel = count;
        a.master = {master.on<std::byte>(gpu), kinds.master};
        a.gradient = {gradient.on<std::byte>(gpu), kinds.gradient};
        for (std::size_t k = 0; k < states; ++k)
          a.states[k] = {kept[k].on<std::byte>(gpu), kinds.state};
        if (kinds.copies && writes_master) a.copy = {copy.on<std::byte>(gpu), kinds.copy};
        args[gpu].slices.push_back(a);
      }
      results.push_back(master);
      results.insert(results.end(), kept.begin(), kept.end());
      if (kinds.copies && writes_master) results.push_back(copy);
    }
    for (const bool gpu : {false, true}) {
      args[gpu].constants = constants;
      args[gpu].isa = choose_isa();
    }
    cpu::update(args[0]);
    cuda::update(args[1], kit.stream());
    for (const Tensor& result : results) kit.expect_same(result, what);
  }
}

class CudaOptimizer : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(CudaOptimizer, RulesHaveTheCpusBits) {
  const std::int64_t offset = GetParam();
  for (const bool decoupled : {true, false})
    expect_same_update(AdamConstants{0.37f, 0.1f, 0.001f, 1.7f, 1e-8f, 3e-4f,
                                     decoupled ? 3e-6f : 0.01f, decoupled},
                       2, offset, "adam");
  expect_same_update(LionConstants{0.37f, 0.1f, 0.01f, 3e-4f, 3e-5f}, 1, offset, "lion");
  expect_same_update(AdagradConstants{0.37f, 1e-2f, 1e-10f, 0.01f}, 1, offset, "adagrad");
  for (const bool nesterov : {true, false})
    expect_same_update(SgdConstants{0.37f, 1e-2f, 0.01f, 0.9f, 0.8f, nesterov, true}, 1, offset,
                       "sgd with momentum");
  expect_same_update(SgdConstants{0.37f, 1e-2f, 0.01f, 0, 1, false, false}, 0, offset, "sgd");
  for (const bool momentum : {true, false})
    for (const bool centered : {true, false})
      expect_same_update(
          RmspropConstants{0.37f, 1e-2f, 0.01f, 1e-8f, 0.01f, 0.9f, momentum, centered},
          1u + momentum + centered, offset, "rmsprop");
  for (const bool inside : {true, false})
    expect_same_update(LambConstants{0.37f, 0.1f, 0.001f, 1e-6f, 0.01f, inside}, 3, offset, "lamb",
                       false);
  expect_same_update(DescentConstants{0.02f, 1e-4f}, 0, offset, "descent");
  expect_same_update(BlendConstants{0.37f, 0.95f, 0.05f}, 2, offset, "muon", false);
}

INSTANTIATE_TEST_SUITE_P(Alignments, CudaOptimizer, ::testing::Values(0, 1));

TEST(CudaLambStep, HasTheCpusBits) {
  CudaKit kit;
  const Tensor squares =
      kit.filled(DType::f64, 8, [](std::int64_t i) { return i == 4 ? 0.0 : 0.3 + 1.7 * i; });
  LambStepArgs args[2];
  std::vector<Tensor> masters;
  for (int s = 0; s < 4; ++s) {
    const Tensor direction = kit.random(DType::f32, 100 + s, "direction");
    masters.push_back(kit.random(DType::f32, 100 + s, "master"));
    for (const bool gpu : {false, true}) {
      ElementArrays a;
      a.numel = 100 + s;
      a.master = {masters.back().on<std::byte>(gpu), DType::f32};
      a.gradient = {direction.on<std::byte>(gpu), DType::f32};
      args[gpu].slices.push_back(a);
      args[gpu].squares.push_back(squares.on<double>(gpu) + 2 * s);
    }
  }
  for (const bool gpu : {false, true}) {
    args[gpu].constants = {0.013, 0.01, 1.2};
    args[gpu].isa = choose_isa();
  }
  cpu::lamb_step(args[0]);
  cuda::lamb_step(args[1], kit.stream());
  for (const Tensor& master : masters) kit.expect_same(master, "lamb step");
}

double exact_value(std::int64_t i) {
  const double normal = random_normal(4, 4, static_cast<std::uint64_t>(i));
  return i % 7 == 0   ? std::ldexp(normal, static_cast<int>(i % 2000) - 1050)
         : i % 7 == 1 ? -std::ldexp(1.0, -1074)
                      : normal;
}

TEST(CudaExactSums, DigitsAndTotalsAreTheCpus) {
  constexpr std::int64_t kValues = 9000, kSums = 5, kParts = 3;
  CudaKit kit;
  const Tensor values = kit.filled(DType::f64, kValues, exact_value);
  // More ranges than one launch takes; the last sum gets none.
  std::vector<SumRange> ranges = {{0, 5000, 0, 7}, {5000, 0, 1, 8}};
  for (std::int64_t i = 0; i < 200; ++i) ranges.push_back({5000 + 20 * i, 20, i % 3 + 1, i});
  const auto bytes = static_cast<std::int64_t>(sizeof(ExactSum));
  const Tensor sums = kit.output(DType::u8, kParts * kSums * bytes);
  const Tensor bad = kit.output(DType::i64, 2), totals = kit.output(DType::f64, kSums);
  for (const bool gpu : {false, true}) {
    for (std::int64_t part = 0; part < kParts; ++part) {
      const ExactSumsArgs args{
          values.on<double>(gpu), ranges,
          reinterpret_cast<ExactSum*>(sums.on<std::byte>(gpu) + part * kSums * bytes), kSums,
          bad.on<std::int64_t>(gpu)};
      gpu ? cuda::exact_sums(args, kit.stream()) : cpu::exact_sums(args);
    }
    const ExactTotalsArgs args{reinterpret_cast<const ExactSum*>(sums.on<std::byte>(gpu)), kParts,
                               kSums, totals.on<double>(gpu)};
    gpu ? cuda::exact_totals(args, kit.stream()) : cpu::exact_totals(args);
  }
  kit.expect_same(bad, "bad range");
  kit.expect_same(totals, "totals");
  const std::vector<std::byte> got = kit.read(sums);
  for (std::int64_t i = 0; i < kParts * kSums; ++i) {
    ExactSum of_gpu, of_cpu;
    std::memcpy(static_cast<void*>(&of_gpu), got.data() + i * bytes, sizeof(ExactSum));
    std::memcpy(static_cast<void*>(&of_cpu), sums.host + i * bytes, sizeof(ExactSum));
    EXPECT_TRUE(of_gpu == of_cpu) << "sum " << i;
    EXPECT_EQ(of_gpu.value(), of_cpu.value());
  }
}

TEST(CudaExactSums, TheFirstValueThatIsNotFiniteIsNamed) {
  const auto run = [](std::int64_t infinity, std::int64_t nan) {
    CudaKit kit;
    const Tensor values = kit.filled(DType::f64, 3000, [&](std::int64_t i) {
      return i == infinity ? -HUGE_VAL : i == nan ? NAN : 1.0;
    });
    std::vector<SumRange> ranges;
    for (std::int64_t i = 0; i < 150; ++i) ranges.push_back({20 * i, 20, i % 2, 1000 + i});
    const Tensor sums = kit.output(DType::u8, 2 * static_cast<std::int64_t>(sizeof(ExactSum)));
    const Tensor bad = kit.output(DType::i64, 2), totals = kit.output(DType::f64, 2);
    for (const bool gpu : {false, true}) {
      auto* at = reinterpret_cast<ExactSum*>(sums.on<std::byte>(gpu));
      const ExactSumsArgs args{values.on<double>(gpu), ranges, at, 2, bad.on<std::int64_t>(gpu)};
      const ExactTotalsArgs total{at, 1, 2, totals.on<double>(gpu)};
      gpu ? cuda::exact_sums(args, kit.stream()) : cpu::exact_sums(args);
      gpu ? cuda::exact_totals(total, kit.stream()) : cpu::exact_totals(total);
    }
    kit.expect_same(bad, "bad range");
    kit.expect_same(totals, "totals");
    return read_element(bad.host, DType::i64, 0);
  };
  EXPECT_EQ(run(-1, -1), -1);
  EXPECT_EQ(run(2001, 2950), 1100);
  EXPECT_EQ(run(2950, 41), 1002);
}

TEST(CudaNewtonSchulz, PassesHaveTheCpusBits) {
  for (const std::int64_t rows : {1, 8, 37}) {
    CudaKit kit;
    const Tensor x = kit.random(DType::f32, rows * rows, "x"),
                 y = kit.random(DType::f32, rows * rows, "y");
    const Tensor to = kit.output(DType::f32, rows * rows),
                 plain = kit.output(DType::f32, rows * rows);
    for (const bool gpu : {false, true}) {
      const PolynomialArgs p{x.on<float>(gpu), y.on<float>(gpu), rows, 3.4f, -4.7f, 2.03f};
      const RescaleArgs n{x.on<float>(gpu), to.on<float>(gpu), rows * rows, 0.5f, true};
      const RescaleArgs s{x.on<float>(gpu), plain.on<float>(gpu), rows * rows, 0.5f, false};
      gpu ? cuda::matrix_polynomial(p, kit.stream()) : cpu::matrix_polynomial(p);
      gpu ? cuda::rescale(n, kit.stream()) : cpu::rescale(n);
      gpu ? cuda::rescale(s, kit.stream()) : cpu::rescale(s);
    }
    kit.expect_same(y, "polynomial");
    kit.expect_close(to, 2, 0, "normalised");  // its factor may round the other way
    kit.expect_same(plain, "rescaled");
  }
}

TEST(CudaReduceSum, RanksAreAddedAsOnTheCpu) {
  for_dtypes([](DType in, std::int64_t offset) {
    for (const DType out : {DType::f32, DType::bf16})
      for (const std::optional<DType> wire : {std::optional<DType>(), {DType::bf16}}) {
        CudaKit kit(offset);
        const std::int64_t count = 1029;
        const Tensor ranks[] = {kit.random(in, count, "a"), kit.random(in, count, "b"),
                                kit.random(in, count, "c")};
        const Tensor sum = kit.output(out, count);
        for (const bool gpu : {false, true}) {
          const void* inputs[] = {ranks[0].on<void>(gpu), ranks[1].on<void>(gpu),
                                  ranks[2].on<void>(gpu)};
          const ReduceSumArgs args{inputs, in, sum.on<void>(gpu), out, count, 0.7f, 1.0f / 3, wire};
          gpu ? cuda::reduce_sum(args, kit.stream()) : cpu::reduce_sum(args);
        }
        kit.expect_same(sum, "reduce_sum");
      }
  });
}

}  // namespace
}  // namespace zero3d::kernels::test
