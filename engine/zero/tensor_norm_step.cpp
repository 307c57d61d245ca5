#include "zero3d/engine/zero/tensor_norm_step.h"

#include "zero3d/core/multiples.h"
#include "zero3d/kernels/elementwise.h"

namespace zero3d {
namespace {

bool takes(const Unit& unit, const OptimizerSetup& setup) {
  return !unit.frozen && setup.rule(unit.group).needs() == RuleNeeds::tensor_norms;
}

std::int64_t blocks_of(std::int64_t count) { return ceil_div(count, kernels::kNormBlock); }

}  // namespace

TensorNormStep::TensorNormStep(Device& device, const ParamLayout& layout, const ModelPart& part,
                               const OptimizerSetup& setup, const HostUpdates& host)
    : device_(device),
      layout_(layout),
      setup_(setup),
      host_(host),
      stage_(part.mesh->group(Axis::stage)),
      first_block_(layout.units().size()),
      place_(layout.parameters().size()) {
  std::int64_t blocks = 0;
  std::int64_t parameters = 0;
  for (const Unit& entry : layout.units()) {
    if (!takes(entry, setup)) continue;
    for (int index : entry.parameters)
      place_[static_cast<std::size_t>(index)] = static_cast<std::size_t>(parameters++);
  }
  for (const std::vector<int>& pieces : layout.wholes()) {  // all of one add up to its norm
    for (const int piece : pieces)
      place_[static_cast<std::size_t>(piece)] = place_[static_cast<std::size_t>(pieces.front())];
  }
  for (int unit = 0; unit < layout.unit_count(); ++unit) {
    const Unit& entry = layout.unit(unit);
    if (!takes(entry, setup)) continue;
    first_block_[static_cast<std::size_t>(unit)] = blocks;
    const bool counts = part.stage_owner[static_cast<std::size_t>(unit)];
    for (const ParameterRun& run : layout.runs(unit, part.shard * entry.shard, entry.shard)) {
      const auto place = static_cast<std::int64_t>(place_[static_cast<std::size_t>(run.parameter)]);
      if (counts)
        ranges_.push_back(
            {blocks + run.offset / kernels::kNormBlock, blocks_of(run.count), 2 * place});
    }
    blocks += entry.shard / kernels::kNormBlock;
  }
  if (parameters == 0) return;
  for (std::size_t i = 0, count = ranges_.size(); i < count; ++i)  // those of the directions
    ranges_.push_back({blocks + ranges_[i].first, ranges_[i].count, ranges_[i].sum + 1});
  const std::int64_t bytes = 2 * parameters * static_cast<std::int64_t>(sizeof(ExactSum));
  const auto allocate = [&](DType dtype, std::int64_t elements) {
    return Tensor(device.memory(), kNoStream, dtype, Shape{elements},
                  Category::optimizer_workspace);
  };
  squares_ = allocate(DType::f64, 2 * blocks);
  mine_ = allocate(DType::u8, bytes);
  all_ = allocate(DType::u8, bytes * stage_.size());
  norms_ = allocate(DType::f64, 2 * parameters);
  if (host_bytes(layout, setup, host.units) == 0) return;
  host_squares_ = Tensor(device.memory(host.tier), kNoStream, DType::f64, squares_.shape(),
                         Category::optimizer_workspace);
  host_norms_ = Tensor(device.memory(host.tier), kNoStream, DType::f64, norms_.shape(),
                       Category::optimizer_workspace);
}

std::int64_t TensorNormStep::host_bytes(const ParamLayout& layout, const OptimizerSetup& setup,
                                        const std::vector<bool>& offloaded) {
  std::int64_t numbers = 0;
  bool any = false;
  for (int index = 0; index < layout.unit_count(); ++index) {
    const Unit& unit = layout.unit(index);
    if (!takes(unit, setup)) continue;
    numbers +=
        2 * (unit.shard / kernels::kNormBlock + static_cast<std::int64_t>(unit.parameters.size()));
    any = any || (!offloaded.empty() && offloaded[static_cast<std::size_t>(index)]);
  }
  return any ? bytes_of(numbers, DType::f64) : 0;
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
    const View squares = host_.holds(state.unit) ? host_squares_.view() : squares_.view();
    const std::int64_t directions = squares.numel() / 2;
    result.push_back(
        {state.workspace, squares.flat(first, blocks), squares.flat(directions + first, blocks)});
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
    const View all = host_.holds(state.unit) ? host_norms_.view() : norms_.view();
    norms.emplace_back(all.flat(2 * static_cast<std::int64_t>(place), 2));
  }
  static_cast<const TensorNormRule&>(call.rule).apply(call.stream, call.settings, call.context,
                                                      slices, scratch(states), norms);
}

/// The host's block sums join those on the device.
void TensorNormStep::bring(Stream& stream) {
  if (!host_squares_.defined()) return;
  Event summed;
  host_.stream->record(summed);
  stream.wait(summed);
  for (int unit = 0; unit < layout_.unit_count(); ++unit) {
    const Unit& entry = layout_.unit(unit);
    if (!host_.holds(unit) || !takes(entry, setup_)) continue;
    for (const std::int64_t half : {std::int64_t{0}, squares_.numel() / 2}) {
      const std::int64_t first = half + first_block_[static_cast<std::size_t>(unit)];
      const std::int64_t count = entry.shard / kernels::kNormBlock;
      device_.copy(stream, squares_.view().flat(first, count),
                   host_squares_.view().flat(first, count));
    }
  }
}

void TensorNormStep::give_back(Stream& stream) {
  if (!host_norms_.defined()) return;
  device_.copy(stream, host_norms_, norms_);
  Event copied;
  stream.record(copied);
  host_.stream->wait(copied);
}

void TensorNormStep::exchange(Stream& stream) {
  bring(stream);
  kernels::exact_sums(stream, squares_, ranges_, mine_, {});
  stage_.all_gather(stream, mine_.view(), all_.view());
  kernels::exact_totals(stream, all_, stage_.size(), norms_);
  give_back(stream);
}

}  // namespace zero3d
