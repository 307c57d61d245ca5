// LayerNorm and RMSNorm against fp64, their gradients against numeric ones.
#include "zero3d/kernels/norm.h"

#include "zero3d/tests/kernels/kit.h"

namespace zero3d::kernels {
namespace {

using namespace test;

constexpr float kEps = 1e-5f;

/// LayerNorm, RMSNorm, and RMSNorm with 1 + weight.
enum class Kind { layer, rms, rms_one_plus };

Values reference(Kind kind, std::size_t width, const Values& x, const Values& weight,
                 const Values& bias) {
  const bool rms = kind != Kind::layer;
  const double added = kind == Kind::rms_one_plus ? 1 : 0;
  Values y(x.size());
  for (std::size_t row = 0; row < x.size(); row += width) {
    double mean = 0, square = 0;
    for (std::size_t i = 0; i < width && !rms; ++i) mean += x[row + i] / static_cast<double>(width);
    for (std::size_t i = 0; i < width; ++i)
      square += (x[row + i] - mean) * (x[row + i] - mean) / static_cast<double>(width);
    for (std::size_t i = 0; i < width; ++i)
      y[row + i] = (x[row + i] - mean) / std::sqrt(square + static_cast<double>(kEps)) *
                       (added + weight[i]) +
                   (rms ? 0.0 : bias[i]);
  }
  return y;
}

struct Tensors {
  View x, weight, bias, dy, residual, y, mean, rstd, dx, dweight, dbias;
};

Tensors run(Kit& kit, DType dtype, Kind kind, std::int64_t rows, std::int64_t width,
            bool residual) {
  Tensors r;
  r.x = kit.random(dtype, {rows, width}, "x", 2);
  r.weight = kit.random(dtype, {width}, "weight");
  r.bias = kit.random(dtype, {width}, "bias");
  r.dy = kit.random(dtype, {rows, width}, "dy");
  if (residual) r.residual = kit.random(dtype, {rows, width}, "residual");
  r.y = kit.output(dtype, {rows, width});
  r.dx = kit.output(dtype, {rows, width});
  r.mean = kit.output(DType::f32, {rows});
  r.rstd = kit.output(DType::f32, {rows});
  r.dweight = kit.output(dtype, {width});
  r.dbias = kit.output(dtype, {width});
  Stream& s = kit.stream();
  if (kind != Kind::layer) {
    const RmsFactor factor = kind == Kind::rms ? RmsFactor::weight : RmsFactor::one_plus_weight;
    rms_norm_forward(s, r.x, r.weight, kEps, r.y, r.rstd, factor);
    rms_norm_backward_input(s, r.dy, r.x, r.weight, r.rstd, r.residual, r.dx, factor);
    rms_norm_backward_weight(s, r.dy, r.x, r.rstd, r.dweight, false, factor);
  } else {
    layer_norm_forward(s, r.x, r.weight, r.bias, kEps, r.y, r.mean, r.rstd);
    layer_norm_backward_input(s, r.dy, r.x, r.weight, r.mean, r.rstd, r.residual, r.dx);
    layer_norm_backward_weight(s, r.dy, r.x, r.mean, r.rstd, r.dweight, r.dbias);
  }
  return r;
}

void check(DType dtype, Kind kind, std::int64_t rows, std::int64_t width, bool residual) {
  Kit kit;
  const bool rms = kind != Kind::layer;
  const Tensors r = run(kit, dtype, kind, rows, width, residual);
  const std::string what = concat(rms ? "rms " : "layer ", rows, "x", width);
  const auto columns = static_cast<std::size_t>(width);
  const Values x = kit.read(r.x), weight = kit.read(r.weight), bias = kit.read(r.bias);
  const Values dy = kit.read(r.dy);
  // RMSNorm rounds twice, and its gradient also once inside.
  const double ulps = rms ? 4 : 2;
  const double floor = dtype == DType::f32 ? 1e-5 : precision_of(dtype) * (rms ? 4 : 0.1);
  expect_close(kit.read(r.y), reference(kind, columns, x, weight, bias), dtype, ulps, floor,
               what + " y");
  const auto loss = [&](const Values& at, const Values& w, const Values& b) {
    return dot(dy, reference(kind, columns, at, w, b));
  };
  Values dx = numeric_gradient(x, [&](const Values& at) { return loss(at, weight, bias); });
  if (residual) {
    const Values other = kit.read(r.residual);
    for (std::size_t i = 0; i < dx.size(); ++i) dx[i] += other[i];
  }
  const double magnitude = std::max(1.0, *std::max_element(dx.begin(), dx.end()));
  expect_close(kit.read(r.dx), dx, dtype, ulps, floor * magnitude * 2, what + " dx");
  const double sum_floor = floor * std::sqrt(static_cast<double>(rows)) * 2;
  expect_close(kit.read(r.dweight),
               numeric_gradient(weight, [&](const Values& w) { return loss(x, w, bias); }), dtype,
               ulps, sum_floor, what + " dweight");
  if (!rms)
    expect_close(kit.read(r.dbias),
                 numeric_gradient(bias, [&](const Values& b) { return loss(x, weight, b); }), dtype,
                 ulps, sum_floor, what + " dbias");
}

TEST(Norm, MatchesTheReferenceOnEveryTarget) {
  for_each_target([] {
    for (const Kind kind : {Kind::layer, Kind::rms, Kind::rms_one_plus})
      for (const DType dtype : float_dtypes())
        for (const std::int64_t width : {2, 7, 16, 33, 64, 67})
          for (const std::int64_t rows : {1, 3}) check(dtype, kind, rows, width, rows == 3);
  });
}

TEST(Norm, MatchesTheReferenceOverManyRows) {
  for (const Kind kind : {Kind::layer, Kind::rms, Kind::rms_one_plus})
    for (const std::int64_t rows : {127, 130}) check(DType::f32, kind, rows, 5, true);
}

TEST(Norm, BitsDependNeitherOnThreadsNorOnAlignment) {
  for (const Kind kind : {Kind::layer, Kind::rms, Kind::rms_one_plus})
    for (const DType dtype : float_dtypes())
      expect_same_bits(
          [&](Kit& kit) {
            const Tensors r = run(kit, dtype, kind, 300, 203, true);
            return kit.bits(r.y) + kit.bits(r.dx) + kit.bits(r.dweight) +
                   (kind != Kind::layer ? "" : kit.bits(r.dbias));
          },
          "norm");
}

TEST(Norm, AccumulatesInto32BitGradients) {
  Kit kit;
  const Tensors r = run(kit, DType::bf16, Kind::layer, 5, 33, false);
  const View dweight = kit.random(DType::f32, {33}, "old");
  const View once = kit.output(DType::f32, {33});
  const Values before = kit.read(dweight);
  layer_norm_backward_weight(kit.stream(), r.dy, r.x, r.mean, r.rstd, once, {});
  layer_norm_backward_weight(kit.stream(), r.dy, r.x, r.mean, r.rstd, dweight, {}, true);
  const Values after = kit.read(dweight), added = kit.read(once);
  for (std::size_t i = 0; i < after.size(); ++i)
    EXPECT_EQ(after[i],
              static_cast<double>(static_cast<float>(before[i]) + static_cast<float>(added[i])));
}

TEST(Norm, RmsRoundsWhereTransformersDoes) {
  Kit kit;
  const std::int64_t width = 512;
  const Tensors r = run(kit, DType::bf16, Kind::rms, 4, width, false);
  const auto round = [](double value) {
    return static_cast<double>(to_float(to_bf16(static_cast<float>(value))));
  };
  const Values x = kit.read(r.x), weight = kit.read(r.weight), dy = kit.read(r.dy);
  const Values rstd = kit.read(r.rstd), y = kit.read(r.y), dx = kit.read(r.dx);
  int differ = 0;
  for (std::size_t row = 0; row < 4; ++row) {
    const auto at = [&](std::size_t i) { return row * static_cast<std::size_t>(width) + i; };
    double mean = 0;
    for (std::size_t i = 0; i < weight.size(); ++i)
      mean += round(dy[at(i)] * weight[i]) * x[at(i)] * rstd[row] / static_cast<double>(width);
    for (std::size_t i = 0; i < weight.size(); ++i) {
      const float normal = static_cast<float>(x[at(i)]) * static_cast<float>(rstd[row]);
      EXPECT_EQ(y[at(i)], round(round(static_cast<double>(normal)) * weight[i]));
      const double want = rstd[row] * (round(dy[at(i)] * weight[i]) - x[at(i)] * rstd[row] * mean);
      differ += dx[at(i)] != round(want);
    }
  }
  EXPECT_LE(differ, 4);  // of 2,048: fp32 sums may tip a tie
}

TEST(Norm, OnePlusWeightRoundsOnce) {
  Kit kit;
  const Tensors r = run(kit, DType::bf16, Kind::rms_one_plus, 4, 512, false);
  const Values x = kit.read(r.x), weight = kit.read(r.weight), rstd = kit.read(r.rstd);
  const Values y = kit.read(r.y);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const float normal = static_cast<float>(x[i]) * static_cast<float>(rstd[i / 512]);
    const float want = normal * (1.0f + static_cast<float>(weight[i % 512]));
    EXPECT_EQ(y[i], static_cast<double>(to_float(to_bf16(want)))) << i;
  }
}

TEST(Norm, TheGradientMayTakeTheOutputsPlace) {
  Kit kit;
  for (const Kind kind : {Kind::rms, Kind::rms_one_plus}) {
    const Tensors r = run(kit, DType::bf16, kind, 4, 37, false);
    rms_norm_backward_input(kit.stream(), r.dy, r.x, r.weight, r.rstd, {}, r.dy,
                            kind == Kind::rms ? RmsFactor::weight : RmsFactor::one_plus_weight);
    EXPECT_EQ(kit.bits(r.dy), kit.bits(r.dx));
  }
}

TEST(Norm, ResidualMayBeTheOutput) {
  Kit kit;
  const Tensors r = run(kit, DType::f32, Kind::layer, 4, 37, true);
  layer_norm_backward_input(kit.stream(), r.dy, r.x, r.weight, r.mean, r.rstd, r.residual,
                            r.residual);
  EXPECT_EQ(kit.bits(r.residual), kit.bits(r.dx));
}

TEST(Norm, LargeMeanKeepsTheVariance) {
  Kit kit;
  const View x = kit.filled(DType::f32, {1, 64}, [](std::int64_t i) { return 4096.0 + i % 2; });
  const View one = kit.filled(DType::f32, {64}, [](std::int64_t) { return 1.0; });
  const View zero = kit.filled(DType::f32, {64}, [](std::int64_t) { return 0.0; });
  const View y = kit.output(DType::f32, {1, 64});
  layer_norm_forward(kit.stream(), x, one, zero, 0.0f, y, {}, {});
  const Values got = kit.read(y);
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], i % 2 != 0 ? 1 : -1, 1e-5);
}

TEST(Norm, NamesAnArgumentOfTheWrongShape) {
  Kit kit;
  const View x = kit.random(DType::f32, {2, 8}, "x");
  const View weight = kit.random(DType::f32, {7}, "weight");
  try {
    rms_norm_forward(kit.stream(), x, weight, kEps, x, {});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    EXPECT_NE(std::string(error.what()).find("weight"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace zero3d::kernels
