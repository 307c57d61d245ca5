// What a model is made of, as config.json of a Hugging Face model folder states it: the GPT-2,
// LLaMA, Mistral, Qwen2, Qwen3 and Gemma families. Reads and writes that text; what the sizes mean
// in memory and arithmetic is the business of models/{gpt2,llama}.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/core/dtype.h"

namespace zero3d {

/// How rotary positions are stretched beyond what the model was trained on (transformers'
/// modeling_rope_utils).
struct RopeConfig {
  enum class Type { standard, linear, dynamic, llama3, yarn, longrope, proportional };
  Type type = Type::standard;  ///< "default" in the file.
  double theta = 10000.0;
  double factor = 1.0;                      ///< All but standard.
  double low_freq_factor = 1.0;             ///< llama3.
  double high_freq_factor = 4.0;            ///< llama3.
  std::int64_t original_max_positions = 0;  ///< llama3, yarn, longrope: before stretching.
  /// yarn and longrope: what cos and sin are multiplied by, where the file says it.
  std::optional<double> attention_factor;
  double beta_fast = 32.0;  ///< yarn: turns in the original context from which none is stretched,
  double beta_slow = 1.0;   ///< and below which all are.
  double mscale = 0.0;      ///< yarn: with mscale_all_dim, of the attention factor; 0: not said.
  double mscale_all_dim = 0.0;
  bool truncate = true;              ///< yarn: the bounds between are whole numbers.
  std::vector<double> short_factor;  ///< longrope: of each angle, up to the original context,
  std::vector<double> long_factor;   ///< and beyond it.
  double rotated = 1.0;              ///< proportional: the part of the angles that turns.
  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

struct ModelConfig {
  enum class Family { gpt2, llama, qwen2, mistral, qwen3, gemma };
  enum class Activation { gelu, silu };  ///< gelu: its tanh form.
  Family family = Family::gpt2;

  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  ///< Divides heads; equal to it in GPT-2.
  std::int64_t head_dim = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t max_positions =
      0;  ///< A bound on the sequence in GPT-2 (its table has so many rows).
  double norm_eps = 1e-5;
  double initializer_range = 0.02;
  bool tied = false;  ///< The head multiplies with the token embedding.

  double embedding_dropout = 0.0;  ///< GPT-2.
  double attention_dropout = 0.0;
  double residual_dropout = 0.0;        ///< GPT-2.
  bool scale_attention = true;          ///< GPT-2: scores divided by sqrt(head_dim).
  bool scale_by_inverse_layer = false;  ///< GPT-2: scores of layer i also divided by i + 1.
  bool qkv_bias = false;                ///< LLaMA's attention_bias, always so in Qwen2 and GPT-2.
  bool output_bias = false;             ///< Of the attention's output projection.
  bool mlp_bias = false;
  Activation activation = Activation::silu;  ///< Of the gate; GPT-2 has none.
  RopeConfig rope;                           ///< All but GPT-2.
  std::int64_t sliding_window =
      0;  ///< Keys that a query of a windowed layer sees; 0: no such layer.
  std::vector<bool> windowed_layers;  ///< Which layers have it; empty: all.
  /// Its row of the embedding table gets no gradient from lookups (torch's padding_idx); all but
  /// GPT-2.
  std::optional<std::int64_t> padding_token;

  std::optional<std::int64_t> bos_token;  ///< Begins a text.
  std::vector<std::int64_t> eos_tokens;   ///< Any of them ends one.
  std::optional<DType> dtype;  ///< What the folder's weights are stored in, where it says so.

  /// The config.json that this was read from; what it says beside all this is written again.
  std::string source;
  /// Where that lies, with what goes with the model; "" when it was not read from a folder.
  std::string folder;
  /// What of the file has no effect or is not as the file says, a sentence each.
  std::vector<std::string> remarks;

  bool norms_heads() const { return family == Family::qwen3; }  ///< RMSNorm of q and k, by head.
  /// Norms multiply by 1 + weight, and embeddings are scaled by sqrt(hidden_size).
  bool is_gemma() const { return family == Family::gemma; }
  /// The window of a layer; 0: none.
  std::int64_t window_of(std::int64_t layer) const {
    const bool all = windowed_layers.empty();
    return all || windowed_layers[static_cast<std::size_t>(layer)] ? sliding_window : 0;
  }
};

/// "GPT2LMHeadModel", "LlamaForCausalLM", ... and "gpt2", "llama", ...
std::string_view architecture_name(ModelConfig::Family family);
std::string_view model_type_name(ModelConfig::Family family);
std::span<const ModelConfig::Family> all_families();

/// Parses the text of a config.json; `path` is for messages. Defaults of absent keys are those of
/// transformers, but the sizes must be there. Throws IoError that names the key, its value and what
/// is supported: another architecture, an option that would change the arithmetic (another
/// activation or rope type, quantised weights), or a value out of range.
ModelConfig parse_model_config(const std::string& text, const std::string& path);
/// Reads a config.json, or the one of a model folder.
ModelConfig read_model_config(const std::string& path);

/// The config.json that transformers loads as the same model; keys of config.source that say
/// nothing about it are kept.
std::string to_config_json(const ModelConfig& config, DType dtype);

/// Shapes known by name: "gpt2", "llama-160m", ... ("llama-tiny" is sized for bytes of text: 256
/// byte values and an end-of-text). Throws Error(kInvalid) with the nearest name.
ModelConfig built_in_model_config(std::string_view name);
std::vector<std::string_view> built_in_model_names();
/// Whether what the user gave as a model means a built-in shape and no path: no '/' is in it, and
/// nothing of that name is there.
bool means_built_in(const std::string& model);

/// Checks the sizes against each other and against their ranges, as parse_model_config does; for
/// configs made in code. Throws Error(kInvalid).
void validate(const ModelConfig& config);

/// How many parameters the model has, tied ones once.
std::int64_t parameter_count(const ModelConfig& config);

}  // namespace zero3d
