#include "zero3d/models/window_json.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "zero3d/core/text.h"

namespace zero3d {
namespace {

using Family = ModelConfig::Family;

/// "attention" is how older files write it.
bool is_full(const ConfigJson& type) { return type == "full_attention" || type == "attention"; }

/// layer_types, or what transformers derives it from.
std::vector<bool> read_windowed_layers(const JsonSection& file, std::int64_t layers) {
  std::vector<bool> windowed;
  const ConfigJson* types = file.find("layer_types");
  if (types == nullptr) {
    const std::int64_t first = file.integer("max_window_layers", 28);
    if (layers < 1 || layers > 10000) return windowed;  // validate() says so
    for (std::int64_t layer = 0; layer < layers; ++layer) windowed.push_back(layer >= first);
    return windowed;
  }
  if (!types->is_array() || std::cmp_not_equal(types->size(), layers))
    file.fail_at("layer_types", concat("a list of num_hidden_layers entries, ", layers));
  for (const ConfigJson& type : *types) {
    if (!is_full(type) && type != "sliding_attention")
      file.fail_at("layer_types", "full_attention or sliding_attention in every layer");
    windowed.push_back(type == "sliding_attention");
  }
  return windowed;
}

}  // namespace

void read_window(const JsonSection& file, ModelConfig& config) {
  constexpr std::int64_t kDefault = 4096;
  const bool qwen = config.family == Family::qwen2 || config.family == Family::qwen3;
  if (config.family != Family::mistral && !qwen) return;
  const bool used = !qwen || file.boolean("use_sliding_window", false);
  const bool null = file.states("sliding_window") && !file.has("sliding_window");
  if (used && !null) {
    config.sliding_window = file.integer("sliding_window", kDefault);
    if (config.sliding_window < 1)
      file.fail_at("sliding_window", "the keys that a query sees, at least 1, or null");
  }
  // A Mistral file that lists its layers is one of Ministral, which transformers makes of it.
  if (!qwen && !file.has("layer_types")) return;
  file.find("max_window_layers");  // layer_types count
  const std::vector<bool> windowed = read_windowed_layers(file, config.layers);
  const bool any = std::find(windowed.begin(), windowed.end(), true) != windowed.end();
  if (any && config.sliding_window == 0 && file.has("layer_types"))
    file.fail_at("layer_types",
                 concat("full_attention in every layer while there is no sliding window (",
                        qwen ? "use_sliding_window true and " : "", "a sliding_window)"));
  if (!any) config.sliding_window = 0;
  if (config.sliding_window > 0) config.windowed_layers = windowed;
}

bool says_only_full_attention(const JsonSection& file, const ModelConfig& config) {
  const ConfigJson& types = *file.find("layer_types");
  if (!types.is_array()) file.fail_at("layer_types", "a list");
  return config.sliding_window == 0 &&
         std::all_of(types.begin(), types.end(),
                     [](const ConfigJson& type) { return is_full(type); });
}

}  // namespace zero3d
