// config.json as transformers loads it, older releases included.
#include <nlohmann/json.hpp>

#include "zero3d/models/model_config.h"

namespace zero3d {
namespace {

using Json = nlohmann::ordered_json;
using Family = ModelConfig::Family;

Json rope_json(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  Json json = {{"rope_theta", rope.theta}};
  switch (rope.type) {
    case RopeConfig::Type::standard:
      json["rope_type"] = "default";
      break;
    case RopeConfig::Type::linear:
      json["rope_type"] = "linear";
      json["factor"] = rope.factor;
      break;
    case RopeConfig::Type::dynamic:
      json["rope_type"] = "dynamic";
      json["factor"] = rope.factor;
      break;
    case RopeConfig::Type::llama3:
      json["rope_type"] = "llama3";
      json["factor"] = rope.factor;
      json["low_freq_factor"] = rope.low_freq_factor;
      json["high_freq_factor"] = rope.high_freq_factor;
      json["original_max_position_embeddings"] = rope.original_max_positions;
      break;
  }
  return json;
}

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

void write_llama(const ModelConfig& config, Json& json) {
  json["hidden_act"] = "silu";
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
  if (config.family == Family::llama) {
    json["attention_bias"] = config.qkv_bias;
    json["mlp_bias"] = config.mlp_bias;
  } else {
    json["use_sliding_window"] = false;
  }
  // Both spellings: older releases of transformers read the first two, 5.x the third.
  json["rope_theta"] = config.rope.theta;
  Json scaling = rope_json(config);
  json["rope_parameters"] = scaling;
  scaling.erase("rope_theta");
  json["rope_scaling"] = config.rope.type == RopeConfig::Type::standard ? Json() : scaling;
}

}  // namespace

std::string to_config_json(const ModelConfig& config, DType dtype) {
  const char* dtype_name = dtype == DType::bf16  ? "bfloat16"
                           : dtype == DType::f16 ? "float16"
                                                 : "float32";
  const bool gpt2 = config.family == Family::gpt2;
  Json json;
  json["architectures"] = {std::string(architecture_name(config.family))};
  json["model_type"] = gpt2 ? "gpt2" : config.family == Family::llama ? "llama" : "qwen2";
  json["dtype"] = dtype_name;
  json["torch_dtype"] = dtype_name;
  json["initializer_range"] = config.initializer_range;
  json["tie_word_embeddings"] = config.tied;
  json["bos_token_id"] = config.bos_token ? Json(*config.bos_token) : Json();
  json["eos_token_id"] = config.eos_tokens.empty()       ? Json()
                         : config.eos_tokens.size() == 1 ? Json(config.eos_tokens.front())
                                                         : Json(config.eos_tokens);
  json["use_cache"] = true;
  if (gpt2) {
    write_gpt2(config, json);
  } else {
    write_llama(config, json);
  }
  return json.dump(2) + "\n";
}

}  // namespace zero3d
