// The sizes of a model: their ranges, and the shapes known by name.
#include "zero3d/models/model_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

using Family = ModelConfig::Family;

struct BuiltIn {
  std::string_view name;
  Family family;
  std::int64_t vocab, hidden, intermediate, layers, heads, kv_heads, positions;
  double eps = 1e-5;
  double theta = 10000.0;
  bool tied = false;
  std::int64_t text_token = -1;  ///< Begins and ends a text.
};

// clang-format off
constexpr BuiltIn kBuiltIns[] = {
    {"gpt2", Family::gpt2, 50257, 768, 3072, 12, 12, 12, 1024, 1e-5, 0, true, 50256},
    {"gpt2-medium", Family::gpt2, 50257, 1024, 4096, 24, 16, 16, 1024, 1e-5, 0, true, 50256},
    {"gpt2-large", Family::gpt2, 50257, 1280, 5120, 36, 20, 20, 1024, 1e-5, 0, true, 50256},
    {"gpt2-xl", Family::gpt2, 50257, 1600, 6400, 48, 25, 25, 1024, 1e-5, 0, true, 50256},
    // For bytes of text: small enough to learn one on a CPU in minutes.
    {"llama-tiny", Family::llama, 257, 128, 352, 4, 4, 2, 256, 1e-5, 1e4, true, 256},
    {"llama-160m", Family::llama, 32000, 768, 3072, 12, 12, 12, 2048, 1e-6},
    {"llama-1.1b", Family::llama, 32000, 2048, 5632, 22, 32, 4, 2048},
    {"llama-2-7b", Family::llama, 32000, 4096, 11008, 32, 32, 32, 4096},
    {"llama-2-13b", Family::llama, 32000, 5120, 13824, 40, 40, 40, 4096},
    {"llama-2-70b", Family::llama, 32000, 8192, 28672, 80, 64, 8, 4096},
    {"llama-3-8b", Family::llama, 128256, 4096, 14336, 32, 32, 8, 8192, 1e-5, 5e5},
    {"qwen2-0.5b", Family::qwen2, 151936, 896, 4864, 24, 14, 2, 131072, 1e-6, 1e6, true},
    {"qwen2-7b", Family::qwen2, 152064, 3584, 18944, 28, 28, 4, 131072, 1e-6, 1e6},
};
// clang-format on

ModelConfig make_config(const BuiltIn& model) {
  const bool gpt2 = model.family == Family::gpt2;
  ModelConfig config;
  config.family = model.family;
  config.vocab_size = model.vocab;
  config.hidden_size = model.hidden;
  config.intermediate_size = model.intermediate;
  config.layers = model.layers;
  config.heads = model.heads;
  config.kv_heads = model.kv_heads;
  config.head_dim = model.hidden / model.heads;
  config.max_positions = model.positions;
  config.norm_eps = model.eps;
  config.tied = model.tied;
  config.qkv_bias = gpt2 || model.family == Family::qwen2;
  config.output_bias = config.mlp_bias = gpt2;
  if (gpt2) {
    config.embedding_dropout = config.attention_dropout = config.residual_dropout = 0.1;
  } else {
    config.rope.theta = model.theta;
  }
  if (model.text_token >= 0) {
    config.bos_token = model.text_token;
    config.eos_tokens = {model.text_token};
  }
  return config;
}

void check_range(const char* what, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high)
    throw_invalid(concat("model config: ", what, " is ", value, "; expected ", low, " to ", high));
}

void check_range(const char* what, double value, double low, double high) {
  if (!(value >= low && value <= high))  // a NaN fails too
    throw_invalid(concat("model config: ", what, " is ", value, "; expected ", low, " to ", high));
}

void validate_yarn(const RopeConfig& rope) {
  check_range("rope_theta (of yarn)", rope.theta, 1.0 + 1e-6, 1e12);
  check_range("the rope scaling's beta_fast", rope.beta_fast, 1e-6, 1e6);
  check_range("the rope scaling's beta_slow", rope.beta_slow, 1e-6, 1e6);
  check_range("the rope scaling's mscale", rope.mscale, 0.0, 1e6);
  check_range("the rope scaling's mscale_all_dim", rope.mscale_all_dim, 0.0, 1e6);
}

void validate_factors(const char* what, const std::vector<double>& factors, std::int64_t head_dim) {
  if (std::ssize(factors) != head_dim / 2)
    throw_invalid(concat("model config: the rope scaling's ", what, " has ", factors.size(),
                         " numbers; expected head_dim / 2, which is ", head_dim / 2));
  for (const double factor : factors) check_range(what, factor, 1e-6, 1e6);
}

void validate_rope(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  check_range("rope_theta", rope.theta, 1.0, 1e12);
  if (config.head_dim % 2 != 0)
    throw_invalid(concat("model config: rotary positions turn pairs, and head_dim is ",
                         config.head_dim, "; expected an even number"));
  using Type = RopeConfig::Type;
  if (rope.type == Type::standard) return;
  check_range("the rope scaling's partial_rotary_factor", rope.rotated, 0.0, 1.0);
  if (rope.type == Type::dynamic && config.head_dim < 4)
    throw_invalid("model config: dynamic rope needs a head_dim of at least 4");
  if (rope.type == Type::llama3 || rope.type == Type::yarn || rope.type == Type::longrope)
    check_range("the rope scaling's original_max_position_embeddings", rope.original_max_positions,
                rope.type == Type::longrope ? 2 : 1, std::int64_t{1} << 31);
  check_range("the rope scaling's factor", rope.factor, 1.0, 1e6);
  if (rope.attention_factor)
    check_range("the rope scaling's attention_factor", *rope.attention_factor, 0.0, 1e6);
  if (rope.type == Type::yarn) validate_yarn(rope);
  if (rope.type == Type::longrope) {
    validate_factors("short_factor", rope.short_factor, config.head_dim);
    validate_factors("long_factor", rope.long_factor, config.head_dim);
  }
  if (rope.type != Type::llama3) return;
  check_range("the rope scaling's low_freq_factor", rope.low_freq_factor, 1e-6, 1e6);
  check_range("the rope scaling's high_freq_factor", rope.high_freq_factor, 1e-6, 1e6);
  if (rope.high_freq_factor <= rope.low_freq_factor)
    throw_invalid(concat("model config: the rope scaling's high_freq_factor ",
                         rope.high_freq_factor, " must exceed its low_freq_factor ",
                         rope.low_freq_factor));
}

}  // namespace

std::span<const Family> all_families() {
  static constexpr Family kAll[] = {Family::gpt2,    Family::llama, Family::qwen2,
                                    Family::mistral, Family::qwen3, Family::gemma};
  return kAll;
}

std::string_view architecture_name(Family family) {
  switch (family) {
    case Family::gpt2:
      return "GPT2LMHeadModel";
    case Family::llama:
      return "LlamaForCausalLM";
    case Family::qwen2:
      return "Qwen2ForCausalLM";
    case Family::mistral:
      return "MistralForCausalLM";
    case Family::qwen3:
      return "Qwen3ForCausalLM";
    case Family::gemma:
      return "GemmaForCausalLM";
  }
  return "";
}

std::string_view model_type_name(Family family) {
  switch (family) {
    case Family::gpt2:
      return "gpt2";
    case Family::llama:
      return "llama";
    case Family::qwen2:
      return "qwen2";
    case Family::mistral:
      return "mistral";
    case Family::qwen3:
      return "qwen3";
    case Family::gemma:
      return "gemma";
  }
  return "";
}

void validate(const ModelConfig& config) {
  // The bounds keep every product of sizes (vocabulary x hidden, rows x intermediate) far inside 64
  // bits.
  constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;
  check_range("the vocabulary", config.vocab_size, 1, std::int64_t{1} << 26);
  check_range("the hidden size", config.hidden_size, 1, kMaxWidth);
  check_range("the number of layers", config.layers, 1, 10000);
  check_range("the number of attention heads", config.heads, 1, 65536);
  check_range("the number of key/value heads", config.kv_heads, 1, 65536);
  check_range("head_dim", config.head_dim, 1, 65536);
  check_range("the width of the attention (heads x head_dim)", config.heads * config.head_dim, 1,
              kMaxWidth);
  check_range("the intermediate size", config.intermediate_size, 1, 4 * kMaxWidth);
  check_range("the number of positions", config.max_positions, 1, std::int64_t{1} << 31);
  check_range("the norm's epsilon", config.norm_eps, 0.0, 1.0);
  check_range("initializer_range", config.initializer_range, 0.0, 100.0);
  check_range("the embedding dropout", config.embedding_dropout, 0.0, 0.99);
  check_range("the attention dropout", config.attention_dropout, 0.0, 0.99);
  check_range("the residual dropout", config.residual_dropout, 0.0, 0.99);
  if (config.heads % config.kv_heads != 0)
    throw_invalid(concat("model config: ", config.heads, " attention heads cannot share ",
                         config.kv_heads,
                         " key/value heads evenly; expected a divisor of the former"));
  if (config.family == Family::gpt2) {
    if (config.hidden_size != config.heads * config.head_dim || config.kv_heads != config.heads)
      throw_invalid(concat("model config: the hidden size ", config.hidden_size,
                           " is not a multiple of the ", config.heads, " attention heads"));
  } else {
    validate_rope(config);
  }
  check_range("the sliding window", config.sliding_window, 0, std::int64_t{1} << 31);
  const bool windowed = config.family == Family::qwen2 || config.family == Family::qwen3 ||
                        config.family == Family::mistral;
  if (config.sliding_window > 0 && !windowed)
    throw_invalid(concat("model config: ", architecture_name(config.family),
                         " has no sliding window, and it is ", config.sliding_window,
                         "; expected 0, or Mistral, Qwen2 or Qwen3"));
  if (!config.windowed_layers.empty() && !windowed)
    throw_invalid(
        concat("model config: windows by layer are for Mistral, Qwen2 and Qwen3, not for ",
               architecture_name(config.family)));
  if (!config.windowed_layers.empty() && std::ssize(config.windowed_layers) != config.layers)
    throw_invalid(concat("model config: ", config.windowed_layers.size(),
                         " layers are said to have a window or not; expected ", config.layers));
  if (config.padding_token)
    check_range("the padding token", *config.padding_token, 0, config.vocab_size - 1);
}

std::vector<std::string_view> built_in_model_names() {
  std::vector<std::string_view> names;
  for (const BuiltIn& model : kBuiltIns) names.push_back(model.name);
  return names;
}

bool means_built_in(const std::string& model) {
  std::error_code code;
  return model.find('/') == std::string::npos && !std::filesystem::exists(model, code);
}

ModelConfig built_in_model_config(std::string_view name) {
  for (const BuiltIn& model : kBuiltIns)
    if (model.name == name) return make_config(model);
  const auto names = built_in_model_names();
  const std::string nearest = nearest_name(name, names);
  throw_invalid(concat("no built-in model is called \"", name, "\"",
                       nearest.empty() ? "" : concat(" (did you mean \"", nearest, "\"?)"),
                       "; there are: ", joined(names, ", ")));
}

std::int64_t parameter_count(const ModelConfig& config) {
  const std::int64_t c = config.hidden_size, f = config.intermediate_size;
  const std::int64_t q = config.heads * config.head_dim, kv = config.kv_heads * config.head_dim;
  const bool gpt2 = config.family == Family::gpt2;
  const std::int64_t norm = gpt2 ? 2 * c : c;
  const std::int64_t ups = gpt2 ? 1 : 2;
  std::int64_t layer = 2 * norm + c * (q + 2 * kv) + q * c + (ups + 1) * c * f;
  if (config.qkv_bias) layer += q + 2 * kv;
  if (config.output_bias) layer += c;
  if (config.mlp_bias) layer += ups * f + c;
  if (config.norms_heads()) layer += 2 * config.head_dim;
  const std::int64_t table = config.vocab_size * c;
  return table + (gpt2 ? config.max_positions * c : 0) + config.layers * layer + norm +
         (config.tied ? 0 : table);
}

}  // namespace zero3d
