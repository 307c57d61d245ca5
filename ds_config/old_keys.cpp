// Keys of earlier DeepSpeed releases: refused with a word on what replaces them, or renamed.
#include <array>

#include "zero3d/core/text.h"
#include "zero3d/ds_config/rules.h"

namespace zero3d::config {

namespace {

struct Removed {
  std::string_view path;
  std::string_view instead;
};

constexpr std::array kRemoved = {
    Removed{"nebula", "checkpoints go to ordinary files"},
    Removed{"compression_training", "train uncompressed, and compress the exported model"},
    Removed{"amp", "use the section \"fp16\" or \"bf16\""},
    Removed{"quantize_training", "train in fp16 or bf16, and quantize the exported model"},
    Removed{"sparse_gradients", "embeddings declared sparse are reduced sparsely without any flag"},
    Removed{"eigenvalue", "it only served quantize_training, which is gone too"},
    Removed{"sparse_attention", "choose the attention in the model itself"},
    Removed{"elasticity",
            "state train_batch_size, train_micro_batch_size_per_gpu and "
            "gradient_accumulation_steps"},
    Removed{"graph_harvesting", "nothing replaces it"},
    Removed{"curriculum_learning", "use data_efficiency.data_sampling.curriculum_learning"},
    Removed{"progressive_layer_drop", "nothing replaces it"},
    Removed{"zero_optimization.zeropp_loco_param",
            "plain quantized gradients (zero_quantized_gradients) remain, without LoCo"},
};

/// Erases what it refuses: the reader must not complain a second time.
void refuse_removed(Reader& reader, JsonValue& root) {
  for (const auto& [path, instead] : kRemoved) {
    const std::size_t dot = path.find('.');
    const std::string_view key = path.substr(dot + 1);
    JsonValue* section = dot == std::string_view::npos ? &root : root.find(path.substr(0, dot));
    if (section == nullptr) continue;
    for (const JsonMember& member : section->members()) {
      if (member.name != key) continue;
      reader.error(std::string(path),
                   concat("DeepSpeed 0.19.8 removed \"", key,
                          "\" and refuses it whatever its value; ", instead, ". Remove the key"),
                   member.name_position);
    }
    section->erase(key);
  }
}

}  // namespace

void replace_old_keys(Reader& reader, JsonValue& root) {
  refuse_removed(reader, root);
  const JsonValue* bf16 = root.find("bf16");
  const bool stated = bf16 != nullptr && !bf16->is_null();
  if (!stated) root.erase("bf16");
  for (JsonMember& member : root.members()) {
    if (member.name != "bfloat16") continue;
    reader.warning("bfloat16",
                   stated ? "ignored, since \"bf16\" is there too; remove one of them"
                          : "the old spelling of \"bf16\"; rename it",
                   member.name_position);
    if (!stated) member.name = "bf16";
  }
  root.erase("bfloat16");
}

}  // namespace zero3d::config
