// Arguments of exact sums, checked and handed to the back end.
#include "zero3d/kernels/exact_sums.h"

#include "zero3d/kernels/arguments.h"
#include "zero3d/kernels/cpu/exact_sums.h"
#include "zero3d/kernels/cuda/bodies.h"

namespace zero3d::kernels {

constexpr auto kSumBytes = static_cast<std::int64_t>(sizeof(ExactSum));

void exact_sums(Stream& stream, const ConstView& values, std::span<const SumRange> ranges,
                const View& sums, const View& bad_range) {
  constexpr const char* kWhat = "exact_sums";
  ExactSumsArgs args;
  args.count = sums.numel() / kSumBytes;
  require_elements(kWhat, "sums", sums, DType::u8, args.count * kSumBytes);
  if (!ranges.empty()) require_elements(kWhat, "values", values, DType::f64, values.numel());
  if (bad_range.defined()) require_elements(kWhat, "bad_range", bad_range, DType::i64, 2);
  for (const SumRange& range : ranges)
    require(range.first >= 0 && range.count >= 0 && range.first + range.count <= values.numel() &&
                range.sum >= 0 && range.sum < args.count,
            kWhat, "expected ranges of ", values.numel(), " values and ", args.count,
            " sums, but one has ", range.count, " values from ", range.first, " on for sum ",
            range.sum);
  args.values = ranges.empty() ? nullptr : values.as<double>();
  args.ranges.assign(ranges.begin(), ranges.end());
  args.sums = reinterpret_cast<ExactSum*>(sums.data());
  args.bad_range = bad_range.defined() ? bad_range.as<std::int64_t>() : nullptr;
  dispatch(stream, kWhat, {reads(values), writes(sums), writes(bad_range)},
           {.cpu = cpu::exact_sums, .cuda = cuda::exact_sums}, std::move(args));
}

void exact_totals(Stream& stream, const ConstView& sums, std::int64_t parts, const View& values) {
  constexpr const char* kWhat = "exact_totals";
  require_elements(kWhat, "values", values, DType::f64, values.numel());
  require_elements(kWhat, "sums", sums, DType::u8, parts * values.numel() * kSumBytes);
  const ExactTotalsArgs args{reinterpret_cast<const ExactSum*>(sums.data()), parts, values.numel(),
                             values.as<double>()};
  dispatch(stream, kWhat, {reads(sums), writes(values)},
           {.cpu = cpu::exact_totals, .cuda = cuda::exact_totals}, args);
}

}  // namespace zero3d::kernels
