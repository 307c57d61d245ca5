#include "zero3d/kernels/cpu/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "zero3d/device/parallel.h"

namespace zero3d::kernels::cpu {
namespace {

constexpr std::int64_t kBlock = 1024;  // squares of one sum

/// 1 / (|from| + 1e-7), times the scale.
float normalising_factor(const RescaleArgs& args) {
  std::vector<double> sums(static_cast<std::size_t>((args.count + kBlock - 1) / kBlock));
  parallel_for(args.count, kBlock, [&](std::int64_t begin, std::int64_t end) {
    double sum = 0;
    for (std::int64_t i = begin; i < end; ++i)
      sum += static_cast<double>(args.from[i]) * args.from[i];
    sums[static_cast<std::size_t>(begin / kBlock)] = sum;
  });
  double squares = 0;
  for (const double sum : sums) squares += sum;
  return static_cast<float>(args.scale / (std::sqrt(squares) + 1e-7));
}

}  // namespace

void matrix_polynomial(const PolynomialArgs& args) {
  const PolynomialArgs p = args;
  parallel_for(p.rows, std::max<std::int64_t>(1, 16384 / p.rows),
               [&p](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) {
                   float* out = p.y + row * p.rows;
                   const float* in = p.x + row * p.rows;
                   for (std::int64_t i = 0; i < p.rows; ++i) out[i] = p.b * in[i] + p.c * out[i];
                   out[row] += p.a;
                 }
               });
}

void rescale(const RescaleArgs& args) {
  const float factor = args.normalise ? normalising_factor(args) : args.scale;
  parallel_for(args.count, 32 * kBlock,
               [from = args.from, to = args.to, factor](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) to[i] = from[i] * factor;
               });
}

}  // namespace zero3d::kernels::cpu
