// config.json of a Hugging Face model folder, read as a file from outside.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/input_file.h"
#include "zero3d/models/model_config.h"

namespace zero3d {
namespace {

using Json = nlohmann::ordered_json;
using Family = ModelConfig::Family;

constexpr std::uint64_t kMaxFileBytes = 16u << 20;

std::optional<std::int64_t> integer_of(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && !std::in_range<std::int64_t>(value.get<std::uint64_t>()))
    return std::nullopt;
  return value.get<std::int64_t>();
}

/// An object of the file with its place in it, for messages.
class Section {
 public:
  Section(const Json& json, std::string path, std::string prefix = "")
      : json_(json), path_(std::move(path)), prefix_(std::move(prefix)) {}

  [[noreturn]] void fail(const std::string& message) const { throw IoError(path_, 0, message); }
  [[noreturn]] void fail_at(const char* key, const std::string& expected) const {
    const Json* value = find(key);
    std::string found =
        value == nullptr ? "absent" : value->dump(-1, ' ', true, Json::error_handler_t::replace);
    if (found.size() > 80) found = found.substr(0, 77) + "...";
    fail(concat("\"", prefix_, key, "\" is ", found, "; expected ", expected));
  }

  /// Null stands for absent, as in transformers.
  const Json* find(const char* key) const {
    const auto it = json_.find(key);
    return it == json_.end() || it->is_null() ? nullptr : &*it;
  }
  bool has(const char* key) const { return find(key) != nullptr; }

  std::int64_t integer(const char* key, std::int64_t fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    const std::optional<std::int64_t> integer = integer_of(*value);
    if (!integer) fail_at(key, "an integer of 64 bits");
    return *integer;
  }
  std::int64_t size(const char* key) const {
    if (!has(key)) fail_at(key, "the model's size");
    return integer(key, 0);
  }
  double number(const char* key, double fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number()) fail_at(key, "a number");
    return value->get<double>();
  }
  bool boolean(const char* key, bool fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) fail_at(key, "true or false");
    return value->get<bool>();
  }
  std::string text(const char* key, const std::string& fallback) const {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) fail_at(key, "a string");
    return value->get<std::string>();
  }
  void refuse_if(bool present, const char* key, const std::string& expected) const {
    if (present) fail_at(key, expected);
  }
  const std::string& path() const { return path_; }

 private:
  const Json& json_;
  std::string path_;
  std::string prefix_;
};

Family read_family(const Section& file) {
  static constexpr const char* kSupported = "GPT2LMHeadModel, LlamaForCausalLM or Qwen2ForCausalLM";
  if (const Json* list = file.find("architectures")) {
    if (list->is_array() && list->size() == 1 && list->front().is_string()) {
      const std::string name = list->front().get<std::string>();
      for (const Family family : {Family::gpt2, Family::llama, Family::qwen2})
        if (name == architecture_name(family)) return family;
    }
    file.fail_at("architectures", concat("a list with one of ", kSupported));
  }
  const std::string type = file.text("model_type", "");
  if (type == "gpt2") return Family::gpt2;
  if (type == "llama") return Family::llama;
  if (type == "qwen2") return Family::qwen2;
  file.fail_at("architectures", concat("a list with one of ", kSupported));
}

void read_gpt2(const Section& file, ModelConfig& config) {
  const std::string activation = file.text("activation_function", "gelu_new");
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh")
    file.fail_at("activation_function", "gelu_new (or gelu_pytorch_tanh, the same)");
  file.refuse_if(file.boolean("add_cross_attention", false), "add_cross_attention",
                 "false (decoders without an encoder)");
  config.vocab_size = file.size("vocab_size");
  config.hidden_size = file.size("n_embd");
  config.layers = file.size("n_layer");
  config.heads = config.kv_heads = file.size("n_head");
  config.max_positions = file.size("n_positions");
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

/// Both spellings: rope_parameters (transformers 5), or rope_theta and rope_scaling at the top.
RopeConfig read_rope(const Section& file, std::int64_t max_positions) {
  RopeConfig rope;
  const char* key = file.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  rope.theta = file.number("rope_theta", 10000.0);
  const Json* json = file.find(key);
  if (json == nullptr) return rope;
  if (!json->is_object()) file.fail_at(key, "an object");
  const Section section(*json, file.path(), concat(key, "."));
  rope.theta = section.number("rope_theta", rope.theta);
  if (section.number("partial_rotary_factor", 1.0) != 1.0)
    section.fail_at("partial_rotary_factor", "1 (all of a head is rotated)");
  const char* type_key = section.has("rope_type") ? "rope_type" : "type";
  const std::string type = section.text(type_key, "default");
  if (type == "default") return rope;
  if (type == "linear") {
    rope.type = RopeConfig::Type::linear;
  } else if (type == "dynamic") {
    rope.type = RopeConfig::Type::dynamic;
  } else if (type == "llama3") {
    rope.type = RopeConfig::Type::llama3;
  } else {
    section.fail_at(type_key, "default, linear, dynamic or llama3");
  }
  if (!section.has("factor")) section.fail_at("factor", "the rope scaling's factor");
  rope.factor = section.number("factor", 1.0);
  if (rope.type == RopeConfig::Type::llama3) {
    for (const char* needed : {"low_freq_factor", "high_freq_factor"})
      if (!section.has(needed)) section.fail_at(needed, "a number (llama3)");
    rope.low_freq_factor = section.number("low_freq_factor", 1.0);
    rope.high_freq_factor = section.number("high_freq_factor", 4.0);
    rope.original_max_positions =
        section.integer("original_max_position_embeddings", max_positions);
  }
  return rope;
}

void refuse_sliding_window(const Section& file, const ModelConfig& config) {
  if (const Json* types = file.find("layer_types")) {
    if (!types->is_array()) file.fail_at("layer_types", "a list");
    for (const Json& type : *types)
      if (type != "full_attention") file.fail_at("layer_types", "full_attention in every layer");
    return;
  }
  const bool windowed = file.boolean("use_sliding_window", false) && file.has("sliding_window") &&
                        file.integer("max_window_layers", 28) < config.layers;
  file.refuse_if(windowed, "use_sliding_window", "false (attention over the whole context)");
}

void read_llama(const Section& file, ModelConfig& config) {
  if (file.text("hidden_act", "silu") != "silu") file.fail_at("hidden_act", "silu");
  if (file.integer("pretraining_tp", 1) != 1)
    file.fail_at("pretraining_tp", "1 (projections cut in slices are not reproduced)");
  config.vocab_size = file.size("vocab_size");
  config.hidden_size = file.size("hidden_size");
  config.layers = file.size("num_hidden_layers");
  config.heads = file.size("num_attention_heads");
  config.kv_heads = file.integer("num_key_value_heads", config.heads);
  config.intermediate_size = file.size("intermediate_size");
  const bool qwen2 = config.family == Family::qwen2;
  config.max_positions = file.integer("max_position_embeddings", qwen2 ? 32768 : 2048);
  if (!file.has("head_dim")) {
    if (config.heads < 1 || config.hidden_size < 1 || config.hidden_size % config.heads != 0)
      file.fail(concat("hidden_size is ", config.hidden_size, " and num_attention_heads ",
                       config.heads,
                       "; expected a multiple of the number of heads, or a head_dim"));
    config.head_dim = config.hidden_size / config.heads;
  } else {
    config.head_dim = file.integer("head_dim", 0);
  }
  config.norm_eps = file.number("rms_norm_eps", 1e-6);
  config.tied = file.boolean("tie_word_embeddings", false);
  config.attention_dropout = file.number("attention_dropout", 0.0);
  config.qkv_bias = qwen2 || file.boolean("attention_bias", false);
  config.output_bias = !qwen2 && config.qkv_bias;
  config.mlp_bias = !qwen2 && file.boolean("mlp_bias", false);
  config.rope = read_rope(file, config.max_positions);
  refuse_sliding_window(file, config);
}

void read_special_tokens(const Section& file, ModelConfig& config) {
  if (file.has("bos_token_id")) config.bos_token = file.integer("bos_token_id", 0);
  const Json* eos = file.find("eos_token_id");
  if (eos == nullptr) return;
  const Json list = eos->is_array() ? *eos : Json::array({*eos});
  for (const Json& id : list) {
    const std::optional<std::int64_t> token = integer_of(id);
    if (!token) file.fail_at("eos_token_id", "a token or a list of tokens");
    config.eos_tokens.push_back(*token);
  }
}

std::optional<DType> read_dtype(const Section& file) {
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

/// "line 3, column 7" of a byte, counted from 1.
std::string place_of(const std::string& text, std::size_t byte) {
  const std::string_view before = std::string_view(text).substr(0, byte > 0 ? byte - 1 : 0);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  return concat("line ", line, ", column ", before.size() - (before.rfind('\n') + 1) + 1);
}

Json parse_json(const std::string& text, const std::string& path) {
  constexpr int kDeepest = 64;
  const auto bound_depth = [&](int depth, Json::parse_event_t, const Json&) {
    if (depth <= kDeepest) return true;
    throw IoError(path, 0, concat("is nested deeper than the ", kDeepest, " levels allowed"));
  };
  try {
    return Json::parse(text, bound_depth);
  } catch (const Json::parse_error& error) {
    throw IoError(path, 0,
                  concat("is no JSON: it cannot be read at ", place_of(text, error.byte),
                         "; expected the config.json that save_pretrained writes"));
  } catch (const Json::exception&) {  // the only other one of parsing
    throw IoError(path, 0, "holds a number too large for 64 bits");
  }
}

}  // namespace

ModelConfig parse_model_config(const std::string& text, const std::string& path) {
  const Json json = parse_json(text, path);
  if (!json.is_object())
    throw IoError(path, 0, "expected a JSON object at the top of a config.json");
  const Section file(json, path);
  ModelConfig config;
  config.family = read_family(file);
  file.refuse_if(file.has("quantization_config"), "quantization_config",
                 "none (weights in fp32, bf16 or fp16)");
  config.initializer_range = file.number("initializer_range", 0.02);
  if (config.family == Family::gpt2) {
    read_gpt2(file, config);
  } else {
    read_llama(file, config);
  }
  config.dtype = read_dtype(file);
  read_special_tokens(file, config);
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
  if (std::filesystem::is_directory(file, error)) file /= "config.json";
  return parse_model_config(InputFile(file.string()).read_all(kMaxFileBytes), file.string());
}

}  // namespace zero3d
