#include "plan_report.h"

#include <algorithm>
#include <cstdio>

#include "zero3d/core/text.h"
#include "zero3d/parallel/topology.h"

namespace zero3d::tools {
namespace {

/// "pinned 2.00 GiB (...), pageable 1.00 GiB (...)", or without the word where one tier has it all.
std::string describe_host(const MemoryEstimate& memory) {
  const auto part = [&](Tier tier) {
    return concat(format_bytes(memory.total({tier})), " (", memory.describe({tier}), ")");
  };
  if (memory.total({Tier::pageable}) == 0) return part(Tier::pinned);
  return concat(format_bytes(memory.total(kHostTiers)), ": pinned ", part(Tier::pinned),
                ", pageable ", part(Tier::pageable));
}

}  // namespace

std::vector<std::string> describe_memory(const MemoryEstimate& memory) {
  std::vector<std::string> lines = {
      concat("planned per rank: ", format_bytes(memory.total()), " (", memory.describe(), ")"),
      concat("planned per rank on the host: ", describe_host(memory))};
  if (const std::int64_t bytes = memory.total_on_drives(); bytes > 0)
    lines.push_back(concat("planned per rank on drives: ", format_bytes(bytes), " (",
                           memory.describe_drives(), ")"));
  return lines;
}

std::string describe_tiles(const TileSettings& tiles, const ZeroPlan& plan) {
  if (tiles == TileSettings{1, 1}) return "";
  std::int64_t largest = 0;
  for (int part = 0; part < plan.layout.part_count(); ++part) {
    std::int64_t elements = 0;
    for (const int unit : plan.layout.part_units(part))
      if (!plan.layout.unit(unit).persistent) elements += plan.layout.unit(unit).padded;
    largest = std::max(largest, elements);
  }
  std::string text;
  if (tiles.linear > 1)
    append_item(text, "; ", "each linear layer in ", tiles.linear, " by its outputs");
  if (tiles.head > 1)
    append_item(text, "; ", "token table and head with its logits in ", tiles.head,
                " by the vocabulary");
  return concat(text, "; the largest has ", format_count(largest), " parameters, ",
                format_bytes(bytes_of(largest, plan.dtype())));
}

void print_plan(const TrainPlan& plan, Engine& engine, const TileSettings& tiles,
                const MemoryEstimate& memory, std::int64_t process,
                const std::vector<std::int64_t>& by_stage, const std::string& binding) {
  const auto print = [](const char* subject, const std::string& text) {
    std::printf("%-9s %s\n", subject, text.c_str());
  };
  const ParallelDegrees& degrees = plan.loaded.config.degrees;
  const TrainSettings& settings = engine.model().train_settings();  // within the budgets
  const ZeroPlan& zero = engine.model().plan();
  print("model", concat(plan.request.model, ", ", format_count(zero.model_layout().numel()),
                        " parameters, ZeRO stage ", plan.loaded.config.stage()));
  const Topology topology(degrees.ranks, {degrees.dp, degrees.tp, degrees.pp, degrees.sp});
  print("mesh", concat(degrees.ranks, " ranks = ", topology.factors(), ", ", plan.threads,
                       " threads each"));
  if (degrees.dp < degrees.ranks)
    for (const std::string& line : topology.table()) print("mesh", line);
  if (const std::string line = zero.pipeline_line(); !line.empty()) {
    const std::string list = describe(given_partition(zero.pipeline.bounds));
    const std::string asked = describe(plan.settings.pipeline.partition);
    print("pipeline", concat(name_of(settings.pipeline.schedule), ", partition ", asked,
                             asked == list ? "" : concat(" (", list, ")"), ", ",
                             static_cast<int>(100 * zero.bubble(settings) + 0.5),
                             "% of the stages' time in bubbles if blocks take equal times"));
    print("pipeline", line);
  }
  if (plan.device == DeviceKind::cuda)
    print("device", concat("CUDA, ", plan.gpu_memory.size(),
                           " GPU(s), which the ranks of a machine "
                           "take in turn"));
  print("cores", binding);
  print("batch", concat(settings.micro_batch * settings.accumulation * degrees.dp, " = micro ",
                        settings.micro_batch, " x accumulation ", settings.accumulation, " x dp ",
                        degrees.dp, ", sequences of ", plan.sequence_length, " tokens"));
  print("data", concat(plan.data->tokens().description(), ", ", format_count(plan.data->samples()),
                       " samples"));
  std::printf("%s\n", zero.precision_line().c_str());
  if (const std::string line = zero.recomputation_line(); !line.empty())
    std::printf("%s\n", line.c_str());
  for (const std::string& line : engine.model().setup().description()) print("optimizer", line);
  for (const std::string& line : describe_offload(settings.offload)) print("offload", line);
  if (settings.delayed_updates.on()) print("updates", describe_updates(settings.delayed_updates));
  if (const std::string line = describe_tiles(tiles, zero); !line.empty()) print("tiles", line);
  for (const std::string& line : describe_memory(memory)) print("memory", line);
  if (by_stage.size() > 1) {
    std::string stages;
    for (std::size_t stage = 0; stage < by_stage.size(); ++stage)
      append_item(stages, ", ", "stage ", stage, " ", format_bytes(by_stage[stage]));
    print("memory", concat("those are of stage 0; device memory by stage: ", stages));
  }
  print("memory", concat("planned for this process: ", format_bytes(process)));
  std::fflush(stdout);
}

}  // namespace zero3d::tools
