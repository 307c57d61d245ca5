#include "zero3d/engine/zero/step_report.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "zero3d/kernels/elementwise.h"

namespace zero3d {

struct StepReporter::Part {
  ExactSum squares;
  double loss = 0;
  std::int32_t bad_parameter = -1;
  std::int32_t bad_is_nan = 0;
};

StepReporter::StepReporter(Device& device, const ParamLayout& layout, const ModelPart& part)
    : device_(device), layout_(layout), model_part_(part), mesh_(*part.mesh) {
  std::int64_t first = 0;
  for (int unit = 0; unit < layout.unit_count(); ++unit) {
    if (layout.unit(unit).frozen) continue;
    const std::int64_t blocks = layout.unit(unit).shard / kernels::kNormBlock;
    if (part.owner[static_cast<std::size_t>(unit)]) units_.push_back({unit, first, blocks});
    first += blocks;
  }
  const auto bytes = static_cast<std::int64_t>(sizeof(Part));
  losses_ = Tensor(device.memory(), kNoStream, DType::f64, Shape{1}, Category::norm_workspace);
  mine_ = Tensor(device.memory(), kNoStream, DType::u8, Shape{bytes}, Category::norm_workspace);
  all_ = Tensor(device.memory(), kNoStream, DType::u8, Shape{bytes * mesh_.world().size()},
                Category::norm_workspace);
}

std::int64_t StepReporter::exchange_bytes(int ranks) {
  return static_cast<std::int64_t>(sizeof(double) +
                                   sizeof(Part) * static_cast<std::size_t>(1 + ranks));
}

void StepReporter::add_loss(Stream& stream, const ConstView& loss) {
  const bool first = !losses_started_;
  losses_started_ = true;
  const View sum = losses_.view();
  stream.launch("add loss", {reads(loss), writes(sum)}, [loss, sum, first] {
    const float* pair = loss.as<float>();
    const double mean =
        pair[1] == 0 ? 0.0 : static_cast<double>(pair[0]) / static_cast<double>(pair[1]);
    *sum.as<double>() = first ? mean : *sum.as<double>() + mean;
  });
}

/// The first unit's first parameter whose block sum is not finite. Parameters start at block
/// boundaries, so blocks name them.
void StepReporter::find_non_finite(const double* squares, Part& part) const {
  for (const Counted& counted : units_) {
    const std::int64_t shard = layout_.unit(counted.unit).shard;
    for (const ParameterRun& run : layout_.runs(counted.unit, model_part_.shard * shard, shard)) {
      const std::int64_t first = counted.first + run.offset / kernels::kNormBlock;
      const std::int64_t last = first + (run.count + kernels::kNormBlock - 1) / kernels::kNormBlock;
      for (std::int64_t i = first; i < last; ++i) {
        if (std::isfinite(squares[i])) continue;
        part.bad_parameter = model_part_.numbers[static_cast<std::size_t>(run.parameter)];
        part.bad_is_nan = std::isnan(squares[i]) ? 1 : 0;
        return;
      }
    }
  }
}

StepReport StepReporter::exchange(Stream& stream, const ConstView& squares, int micro_batches) {
  const View losses = losses_.view();
  const View mine = mine_.view();
  const bool has_loss = losses_started_ && mesh_.counts_loss();
  stream.launch("norm of this rank", {reads(squares), reads(losses), writes(mine)},
                [this, squares, losses, mine, has_loss] {
                  Part part;
                  const double* sums = squares.defined() ? squares.as<double>() : nullptr;
                  for (const Counted& unit : units_) {
                    for (std::int64_t i = 0; sums && i < unit.count; ++i)
                      part.squares.add(sums[unit.first + i]);
                  }
                  if (!part.squares.finite()) find_non_finite(sums, part);
                  part.loss = has_loss ? *losses.as<double>() : 0;
                  std::memcpy(mine.data(), &part, sizeof part);
                });
  const GatherSegment segment{mine_.view(), all_.view()};
  mesh_.world().all_gather(stream, {&segment, 1});
  Event done;
  stream.record(done);
  done.wait();
  losses_started_ = false;
  StepReport report = merge();
  report.loss /= static_cast<double>(mesh_.size(Axis::dp)) * micro_batches;
  if (!squares.defined()) report.gradient_norm = std::numeric_limits<double>::quiet_NaN();
  return report;
}

/// What the parts of all ranks add up to; the loss is their plain sum.
StepReport StepReporter::merge() const {
  const ConstView all = device_.host_read(all_.view());
  StepReport report;
  ExactSum squares;
  for (int rank = 0; rank < mesh_.world().size(); ++rank) {
    Part part;
    std::memcpy(&part, all.data() + static_cast<std::size_t>(rank) * sizeof part, sizeof part);
    squares.add(part.squares);
    report.loss += part.loss;
    if (!std::isfinite(part.loss) && report.bad_loss_rank < 0) report.bad_loss_rank = rank;
    if (part.bad_parameter < 0) continue;
    if (report.bad_parameter >= 0 && report.bad_parameter <= part.bad_parameter) continue;
    report.bad_parameter = part.bad_parameter;
    report.bad_rank = rank;
    report.bad_is_nan = part.bad_is_nan != 0;
  }
  report.finite = squares.finite();
  report.gradient_norm = std::sqrt(squares.value());
  return report;
}

}  // namespace zero3d
