#include "zero3d/engine/zero/tensor_norm_step.h"

#include <cstring>

#include "zero3d/core/exact_sum.h"
#include "zero3d/kernels/elementwise.h"

namespace zero3d {
namespace {

bool takes(const Unit& unit, const OptimizerSetup& setup) {
  return !unit.frozen && setup.group(unit.group).rule->needs() == RuleNeeds::tensor_norms;
}

std::int64_t blocks_of(std::int64_t count) {
  return (count + kernels::kNormBlock - 1) / kernels::kNormBlock;
}

ExactSum load_sum(const std::byte* bytes, std::size_t index) {
  ExactSum sum;
  std::memcpy(&sum, bytes + index * sizeof sum, sizeof sum);
  return sum;
}

}  // namespace

TensorNormStep::TensorNormStep(Device& device, const ParamLayout& layout, const ModelPart& part,
                               const OptimizerSetup& setup)
    : layout_(layout),
      part_(part),
      stage_(part.mesh->group(Axis::stage)),
      setup_(setup),
      place_(layout.parameters().size(), -1) {
  std::int64_t direction = 0;
  for (int unit = 0; unit < layout.unit_count(); ++unit) {
    const Unit& entry = layout.unit(unit);
    if (!takes(entry, setup)) continue;
    units_.push_back(unit);
    for (int index : entry.parameters) {
      place_[static_cast<std::size_t>(index)] = static_cast<int>(parameters_.size());
      parameters_.push_back(index);
    }
    for (const ParameterRun& run : layout.runs(unit, part.shard * entry.shard, entry.shard)) {
      const std::int64_t offset = direction + run.offset;
      runs_.push_back(
          {{unit, run.offset, run.count}, run.parameter, offset, offset / kernels::kNormBlock});
    }
    direction += entry.shard;
  }
  if (units_.empty()) return;
  const auto pairs = static_cast<std::int64_t>(2 * parameters_.size());
  const auto bytes = pairs * static_cast<std::int64_t>(sizeof(ExactSum));
  direction_ = Tensor(device.memory(), DType::f32, Shape{direction}, "optimizer workspace");
  parameter_sums_ = Tensor(device.memory(), DType::f64, Shape{direction / kernels::kNormBlock},
                           "optimizer workspace");
  direction_sums_ = Tensor(device.memory(), DType::f64, Shape{direction / kernels::kNormBlock},
                           "optimizer workspace");
  mine_ = Tensor(device.memory(), DType::u8, Shape{bytes}, "optimizer workspace");
  all_ = Tensor(device.memory(), DType::u8, Shape{bytes * stage_.size()}, "optimizer workspace");
  norms_ = Tensor(device.memory(), DType::f64, Shape{pairs}, "optimizer workspace");
}

std::int64_t TensorNormStep::workspace_bytes(const ParamLayout& layout, const OptimizerSetup& setup,
                                             int stage_ranks) {
  std::int64_t direction = 0;
  std::int64_t parameters = 0;
  for (const Unit& unit : layout.units()) {
    if (!takes(unit, setup)) continue;
    direction += unit.shard;
    parameters += static_cast<std::int64_t>(unit.parameters.size());
  }
  const auto sums = static_cast<std::int64_t>(sizeof(ExactSum)) * (1 + stage_ranks) +
                    static_cast<std::int64_t>(sizeof(double));
  return direction * static_cast<std::int64_t>(sizeof(float)) +
         2 * direction / kernels::kNormBlock * static_cast<std::int64_t>(sizeof(double)) +
         2 * parameters * sums;
}

TensorNormRule::Scratch TensorNormStep::scratch(const Run& run) {
  const std::int64_t blocks = blocks_of(run.tile.count);
  return {direction_.view().flat(run.direction, run.tile.count),
          parameter_sums_.view().flat(run.sums, blocks),
          direction_sums_.view().flat(run.sums, blocks)};
}

void TensorNormStep::exchange_norms(Stream& compute) {
  const View mine = mine_.view();
  const View all = all_.view();
  const View norms = norms_.view();
  const ConstView parameter_sums = parameter_sums_.view();
  const ConstView direction_sums = direction_sums_.view();
  compute.launch("norms of this rank", {reads(parameter_sums), reads(direction_sums), writes(mine)},
                 [this, mine, parameter_sums, direction_sums] {
                   std::vector<ExactSum> sums(2 * parameters_.size());
                   for (const Run& run : runs_) {
                     if (!part_.owner[static_cast<std::size_t>(run.tile.unit)]) continue;
                     const auto place =
                         static_cast<std::size_t>(place_[static_cast<std::size_t>(run.parameter)]);
                     for (std::int64_t i = 0; i < blocks_of(run.tile.count); ++i) {
                       sums[2 * place].add(parameter_sums.as<double>()[run.sums + i]);
                       sums[2 * place + 1].add(direction_sums.as<double>()[run.sums + i]);
                     }
                   }
                   std::memcpy(mine.data(), sums.data(), mine.bytes());
                 });
  const GatherSegment segment{mine, all};
  stage_.all_gather(compute, {&segment, 1});
  const int ranks = stage_.size();
  compute.launch("norms of all ranks", {reads(all), writes(norms)}, [all, norms, ranks] {
    const auto count = static_cast<std::size_t>(norms.numel());
    for (std::size_t i = 0; i < count; ++i) {
      ExactSum sum;
      for (int rank = 0; rank < ranks; ++rank)
        sum.add(load_sum(all.data(), static_cast<std::size_t>(rank) * count + i));
      norms.as<double>()[i] = sum.value();
    }
  });
}

void TensorNormStep::run(Stream& compute, GradientReducer& gradients, ShardedOptimizer& optimizer,
                         const std::vector<GroupSettings>& groups, const StepContext& context) {
  const auto rule_of = [&](const Run& run) -> const TensorNormRule& {
    return static_cast<const TensorNormRule&>(
        *setup_.group(layout_.unit(run.tile.unit).group).rule);
  };
  const auto settings_of = [&](const Run& run) -> const GroupSettings& {
    return groups[static_cast<std::size_t>(layout_.unit(run.tile.unit).group)];
  };
  for (const Run& run : runs_) {
    const UpdateSlice slice = optimizer.fetch(compute, run.tile, gradients);
    const TensorNormRule::Scratch temporary = scratch(run);
    rule_of(run).prepare(compute, settings_of(run), context, {&slice, 1}, {&temporary, 1});
    optimizer.commit(compute, run.tile);
  }
  exchange_norms(compute);
  for (const Run& run : runs_) {
    const UpdateSlice slice = optimizer.fetch(compute, run.tile, gradients);
    const TensorNormRule::Scratch temporary = scratch(run);
    const ConstView norms =
        norms_.view().flat(2 * place_[static_cast<std::size_t>(run.parameter)], 2);
    rule_of(run).apply(compute, settings_of(run), context, {&slice, 1}, {&temporary, 1},
                       {&norms, 1});
    optimizer.commit(compute, run.tile);
  }
}

}  // namespace zero3d
