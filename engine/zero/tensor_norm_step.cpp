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
    : stage_(part.mesh->group(Axis::stage)),
      first_block_(layout.units().size()),
      place_(layout.parameters().size()) {
  std::int64_t blocks = 0;
  std::int64_t parameters = 0;
  for (int unit = 0; unit < layout.unit_count(); ++unit) {
    const Unit& entry = layout.unit(unit);
    if (!takes(entry, setup)) continue;
    first_block_[static_cast<std::size_t>(unit)] = blocks;
    for (int index : entry.parameters)
      place_[static_cast<std::size_t>(index)] = static_cast<std::size_t>(parameters++);
    const bool counts = part.owner[static_cast<std::size_t>(unit)];
    for (const ParameterRun& run : layout.runs(unit, part.shard * entry.shard, entry.shard)) {
      if (!counts) continue;
      sums_.push_back({place_[static_cast<std::size_t>(run.parameter)],
                       blocks + run.offset / kernels::kNormBlock, blocks_of(run.count)});
    }
    blocks += entry.shard / kernels::kNormBlock;
  }
  if (parameters == 0) return;
  const std::int64_t bytes = 2 * parameters * static_cast<std::int64_t>(sizeof(ExactSum));
  const auto allocate = [&](DType dtype, std::int64_t elements) {
    return Tensor(device.memory(), kNoStream, dtype, Shape{elements},
                  Category::optimizer_workspace);
  };
  parameter_sums_ = allocate(DType::f64, blocks);
  direction_sums_ = allocate(DType::f64, blocks);
  mine_ = allocate(DType::u8, bytes);
  all_ = allocate(DType::u8, bytes * stage_.size());
  norms_ = allocate(DType::f64, 2 * parameters);
}

std::int64_t TensorNormStep::workspace_bytes(const ParamLayout& layout, const OptimizerSetup& setup,
                                             int stage_ranks) {
  std::int64_t blocks = 0;
  std::int64_t parameters = 0;
  for (const Unit& unit : layout.units()) {
    if (!takes(unit, setup)) continue;
    blocks += unit.shard / kernels::kNormBlock;
    parameters += static_cast<std::int64_t>(unit.parameters.size());
  }
  const auto number = static_cast<std::int64_t>(sizeof(double));
  const auto sums = static_cast<std::int64_t>(sizeof(ExactSum)) * (1 + stage_ranks);
  return 2 * blocks * number + 2 * parameters * (sums + number);
}

std::vector<TensorNormRule::Scratch> TensorNormStep::scratch(
    std::span<const StateSlice> states) const {
  std::vector<TensorNormRule::Scratch> result;
  for (const StateSlice& state : states) {
    const std::int64_t first =
        first_block_[static_cast<std::size_t>(state.unit)] + state.begin / kernels::kNormBlock;
    const std::int64_t blocks = blocks_of(state.count);
    result.push_back({state.workspace, parameter_sums_.view().flat(first, blocks),
                      direction_sums_.view().flat(first, blocks)});
  }
  return result;
}

void TensorNormStep::prepare(const RuleCall& call, std::span<const StateSlice> states,
                             std::span<const UpdateSlice> slices) {
  static_cast<const TensorNormRule&>(call.rule).prepare(call.stream, call.settings, call.context,
                                                        slices, scratch(states));
}

void TensorNormStep::apply(const RuleCall& call, std::span<const StateSlice> states,
                           std::span<const UpdateSlice> slices) {
  std::vector<ConstView> norms;
  for (const StateSlice& state : states) {
    const std::size_t place = place_[static_cast<std::size_t>(state.parameter)];
    norms.emplace_back(norms_.view().flat(2 * static_cast<std::int64_t>(place), 2));
  }
  static_cast<const TensorNormRule&>(call.rule).apply(call.stream, call.settings, call.context,
                                                      slices, scratch(states), norms);
}

void TensorNormStep::exchange(Stream& stream) {
  const View mine = mine_.view();
  const View all = all_.view();
  const View norms = norms_.view();
  const ConstView parameter_sums = parameter_sums_.view();
  const ConstView direction_sums = direction_sums_.view();
  stream.launch("norms of this rank", {reads(parameter_sums), reads(direction_sums), writes(mine)},
                [this, mine, parameter_sums, direction_sums] {
                  std::vector<ExactSum> sums(mine.bytes() / sizeof(ExactSum));
                  for (const Sums& run : sums_) {
                    for (std::int64_t i = 0; i < run.count; ++i) {
                      sums[2 * run.place].add(parameter_sums.as<double>()[run.first + i]);
                      sums[2 * run.place + 1].add(direction_sums.as<double>()[run.first + i]);
                    }
                  }
                  std::memcpy(mine.data(), sums.data(), mine.bytes());
                });
  const GatherSegment segment{mine, all};
  stage_.all_gather(stream, {&segment, 1});
  const int ranks = stage_.size();
  stream.launch("norms of all ranks", {reads(all), writes(norms)}, [all, norms, ranks] {
    const auto count = static_cast<std::size_t>(norms.numel());
    for (std::size_t i = 0; i < count; ++i) {
      ExactSum sum;
      for (int rank = 0; rank < ranks; ++rank)
        sum.add(load_sum(all.data(), static_cast<std::size_t>(rank) * count + i));
      norms.as<double>()[i] = sum.value();
    }
  });
}

}  // namespace zero3d
