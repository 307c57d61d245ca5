// Keys of earlier DeepSpeed releases: refused with a word on what replaces them, or renamed.
#include <array>

#include "zero3d/core/text.h"
#include "zero3d/ds_config/rules.h"

namespace zero3d::config {

namespace {

struct Removed {
  std::string_view key;
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
};

/// Erases what it refuses: the reader must not complain a second time.
void refuse_removed(Reader& reader, JsonValue& root) {
  std::erase_if(root.members(), [&](const JsonMember& member) {
    for (const Removed& removed : kRemoved) {
      if (member.name != removed.key) continue;
      reader.error(
          member.name,
          concat("DeepSpeed 0.19.8 removed \"", removed.key,
                 "\" and refuses it whatever its value; ", removed.instead, ". Remove the key"),
          member.name_position);
      return true;
    }
    return false;
  });
  JsonValue* zero = root.find("zero_optimization");
  if (zero == nullptr) return;
  std::erase_if(zero->members(), [&](const JsonMember& member) {
    if (member.name != "zeropp_loco_param") return false;
    reader.error("zero_optimization.zeropp_loco_param",
                 "DeepSpeed 0.19.8 removed LoCo and refuses the key whatever its value; plain "
                 "quantized gradients (zero_quantized_gradients) remain. Remove the key",
                 member.name_position);
    return true;
  });
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
