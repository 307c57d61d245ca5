// zero3d export --deepspeed.
#include <algorithm>
#include <array>
#include <cstdio>
#include <tuple>

#include "export_checkpoint.h"
#include "saved_states.h"
#include "train_resume.h"
#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/ds_config/deepspeed_writer.h"
#include "zero3d/ds_config/load.h"
#include "zero3d/ds_config/settings.h"
#include "zero3d/engine/optimizer_setup.h"
#include "zero3d/models/build.h"

namespace zero3d::tools {
namespace {

/// The modules of a layer in the order in which transformers registers them; GPT-2 declares its
/// own so.
constexpr std::array<std::string_view, 11> kLayerOrder = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",        "self_attn.o_proj",
    "self_attn.q_norm", "self_attn.k_norm", "mlp.gate_proj",           "mlp.up_proj",
    "mlp.down_proj",    "input_layernorm",  "post_attention_layernorm"};

/// Where a parameter comes among those of its block: before others by its module, then weights
/// before biases. Of modules that are not listed the order stays.
std::size_t module_of(const std::string& name) {
  for (std::size_t i = 0; i < kLayerOrder.size(); ++i)
    if (name.find(concat(".", kLayerOrder[i], ".")) != std::string::npos) return i;
  return kLayerOrder.size();
}

std::vector<std::string> module_order(const ModelConfig& model) {
  std::vector<std::string> order;
  for (std::vector<ParameterSpec>& block : blocks_of(model)) {
    if (model.family != ModelConfig::Family::gpt2) {
      std::stable_sort(block.begin(), block.end(),
                       [](const ParameterSpec& a, const ParameterSpec& b) {
                         return std::tuple(module_of(a.name), a.name.ends_with(".bias")) <
                                std::tuple(module_of(b.name), b.name.ends_with(".bias"));
                       });
    }
    for (const ParameterSpec& spec : block)
      if (std::find(order.begin(), order.end(), spec.name) == order.end())
        order.push_back(spec.name);
  }
  return order;
}

/// Of --config, else of the run that was saved, for the ranks that it had.
Config find_config(const ExportOptions& options, const SavedState& saved) {
  LoadOptions load;
  const SavedMesh& mesh = saved.run().mesh;
  load.ranks = mesh.dp * mesh.tp * mesh.pp * mesh.sp;
  LoadResult result;
  if (!options.config.empty()) {
    load.ranks = options.ranks;
    result = load_config_file(options.config, load);
  } else {
    const JsonValue* const config = train_fact(saved, kTrainConfig);
    if (config == nullptr || !config->is_object())
      throw_invalid(concat(saved.path(),
                           " does not hold the configuration of its run; name the "
                           "ds_config that DeepSpeed will have with --config"));
    result =
        load_config_text(config->dump(), concat(saved.path(), ": the configuration in it"), load);
  }
  result.require_ok();
  return result.config;
}

}  // namespace

void export_deepspeed(const ExportOptions& options, const ExportSource& source) {
  const SavedState& saved = *source.saved;
  require_same_model(saved, list_parameters(*build_model(source.model)));
  const Config config = find_config(options, saved);
  const TrainSettings settings = train_settings(config);
  DeepspeedLayout layout;
  layout.zero_stage = options.zero_stage > 0 ? options.zero_stage : std::max(1, config.stage());
  layout.ranks = options.ranks;
  layout.dtype = settings.precision.parameters;
  layout.order = module_order(source.model);
  if (source.model.tied) layout.aliases.emplace("lm_head.weight", layout.order.front());
  layout.ds_config = loadable_json(config);
  if (JsonValue* zero = layout.ds_config.find("zero_optimization"))
    zero->set("stage", JsonValue(layout.zero_stage));
  for (const char* key : {"train_batch_size", "gradient_accumulation_steps"})
    layout.ds_config.erase(key);  // of the ranks that will be
  layout.sub_group = settings.optimizer_tile;
  layout.lr = OptimizerSetup(settings.optimizer, settings.schedule, {})
                  .settings(saved.run().state.schedule_steps)
                  .front()
                  .lr;
  const std::string path = write_deepspeed_checkpoint(saved, options.out, layout);
  std::printf("checkpoint %s: ZeRO stage %d, %d ranks, in DeepSpeed's layout\n", path.c_str(),
              layout.zero_stage, layout.ranks);
}

}  // namespace zero3d::tools
