// config.json of a Hugging Face model folder, read as a file from outside. Defaults of absent keys
// are those of transformers' config classes.
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/input_file.h"
#include "zero3d/models/json_section.h"
#include "zero3d/models/model_config.h"
#include "zero3d/models/model_folder.h"
#include "zero3d/models/rope_json.h"
#include "zero3d/models/unread_keys.h"
#include "zero3d/models/window_json.h"

namespace zero3d {
namespace {

using Family = ModelConfig::Family;

constexpr std::uint64_t kMaxFileBytes = 16u << 20;

std::string supported(std::string_view (*name)(Family)) {
  std::vector<std::string_view> names;
  for (const Family family : all_families()) names.push_back(name(family));
  return joined(names, ", ");
}

/// By the first of `architectures`; LLaMAForCausalLM is what the first conversions wrote, and
/// Ministral is Mistral with windows by layer.
Family read_architecture(const JsonSection& file, const ConfigJson& list) {
  if (list.is_array() && list.size() == 1 && list.front().is_string()) {
    const std::string name = list.front().get<std::string>();
    if (name == "LLaMAForCausalLM") return Family::llama;
    if (name == "MinistralForCausalLM") return Family::mistral;
    for (const Family family : all_families())
      if (name == architecture_name(family)) return family;
  }
  file.fail_at("architectures", concat("a list with one of ", supported(architecture_name)));
}

std::optional<Family> read_model_type(const JsonSection& file) {
  if (!file.has("model_type")) return std::nullopt;
  const std::string type = file.text("model_type", "");
  if (type == "ministral") return Family::mistral;
  for (const Family family : all_families())
    if (type == model_type_name(family)) return family;
  file.fail_at("model_type", concat("one of ", supported(model_type_name)));
}

Family read_family(const JsonSection& file) {
  const ConfigJson* list = file.find("architectures");
  if (list == nullptr) {
    if (const std::optional<Family> family = read_model_type(file)) return *family;
    file.fail_at("architectures", concat("a list with one of ", supported(architecture_name)));
  }
  const Family family = read_architecture(file, *list);
  if (read_model_type(file).value_or(family) != family)
    file.fail_at("model_type", concat(model_type_name(family), ", as \"architectures\" says ",
                                      architecture_name(family), "; one of them is wrong"));
  return family;
}

bool is_tanh_gelu(const std::string& name) {
  return name == "gelu_new" || name == "gelu_pytorch_tanh";
}

/// By its name in GPT-2's files or the one that other families have, which transformers takes too.
std::int64_t read_size(const JsonSection& file, const char* key, const char* alias) {
  if (!file.has(alias)) return file.size(key);
  const std::int64_t size = file.integer(alias, 0);
  if (file.integer(key, size) != size)
    file.fail_at(key, concat("the same as \"", alias, "\", which stands for it, ", size,
                             "; one of them is wrong"));
  return size;
}

void read_gpt2(const JsonSection& file, ModelConfig& config) {
  const std::string activation = file.text("activation_function", "gelu_new");
  if (!is_tanh_gelu(activation))
    file.fail_at("activation_function", "gelu_new (or gelu_pytorch_tanh, the same)");
  file.refuse_if(file.boolean("add_cross_attention", false), "add_cross_attention",
                 "false (decoders without an encoder)");
  config.vocab_size = file.size("vocab_size");
  config.hidden_size = read_size(file, "n_embd", "hidden_size");
  config.layers = read_size(file, "n_layer", "num_hidden_layers");
  config.heads = config.kv_heads = read_size(file, "n_head", "num_attention_heads");
  config.max_positions = read_size(file, "n_positions", "max_position_embeddings");
  if (const std::int64_t context = file.integer("n_ctx", config.max_positions);
      context != config.max_positions)
    config.remarks.push_back(
        concat("n_ctx ", context, " has no effect beside n_positions ", config.max_positions));
  if (config.heads < 1 || config.hidden_size < 1 || config.hidden_size % config.heads != 0)
    file.fail(concat("n_embd is ", config.hidden_size, " and n_head ", config.heads,
                     "; expected a multiple of the number of heads"));
  config.head_dim = config.hidden_size / config.heads;
  if (config.hidden_size > (std::int64_t{1} << 20)) file.fail_at("n_embd", "at most 1048576");
  config.intermediate_size = file.integer("n_inner", 4 * config.hidden_size);
  config.norm_eps = file.number("layer_norm_epsilon", 1e-5);
  config.tied = file.boolean("tie_word_embeddings", true);
  config.embedding_dropout = file.number("embd_pdrop", 0.1);
  config.attention_dropout = file.number("attn_pdrop", 0.1);
  config.residual_dropout = file.number("resid_pdrop", 0.1);
  config.scale_attention = file.boolean("scale_attn_weights", true);
  config.scale_by_inverse_layer = file.boolean("scale_attn_by_inverse_layer_idx", false);
  config.qkv_bias = config.output_bias = config.mlp_bias = true;
}

/// What an absent key means, where families differ.
struct Defaults {
  std::int64_t kv_heads;  ///< 0: as many as heads.
  std::int64_t head_dim;  ///< 0: hidden_size / heads.
  std::int64_t max_positions;
  bool tied = false;
};

Defaults defaults_of(Family family) {
  switch (family) {
    case Family::mistral:
      return {8, 0, 131072};
    case Family::qwen2:
      return {32, 0, 32768};
    case Family::qwen3:
      return {32, 128, 32768};
    case Family::gemma:
      return {16, 256, 8192, true};
    default:
      return {0, 0, 2048};
  }
}

void read_heads(const JsonSection& file, const Defaults& defaults, ModelConfig& config) {
  config.heads = file.size("num_attention_heads");
  const bool grouped = defaults.kv_heads != 0 && !file.states("num_key_value_heads");
  config.kv_heads = file.integer("num_key_value_heads", grouped ? defaults.kv_heads : config.heads);
  if (file.has("head_dim") || (defaults.head_dim != 0 && !file.states("head_dim"))) {
    config.head_dim = file.integer("head_dim", defaults.head_dim);
    return;
  }
  if (config.heads < 1 || config.hidden_size < 1 || config.hidden_size % config.heads != 0)
    file.fail(concat("hidden_size is ", config.hidden_size, " and num_attention_heads ",
                     config.heads, "; expected a multiple of the number of heads, or a head_dim"));
  config.head_dim = config.hidden_size / config.heads;
}

void read_activation(const JsonSection& file, ModelConfig& config) {
  const bool gemma = config.family == Family::gemma;
  const std::string name = file.text("hidden_act", gemma ? "gelu_pytorch_tanh" : "silu");
  if (is_tanh_gelu(name) || (gemma && name == "gelu")) {
    config.activation = ModelConfig::Activation::gelu;
  } else if (name != "silu" && name != "swish") {
    file.fail_at("hidden_act", gemma ? "gelu_pytorch_tanh (or gelu, which means it in this family)"
                                     : "silu or gelu_pytorch_tanh");
  }
  // Releases differ in which of the two they read.
  const std::string other = file.text("hidden_activation", name);
  if (gemma && other != name && !(is_tanh_gelu(other) && name == "gelu"))
    file.fail_at("hidden_activation", concat("the same as \"hidden_act\", ", name));
}

void read_biases(const JsonSection& file, ModelConfig& config) {
  switch (config.family) {
    case Family::qwen2:
      config.qkv_bias = true;
      break;
    case Family::llama:
    case Family::qwen3:
    case Family::gemma:
      config.qkv_bias = config.output_bias = file.boolean("attention_bias", false);
      break;
    default:
      break;
  }
  config.mlp_bias = config.family == Family::llama && file.boolean("mlp_bias", false);
}

/// As torch counts it: from the end when negative.
void read_padding(const JsonSection& file, ModelConfig& config) {
  if (!file.has("pad_token_id")) return;
  const std::int64_t token = file.integer("pad_token_id", 0);
  if (token >= config.vocab_size || token < -config.vocab_size)
    file.fail_at("pad_token_id", concat("a token of the vocabulary (below ", config.vocab_size,
                                        ", or from its end when negative), or null"));
  config.padding_token = token < 0 ? config.vocab_size + token : token;
}

void read_llama(const JsonSection& file, ModelConfig& config) {
  const Defaults defaults = defaults_of(config.family);
  read_activation(file, config);
  file.integer("pretraining_tp", 1);  // slices of the same products: transformers ignores it
  config.vocab_size = file.size("vocab_size");
  config.hidden_size = file.size("hidden_size");
  config.layers = file.size("num_hidden_layers");
  config.intermediate_size = file.size("intermediate_size");
  config.max_positions = file.integer("max_position_embeddings", defaults.max_positions);
  read_heads(file, defaults, config);
  config.norm_eps = file.number("rms_norm_eps", 1e-6);
  config.tied = file.boolean("tie_word_embeddings", defaults.tied);
  config.attention_dropout = file.number("attention_dropout", 0.0);
  read_biases(file, config);
  config.rope = read_rope(file, config);
  read_window(file, config);
  read_padding(file, config);
  file.refuse_if(file.boolean("use_bidirectional_attention", false), "use_bidirectional_attention",
                 "false (attention to earlier tokens)");
}

void read_special_tokens(const JsonSection& file, ModelConfig& config) {
  if (file.has("bos_token_id")) config.bos_token = file.integer("bos_token_id", 0);
  config.eos_tokens = file.integers("eos_token_id");
}

std::optional<DType> read_dtype(const JsonSection& file) {
  const char* key = file.has("dtype") ? "dtype" : "torch_dtype";
  if (!file.has(key)) return std::nullopt;
  std::string name = file.text(key, "");
  if (name.rfind("torch.", 0) == 0) name = name.substr(6);
  if (name == "float32") return DType::f32;
  if (name == "bfloat16") return DType::bf16;
  if (name == "float16") return DType::f16;
  if (name == "auto") return std::nullopt;
  file.fail_at(key, "float32, bfloat16 or float16");
}

/// Weights in forms that are not read, by the keys that say so.
void refuse_encoded_weights(const JsonSection& file) {
  for (const char* key : {"quantization_config", "compression_config"})
    file.refuse_if(file.has(key), key, "none (weights in fp32, bf16 or fp16)");
}

}  // namespace

ModelConfig parse_model_config(const std::string& text, const std::string& path) {
  const ConfigJson json = parse_config_json(text, path);
  if (!json.is_object())
    throw IoError(path, 0, "expected a JSON object at the top of a config.json");
  const JsonSection file(json, path);
  ModelConfig config;
  config.family = read_family(file);
  config.source = text;
  refuse_encoded_weights(file);
  file.refuse_if(file.boolean("is_encoder_decoder", false), "is_encoder_decoder",
                 "false (decoders without an encoder)");
  config.initializer_range = file.number("initializer_range", 0.02);
  file.refuse_if(!file.boolean("is_causal", true), "is_causal",
                 "true (attention to earlier tokens)");
  if (config.family == Family::gpt2) {
    read_gpt2(file, config);
  } else {
    read_llama(file, config);
  }
  config.dtype = read_dtype(file);
  read_special_tokens(file, config);
  remark_unread_keys(file, config);
  try {
    validate(config);
  } catch (const Error& error) {
    throw IoError(path, 0, error.what());
  }
  return config;
}

ModelConfig read_model_config(const std::string& path) {
  std::filesystem::path file(path);
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) {
    refuse_other_folder(path);
    file /= kModelConfigFile;
  }
  ModelConfig config =
      parse_model_config(InputFile(file.string()).read_all(kMaxFileBytes), file.string());
  config.folder = file.parent_path().string();
  return config;
}

}  // namespace zero3d
