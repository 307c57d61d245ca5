// The messages of every kind of refusal, held to messages.golden, which people have read: each must
// alone tell what to change. After a change, run with ZERO3D_UPDATE_GOLDEN=1 and read the diff.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/core/text.h"
#include "zero3d/ds_config/load.h"
#include "zero3d/ds_config/trainable.h"

namespace zero3d {
namespace {

constexpr const char* kGolden = "tests/ds_config/messages.golden";

struct Case {
  const char* text;
  int ranks = 8;
  int tp = 0;
  AutoValues autos = {};
};

constexpr std::string_view kNoOptimizer = "{\"train_batch_size\": 8}";

std::vector<Case> cases() {
  AutoValues lr;
  lr.lr = 1e-4;
  lr.micro_batch = 2;
  return {
      // The dialect.
      {"{\"train_batch_size\": 8,\n \"fp16\": {\"enabled\": true\n"},
      {"{{ \"train_batch_size\": 8 }}"},
      {"{\"train_batch_size\": 8}, {\"x\": 1}"},
      {"{\"train_batch_size\": ,}"},
      {"{\"train_batch_size: 8}"},
      {"{train batch: 8}"},
      {"{\"lr\": 1e999}"},
      {"{\"a\": \"\\q\"}"},
      {"/* never closed"},
      {"[8]"},
      {"{\"train_batch_size\": 8,\n \"zero_optimization\": {\"stage\": 1,\n  \"stage\": 2}}"},
      // The batch triple.
      {"{\"gradient_accumulation_steps\": 2}"},
      {"{\"train_batch_size\": 16, \"train_micro_batch_size_per_gpu\": 2, "
       "\"gradient_accumulation_steps\": 3}",
       4},
      {"{\"train_batch_size\": 18, \"train_micro_batch_size_per_gpu\": 2}", 4},
      {"{\"train_batch_size\": 4, \"train_micro_batch_size_per_gpu\": 2}", 4},
      {"{\"train_batch_size\": 10}", 4},
      {"{\"train_batch_size\": 0}"},
      {"{\"train_batch_size\": \"32\"}"},
      {"{\"train_micro_batch_size_per_gpu\": [8]}"},
      {"{\"train_batch_size\": 6, \"tensor_parallel\": {\"autotp_size\": 2}}", 8},
      {"{\"train_batch_size\": 6}", 4, 3},
      {"{\"train_batch_size\": 8, \"sequence_parallel_size\": 3}"},
      // Keys.
      {"{\"train_batch_size\": 8, \"gradient_cliping\": 1.0}"},
      {"{\"train_batch_size\": 8, \"zero_optimisation\": {\"stage\": 3}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"overlap_com\": true}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"stage3_param_persitence_threshold\": "
       "1}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"clip_grad\": 1.0}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"paro_strategy\": \"NIG\"}}"},
      {"{\"train_batch_size\": 8, \"stage\": 2}"},
      {"{\"train_batch_size\": 8, \"fp16\": {\"fp16\": true}}"},
      {"{\"train_batch_size\": 8, \"fp16\": {\"enable\": true}}"},
      {"{\"train_batch_size\": 8, \"bf16\": {\"loss_scale\": 0}}"},
      {"{\"train_batch_size\": 8, \"compile\": {\"disable\": false, \"backend\": \"inductor\"}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"prefetch_bucket_size\": 1, "
       "\"stage3_prefetch_bucket_size\": 2}}"},
      // Values.
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"reduce_bucket_size\": \"5e8\"}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"reduce_bucket_size\": 15099494.4}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"reduce_bucket_size\": 1e19}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"reduce_bucket_size\": -1}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"reduce_bucket_size\": [5]}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"reduce_bucket_size\": null}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 4}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\n \"stage\": ZERO_STAGE,\n}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": \"two\"}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": 2}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": null}"},
      {"{\"train_batch_size\": 8, \"fp16\": {\n \"enabled\": True,\n}}"},
      {"{\"train_batch_size\": 8, \"fp16\": {\"loss_scale\": -1}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"offload_param\": {\"device\": "
       "\"gpu\"}}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"offload_param\": {\"device\": "
       "\"None\"}}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"offload_optimizer\": {\"ratio\": "
       "1.5}}}"},
      {"{\"train_batch_size\": 8, \"communication_data_type\": \"bfp16\"}"},
      {"{\"train_batch_size\": 8, \"wall_clock_breakdown\": \"true\"}"},
      {"{\"train_batch_size\": 8, \"aio\": {\"use_gds\": true}}"},
      {"{\"train_batch_size\": 8, \"checkpoint\": {\"tag_validation\": \"maybe\"}}"},
      {"{\"train_batch_size\": 8, \"optimizer\": \"AdamW\"}"},
      // Removed and deprecated keys.
      {"{\"train_batch_size\": 8, \"amp\": {\"enabled\": false}}"},
      {"{\"train_batch_size\": 8, \"curriculum_learning\": {}}"},
      {"{\"train_batch_size\": 8, \"elasticity\": {}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 2, \"cpu_offload\": true}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"cpu_offload\": true, "
       "\"offload_optimizer\": {\"device\": \"cpu\"}}}"},
      {"{\"train_batch_size\": 8, \"bfloat16\": {\"enabled\": true}}"},
      // Rules between keys.
      {"{\"train_batch_size\": 8, \"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}"},
      {"{\"train_batch_size\": 8, \"fp16\": {\"enabled\": true, \"loss_scale_window\": 0}}"},
      {"{\"train_batch_size\": 8, \"fp16\": {\"enabled\": true, \"min_loss_scale\": 0}}"},
      {"{\"train_batch_size\": 8, \"bf16\": {\"bf16_master_weights_and_grads\": true}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 1}, \"bf16\": {\"enabled\": "
       "true, \"bf16_optimizer_states\": true}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": "
       "{\"device\": \"cpu\", \"ratio\": 0.5}}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 3, \"compute_grad_norm\": "
       "false}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 1, \"compute_grad_norm\": "
       "false}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 3}, "
       "\"gradient_allreduce_op\": "
       "\"sum\"}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 2}, \"prescale_gradients\": "
       "true}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 1, "
       "\"stage3_prefetch_bucket_size\": 1e6, \"offload_param\": {\"device\": \"cpu\"}}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 3, \"offload_param\": "
       "{\"device\": \"nvme\"}}}"},
      // Optimizer and scheduler.
      {"{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"AdamW\", \"params\": "
       "{\"max_grad_norm\": "
       "1.0}}}"},
      {"{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"beta\": "
       "[0.9, "
       "0.95], \"lr\": \"1e-3\"}}}"},
      {"{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"OneBitAdam\"}}"},
      {"{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"sgd\"}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 1}, \"optimizer\": {\"type\": "
       "\"SGD\", \"params\": {\"lr\": 0.1}}}"},
      {"{\"train_batch_size\": 8, \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": "
       "{\"warmup_num_steps\": 0}}}"},
      {"{\"train_batch_size\": 8, \"scheduler\": {\"type\": \"warmuplr\"}}"},
      {kNoOptimizer.data()},
      {"{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": -1e-4, "
       "\"betas\": [0.9, 1.0], \"eps\": null, \"weight_decay\": 1e40}}}"},
      {"{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Adam\", \"params\": {\"foreach\": "
       "true}}}"},
      {"{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Muon\", \"params\": {\"momentm\": "
       "0.9}}, \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"total_num_steps\": 10, "
       "\"warmup_type\": \"cosine\"}}}"},
      {"{\"train_batch_size\": 8, \"fp16\": {\"enabled\": true, \"initial_scale_power\": 1e10}, "
       "\"gradient_predivide_factor\": 1e39}"},
      // "auto".
      {"{\"train_micro_batch_size_per_gpu\": \"auto\", \"gradient_clipping\": \"auto\", "
       "\"gradient_accumulation_steps\": 1, \"zero_optimization\": {\"reduce_bucket_size\": "
       "\"auto\"}}"},
      {"{\"train_micro_batch_size_per_gpu\": 4, \"optimizer\": {\"type\": \"AdamW\", \"params\": "
       "{\"lr\": 0.01}}}",
       8, 0, lr},
      {"{\"train_batch_size\": 8, \"steps_per_print\": \"auto\"}"},
      // Offload.
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": "
       "{\"device\": \"nvme\"}}}"},
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": "
       "{\"device\": \"nvme\", \"nvme_path\": \"/d\", \"buffer_count\": 0, "
       "\"super_offload\": true}}, \"aio\": {\"block_size\": 5000, \"queue_depth\": 1e6}}"},
      {"{\"train_batch_size\": 8, \"zero3d\": {\"nvme_path\": \"/d\", \"nvme_paths\": [], "
       "\"checksums\": \"true\"}}"},
      // What train refuses.
      {"{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 3, "
       "\"zero_quantized_weights\": "
       "true}, \"tensorboard\": {\"enabled\": true}, \"activation_checkpointing\": "
       "{\"cpu_checkpointing\": true}}"},
      {"{\"train_batch_size\": 8, \"pipeline\": {\"stages\": 2}, \"zero3d\": {\"schedule\": "
       "\"gpipe\", \"virtual_stages\": 2, \"partition\": \"profile\"}}"},
  };
}

/// The first line of what a user sees.
std::string place(const LoadResult& loaded, const ConfigMessage& message) {
  const std::string shown = loaded.show(message);
  return shown.substr(0, shown.find('\n'));
}

std::string report(const Case& entry) {
  LoadOptions options;
  options.ranks = entry.ranks;
  options.autos = entry.autos;
  if (entry.tp > 0) options.tp = entry.tp;
  const LoadResult loaded = load_config_text(entry.text, "file", options);
  std::string out =
      concat(entry.text, entry.ranks == 8 ? "" : concat("   [ranks ", entry.ranks, "]"), "\n");
  for (const auto& message : loaded.errors)
    out += concat("  error: ", place(loaded, message), "\n");
  for (const auto& message : loaded.warnings) {
    out += concat("  warning: ", place(loaded, message), "\n");
  }
  if (loaded.ok()) {
    const TrainCheck check = check_trainable(loaded);
    for (const auto& message : check.errors) {
      if (message.path == "optimizer" && entry.text != kNoOptimizer) continue;  // most have none
      out += concat("  train error: ", place(loaded, message), "\n");
    }
    for (const auto& message : loaded.train_warnings)
      out += concat("  at start: ", place(loaded, message), "\n");
    if (!check.not_implemented.empty()) out += concat("  at start: ", check.not_implemented, "\n");
  }
  return out;
}

TEST(ConfigMessages, AreAsReviewed) {
  std::string all;
  for (const Case& entry : cases()) {
    const std::string text = report(entry);
    EXPECT_NE(text.find("\n  "), std::string::npos) << "nothing to say about " << entry.text;
    all += text + "\n";
  }
  if (std::getenv("ZERO3D_UPDATE_GOLDEN") != nullptr) std::ofstream(kGolden) << all;
  std::ifstream file(kGolden);
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(golden.str(), all);
}

}  // namespace
}  // namespace zero3d
