#include "inspect_deepspeed.h"

#include "zero3d/core/printable.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/safetensors.h"

namespace zero3d::tools {
namespace {

constexpr std::size_t kLongestName = 200;

void print_facts(const DeepspeedFacts& facts, std::ostream& out) {
  out << "checkpoint of DeepSpeed"
      << (facts.ds_version.empty() ? "" : concat(' ', printable(facts.ds_version, kLongestName)))
      << (facts.universal ? " in universal form: " : ": ") << facts.folder << '\n';
  out << "  ZeRO stage " << facts.zero_stage << " over " << facts.zero_ranks << " ranks";
  if (facts.pipeline_stages > 1) out << ", " << facts.pipeline_stages << " pipeline stages";
  if (facts.tensor_ranks > 1) out << ", " << facts.tensor_ranks << " tensor-parallel ranks";
  if (facts.dtype) out << "; weights in " << name_of(*facts.dtype);
  out << "\n  after step " << facts.global_steps << " (" << facts.skipped_steps << " skipped), "
      << format_count(facts.global_samples) << " samples\n";
  if (facts.clip_grad) out << "  gradients clipped at " << concat(*facts.clip_grad) << '\n';
  if (const auto& scale = facts.loss_scale)
    out << "  loss scale " << concat(scale->scale)
        << (scale->dynamic ? concat(", dynamic: iteration ", scale->iteration, ", last overflow ",
                                    scale->last_overflow, ", hysteresis ", scale->hysteresis)
                           : std::string())
        << '\n';
  for (const auto& [name, value] : facts.scheduler)
    out << "  scheduler: " << printable(name, kLongestName) << ' ' << concat(value) << '\n';
  for (std::size_t i = 0; i < facts.groups.size(); ++i) {
    out << "  optimizer group " << i << ": " << facts.groups[i].step << " updates";
    for (const auto& [name, values] : facts.groups[i].values)
      out << ", " << printable(name, kLongestName) << ' ' << joined(values, " ");
    out << '\n';
  }
  for (const auto& [alias, name] : facts.aliases)
    out << "  " << printable(alias, kLongestName) << " is " << printable(name, kLongestName)
        << '\n';
  for (const std::string& remark : facts.remarks) out << "  note: " << remark << '\n';
}

}  // namespace

void print_checkpoint(const DeepspeedCheckpoint& checkpoint, std::ostream& out) {
  print_facts(checkpoint.facts(), out);
  std::int64_t elements = 0, kept = 0;
  for (const DeepspeedParameter& parameter : checkpoint.parameters()) {
    elements += parameter.numel();
    kept += parameter.numel() * static_cast<std::int64_t>(1 + parameter.states.size());
  }
  out << "  " << format_count(static_cast<std::int64_t>(checkpoint.parameters().size()))
      << " parameters, " << format_count(elements) << " elements, " << format_bytes(4 * kept)
      << " with their states in fp32\n";
  for (const DeepspeedParameter& parameter : checkpoint.parameters()) {
    out << "    " << printable(parameter.name, kLongestName) << ' ' << to_string(parameter.shape);
    if (parameter.frozen) out << " frozen";
    if (!parameter.states.empty()) out << ": " << joined(parameter.states, ", ");
    out << '\n';
  }
}

}  // namespace zero3d::tools
