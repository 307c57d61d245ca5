// Keys of other families, of newer releases and of forks, found in files made by hand or converted:
// the class that the file names does not read them.
#include "zero3d/models/unread_keys.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "zero3d/core/text.h"
#include "zero3d/formats/problem_list.h"
#include "zero3d/models/window_json.h"

namespace zero3d {
namespace {

/// Of generation, of other heads than that of language, of the program that wrote the file.
constexpr std::array kSilent = std::to_array<std::string_view>({"attn_implementation",
                                                                "bad_words_ids",
                                                                "begin_suppress_tokens",
                                                                "chunk_size_feed_forward",
                                                                "decoder_start_token_id",
                                                                "diversity_penalty",
                                                                "do_sample",
                                                                "early_stopping",
                                                                "encoder_no_repeat_ngram_size",
                                                                "exponential_decay_length_penalty",
                                                                "finetuning_task",
                                                                "forced_bos_token_id",
                                                                "forced_eos_token_id",
                                                                "gradient_checkpointing",
                                                                "id2label",
                                                                "is_decoder",
                                                                "keys_to_ignore_at_inference",
                                                                "label2id",
                                                                "length_penalty",
                                                                "max_length",
                                                                "max_new_tokens",
                                                                "min_length",
                                                                "no_repeat_ngram_size",
                                                                "num_beam_groups",
                                                                "num_beams",
                                                                "num_labels",
                                                                "num_return_sequences",
                                                                "output_attentions",
                                                                "output_hidden_states",
                                                                "output_past",
                                                                "output_scores",
                                                                "pad_token_id",
                                                                "prefix",
                                                                "problem_type",
                                                                "remove_invalid_values",
                                                                "reorder_and_upcast_attn",
                                                                "repetition_penalty",
                                                                "return_dict",
                                                                "return_dict_in_generate",
                                                                "sep_token_id",
                                                                "suppress_tokens",
                                                                "task_specific_params",
                                                                "temperature",
                                                                "tf_legacy_loss",
                                                                "tokenizer_class",
                                                                "top_k",
                                                                "top_p",
                                                                "torch_dtype",
                                                                "torchscript",
                                                                "transformers.js_config",
                                                                "transformers_version",
                                                                "typical_p",
                                                                "unk_token_id",
                                                                "unsloth_fixed",
                                                                "unsloth_version",
                                                                "use_bfloat16",
                                                                "use_cache"});
static_assert(std::ranges::is_sorted(kSilent));

/// What begins with an underscore is a program's own; summaries are of other heads.
bool is_silent(std::string_view key) {
  return std::ranges::binary_search(kSilent, key) || key.starts_with('_') ||
         key.starts_with("summary_");
}

}  // namespace

void remark_unread_keys(const JsonSection& file, ModelConfig& config) {
  std::vector<std::string> keys = file.unread();
  const bool only_full = file.has("layer_types") && says_only_full_attention(file, config);
  std::erase_if(keys, [&](const std::string& key) {
    return is_silent(key) || (key == "layer_types" && only_full);
  });
  if (keys.empty()) return;
  std::ranges::sort(keys);
  config.remarks.push_back(concat(name_list(keys, 16), " of config.json",
                                  keys.size() == 1 ? " has" : " have",
                                  " no effect: ", architecture_name(config.family),
                                  " does not read ", keys.size() == 1 ? "it" : "them"));
}

}  // namespace zero3d
