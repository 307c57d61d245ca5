// config.json as transformers loads it, older releases included.
#include "zero3d/models/json_section.h"
#include "zero3d/models/model_config.h"
#include "zero3d/models/rope_json.h"

namespace zero3d {
namespace {

using Json = ConfigJson;
using Family = ModelConfig::Family;

void write_gpt2(const ModelConfig& config, Json& json) {
  json["activation_function"] = "gelu_new";
  json["vocab_size"] = config.vocab_size;
  json["n_positions"] = config.max_positions;
  json["n_embd"] = config.hidden_size;
  json["n_layer"] = config.layers;
  json["n_head"] = config.heads;
  json["n_inner"] =
      config.intermediate_size == 4 * config.hidden_size ? Json() : Json(config.intermediate_size);
  json["embd_pdrop"] = config.embedding_dropout;
  json["attn_pdrop"] = config.attention_dropout;
  json["resid_pdrop"] = config.residual_dropout;
  json["layer_norm_epsilon"] = config.norm_eps;
  json["scale_attn_weights"] = config.scale_attention;
  json["scale_attn_by_inverse_layer_idx"] = config.scale_by_inverse_layer;
}

void write_window(const ModelConfig& config, Json& json) {
  const Json window = config.sliding_window > 0 ? Json(config.sliding_window) : Json();
  const bool qwen = config.family == Family::qwen2 || config.family == Family::qwen3;
  if (config.family == Family::mistral) {
    json["sliding_window"] = window;
    json.erase("layer_types");
  }
  if (!qwen && config.windowed_layers.empty()) return;
  if (qwen) json["use_sliding_window"] = config.sliding_window > 0;
  // Without one, what the file says of it has no effect.
  if (config.sliding_window > 0) json["sliding_window"] = window;
  Json types = Json::array();
  std::int64_t first = config.layers;  // older releases of transformers know a first layer only
  for (std::int64_t layer = config.layers - 1; layer >= 0; --layer)
    if (config.window_of(layer) > 0) first = layer;
  for (std::int64_t layer = 0; layer < config.layers; ++layer)
    types.push_back(config.window_of(layer) > 0 ? "sliding_attention" : "full_attention");
  json["layer_types"] = types;
  if (qwen && config.sliding_window > 0) json["max_window_layers"] = first;
}

/// A token counted from the end of the vocabulary stays as it came.
void write_padding(const ModelConfig& config, Json& json) {
  const auto found = json.find("pad_token_id");
  std::optional<std::int64_t> said;
  if (found != json.end() && found->is_number_integer()) said = found->get<std::int64_t>();
  if (said && *said < 0) *said += config.vocab_size;
  if (said != config.padding_token)
    json["pad_token_id"] = config.padding_token ? Json(*config.padding_token) : Json();
}

/// Both spellings: older releases of transformers read rope_theta and rope_scaling, 5.x
/// rope_parameters.
void write_rope(const ModelConfig& config, Json& json) {
  Json source;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const auto found = json.find(key);
    if (found != json.end() && found->is_object() && !found->empty()) source = *found;
  }
  Json rope = rope_json(config.rope, source);
  json["rope_theta"] = config.rope.theta;
  json["rope_parameters"] = rope;
  rope.erase("rope_theta");
  json["rope_scaling"] = config.rope.type == RopeConfig::Type::standard ? Json() : rope;
}

void write_llama(const ModelConfig& config, Json& json) {
  const bool silu = config.activation == ModelConfig::Activation::silu;
  json["hidden_act"] = silu ? "silu" : "gelu_pytorch_tanh";
  if (config.is_gemma()) json["hidden_activation"] = json["hidden_act"];
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.layers;
  json["num_attention_heads"] = config.heads;
  json["num_key_value_heads"] = config.kv_heads;
  json["head_dim"] = config.head_dim;
  json["max_position_embeddings"] = config.max_positions;
  json["rms_norm_eps"] = config.norm_eps;
  json["attention_dropout"] = config.attention_dropout;
  if (config.family == Family::llama) json["mlp_bias"] = config.mlp_bias;
  if (config.family != Family::mistral && config.family != Family::qwen2)
    json["attention_bias"] = config.qkv_bias;
  write_window(config, json);
  write_padding(config, json);
  write_rope(config, json);
}

/// Where a file says nothing, transformers' default stays meant.
void write_special_tokens(const ModelConfig& config, Json& json) {
  if (config.bos_token || config.source.empty())
    json["bos_token_id"] = config.bos_token ? Json(*config.bos_token) : Json();
  if (!config.eos_tokens.empty() || config.source.empty())
    json["eos_token_id"] = config.eos_tokens.empty()       ? Json()
                           : config.eos_tokens.size() == 1 ? Json(config.eos_tokens.front())
                                                           : Json(config.eos_tokens);
}

}  // namespace

std::string to_config_json(const ModelConfig& config, DType dtype) {
  const char* dtype_name = dtype == DType::bf16  ? "bfloat16"
                           : dtype == DType::f16 ? "float16"
                                                 : "float32";
  const bool gpt2 = config.family == Family::gpt2;
  Json json = config.source.empty() ? Json::object()
                                    : parse_config_json(config.source, "the model's config.json");
  json["architectures"] = {std::string(architecture_name(config.family))};
  json["model_type"] = std::string(model_type_name(config.family));
  json["dtype"] = dtype_name;
  json["torch_dtype"] = dtype_name;
  json["initializer_range"] = config.initializer_range;
  json["tie_word_embeddings"] = config.tied;
  write_special_tokens(config, json);
  if (!json.contains("use_cache")) json["use_cache"] = true;
  if (gpt2) {
    write_gpt2(config, json);
  } else {
    write_llama(config, json);
  }
  return json.dump(2) + "\n";
}

}  // namespace zero3d
