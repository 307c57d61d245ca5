#include "zero3d/engine/zero/step_report.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>

#include "zero3d/core/multiples.h"
#include "zero3d/device/readback.h"
#include "zero3d/kernels/elementwise.h"
#include "zero3d/kernels/loss.h"

namespace zero3d {

struct StepReporter::Part {
  ExactSum squares;
  double losses[2] = {0, 0};                ///< The sum of mean losses, and of how many.
  std::int64_t bad_parameter[2] = {-1, 0};  ///< Its number, and whether it is a NaN.
};

StepReporter::StepReporter(Device& device, const ParamLayout& layout, const ModelPart& part)
    : device_(device), layout_(layout), model_part_(part), mesh_(*part.mesh) {
  std::int64_t first = 0;
  for (int unit = 0; unit < layout.unit_count(); ++unit) {
    if (layout.unit(unit).frozen) continue;
    const std::int64_t shard = layout.unit(unit).shard;
    if (part.owner[static_cast<std::size_t>(unit)]) add_ranges(unit, first);
    first += shard / kernels::kNormBlock;
  }
  const auto bytes = static_cast<std::int64_t>(sizeof(Part));
  mine_ = Tensor(device.memory(), kNoStream, DType::u8, Shape{bytes}, Category::norm_workspace);
  all_ = Tensor(device.memory(), kNoStream, DType::u8, Shape{bytes * mesh_.world().size()},
                Category::norm_workspace);
}

std::int64_t StepReporter::exchange_bytes(int ranks) {
  return static_cast<std::int64_t>(sizeof(Part) * static_cast<std::size_t>(1 + ranks));
}

/// Parameters start at block boundaries, so that blocks name them.
void StepReporter::add_ranges(int unit, std::int64_t first_block) {
  const std::int64_t shard = layout_.unit(unit).shard;
  for (const ParameterRun& run : layout_.runs(unit, model_part_.shard * shard, shard)) {
    counted_.push_back({first_block + run.offset / kernels::kNormBlock,
                        ceil_div(run.count, kernels::kNormBlock), 0,
                        model_part_.numbers[static_cast<std::size_t>(run.parameter)]});
  }
}

/// A field of this rank's part on the device.
View StepReporter::field(std::size_t offset, DType dtype, std::int64_t elements) const {
  return View(mine_.view().data() + offset, dtype, Shape{elements});
}

void StepReporter::add_loss(Stream& stream, const ConstView& loss) {
  kernels::add_mean_loss(stream, loss, field(offsetof(Part, losses), DType::f64, 2),
                         std::exchange(losses_started_, true));
}

StepReport StepReporter::exchange(Stream& stream, const ConstView& squares) {
  std::span<const kernels::SumRange> counted = counted_;
  if (!squares.defined()) counted = {};
  kernels::exact_sums(stream, squares, counted,
                      field(offsetof(Part, squares), DType::u8, sizeof(ExactSum)),
                      field(offsetof(Part, bad_parameter), DType::i64, 2));
  if (!std::exchange(losses_started_, false) || !model_part_.counts_loss)
    device_.fill_zero(stream, field(offsetof(Part, losses), DType::f64, 2));
  mesh_.world().all_gather(stream, mine_.view(), all_.view());
  const Readback all(stream, all_);
  StepReport report = merge(all.wait());
  if (!squares.defined()) report.gradient_norm = std::numeric_limits<double>::quiet_NaN();
  return report;
}

/// What the parts of all ranks add up to.
StepReport StepReporter::merge(const ConstView& all) const {
  StepReport report;
  ExactSum squares;
  for (int rank = 0; rank < mesh_.world().size(); ++rank) {
    Part part;
    std::memcpy(&part, all.data() + static_cast<std::size_t>(rank) * sizeof part, sizeof part);
    squares.add(part.squares);
    report.loss += part.losses[0];
    report.losses += static_cast<std::int64_t>(part.losses[1]);
    if (!std::isfinite(part.losses[0]) && report.bad_loss_rank < 0) report.bad_loss_rank = rank;
    const auto bad = static_cast<int>(part.bad_parameter[0]);
    if (bad < 0 || (report.bad_parameter >= 0 && report.bad_parameter <= bad)) continue;
    report.bad_parameter = bad;
    report.bad_rank = rank;
    report.bad_is_nan = part.bad_parameter[1] != 0;
  }
  report.loss /= static_cast<double>(report.losses);
  report.finite = squares.finite();
  report.gradient_norm = std::sqrt(squares.value());
  return report;
}

}  // namespace zero3d
