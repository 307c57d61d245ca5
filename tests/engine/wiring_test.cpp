// From a key of a ds_config to what the engine does: one row a key, with two values, and what a run
// of a few steps shows of each. The numbers follow from the probe of wiring.h, on two ranks unless
// a row says otherwise.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "wiring.h"
#include "zero3d/offload/stagger.h"

namespace zero3d::test {
namespace {

const float kInf = std::numeric_limits<float>::infinity();
const char* const kStage = "zero_optimization.stage";

std::vector<Row> batch_rows() {
  const auto gradient = [](const Seen& s) { return s.gradient(); };
  return {{"train_micro_batch_size_per_gpu",
           {"1", "3"},
           {},
           [](const Seen& s) { return static_cast<double>(s.samples); },
           {2, 6}},
          {"gradient_accumulation_steps", {"1", "2"}, {}, gradient, {1.5, 2.25}},
          {"managed_gradient_accumulation",
           {"true", "false"},
           {{"gradient_accumulation_steps", "2"}},
           [](const Seen& s) { return static_cast<double>(s.steps); },
           {1, 2}},
          {"steps_per_print", {"1", "2"}, {}, [](const Seen& s) { return s.lines; }, {4, 2}, 2, 4}};
}

std::vector<Row> sharding_rows() {
  const auto gathered = [](const Seen& s) { return s.gathered(); };
  const auto arena = [](const Seen& s) { return s.arena; };
  const Keys ahead = {{"zero_optimization.stage3_prefetch_bucket_size", "1000000000"}};
  return {
      {kStage,
       {"0", "1"},
       {},
       [](const Seen& s) { return s.state_elements; },
       {kModel, kModel / 2}},
      {kStage,
       {"1", "2"},
       {{"gradient_accumulation_steps", "2"}},
       [](const Seen& s) { return s.elements("reduce_scatter"); },
       {kModel, 2 * kModel}},
      {kStage, {"2", "3"}, {}, gathered, {kModel, 2 * kModel}},
      // Shards are of 1,024 elements at least, so that four ranks pad a unit to 4,096.
      {"zero_optimization.mics_shard_size", {"2", "4"}, {}, gathered, {2 * kModel, 4 * kModel}, 4},
      {"zero_optimization.zero_hpz_partition_size",
       {"2", "4"},
       {},
       [](const Seen& s) {  // beside the shards of four blocks' 1,024 elements
         const std::int64_t shard = 1024 * 4;
         return s.bytes(Category::parameters) -
                8 * static_cast<double>(shard + Stagger::slack(shard));
       },
       {2 * kModel * 4 / 2, 2 * kModel * 4 / 4},
       4},
      {"zero_optimization.allgather_bucket_size",
       {"1", "1000000000"},  // at most a quarter of the model
       {{kStage, "1"}},
       [](const Seen& s) { return s.calls("all_gather") - 1; },
       {8, 4}},
      {"zero_optimization.stage3_prefetch_bucket_size",
       {"0", "4096"},
       {},
       arena,
       {kUnit, 3 * kUnit}},
      {"zero_optimization.stage3_allgather_sequential",
       {"false", "true"},
       ahead,
       arena,
       {kModel, 2 * kUnit}},
      {"zero_optimization.stage3_max_live_parameters",
       {"0", "4096"},
       ahead,
       arena,
       {kUnit, 2 * kUnit}},
      {"zero_optimization.stage3_max_reuse_distance",
       {"0", "1000000000"},
       {},
       gathered,
       {2 * kModel, kModel}},
      {"zero_optimization.stage3_param_persistence_threshold",
       {"2047", "2048"},
       {},
       gathered,
       {2 * kModel, kModel}},
      {"zero_optimization.stage3_model_persistence_threshold",
       {"2048", "4096"},
       {{"zero_optimization.stage3_param_persistence_threshold", "2048"}},
       gathered,
       {2 * kModel - kUnit, 2 * kModel - 2 * kUnit}},
      {"zero_optimization.stage3_gather_16bit_weights_on_model_save",
       {"false", "true"},
       {},
       [](const Seen& s) { return s.saved ? 1.0 : 0.0; },
       {0, 1}}};
}

std::vector<Row> gradient_rows() {
  const auto gradient = [](const Seen& s) { return s.gradient(); };
  const auto skipped = [](const Seen& s) { return s.run.steps.back().skipped ? 1.0 : 0.0; };
  const auto huge = [](const Moment&) { return std::exp2f(127); };
  const auto infinite = [](const Moment&) { return kInf; };
  const double norm = 1.5 * std::sqrt(kModel);
  return {{"gradient_allreduce_op", {R"("mean")", R"("sum")"}, {{kStage, "0"}}, gradient, {1.5, 3}},
          {"gradient_allreduce_op",
           {R"("mean")", R"("sum")"},
           {{kStage, "2"}, {"gradient_accumulation_steps", "2"}},
           gradient,
           {2.25, 4.5}},
          {"prescale_gradients",
           {"false", "true"},
           {{kStage, "1"}},
           gradient,
           {kInf, std::exp2(127)},
           2,
           1,
           huge},
          {"gradient_predivide_factor",
           {"1.0", "4.0"},
           {{kStage, "1"}},
           gradient,
           {kInf, std::exp2(127)},
           2,
           1,
           huge},
          {"zero_optimization.reduce_bucket_size",
           {"2048", "1000000000"},  // at most a quarter of the model
           {{kStage, "2"}},
           [](const Seen& s) { return s.calls("reduce_scatter"); },
           {8, 4}},
          {"zero_optimization.overlap_comm",
           {"false", "true"},
           {{kStage, "2"}, {"zero_optimization.reduce_bucket_size", "2048"}},
           // and the sum of one micro-batch's shard
           [](const Seen& s) { return s.bytes(Category::gradient_buckets) / 4 - kUnit / 2; },
           {kUnit, 2 * kUnit}},
          {"zero_optimization.reduce_scatter",
           {"true", "false"},
           {{kStage, "2"}},
           [](const Seen& s) { return s.elements("reduce_scatter"); },
           {kModel, 0}},
          {"gradient_clipping",
           {"0", "0.5"},
           {},
           [](const Seen& s) { return s.run.steps.back().clip_factor; },
           {1, 0.5 / (norm + 1e-6)}},
          {"zero_optimization.compute_grad_norm",
           {"true", "false"},
           {{kStage, "2"}},
           [](const Seen& s) { return s.run.steps.back().grad_norm; },
           {norm, std::nan("")}},
          {"bf16.check_grad_overflow",
           {"true", "false"},
           {{kStage, "2"}, {"bf16.enabled", "true"}},
           skipped,
           {1, 0},
           2,
           1,
           infinite},
          // DeepSpeed looks at the key at stages 1 and 2 only.
          {"bf16.check_grad_overflow",
           {"true", "false"},
           {{kStage, "3"}, {"bf16.enabled", "true"}},
           skipped,
           {1, 1},
           2,
           1,
           infinite},
          {"bf16.check_grad_overflow",
           {"true", "false"},
           {{kStage, "0"}, {"bf16.enabled", "true"}},
           skipped,
           {1, 1},
           2,
           1,
           infinite}};
}

std::vector<Row> precision_rows() {
  const auto gradient = [](const Seen& s) { return s.gradient(); };
  const auto master = [](const Seen& s) { return s.p0().master.size() / kUnit; };
  const auto moment = [](const Seen& s) { return s.p0().states.at(0).size() / kUnit; };
  const double fine = 1 + std::exp2(-10);  // in fp16, but not in bf16
  const auto every = [fine](const Moment&) { return static_cast<float>(fine); };
  const auto one = [fine](const Moment& at) { return static_cast<float>(at.rank ? fine : 1); };
  const auto falling = [](const Moment& at) { return at.micro_batch ? std::exp2f(-8) : 2.0f; };
  const Keys bf16 = {{"bf16.enabled", "true"}};
  const Keys fp16 = {{"fp16.enabled", "true"}, {"fp16.loss_scale", "8"}};
  return {{"bf16.enabled", {"false", "true"}, {}, gradient, {fine, 1}, 2, 1, every},
          {"fp16.enabled",
           {"false", "true"},
           {{"fp16.loss_scale", "1"}},
           [](const Seen& s) { return s.p0().value.size() / kUnit + s.gradient(); },
           {4 + fine, 2 + fine},
           2,
           1,
           every},
          {"data_types.grad_accum_dtype",
           {R"("fp32")", R"("bf16")"},
           {{"bf16.enabled", "true"}, {"gradient_accumulation_steps", "2"}},
           gradient,
           {1 + std::exp2(-9), 1},
           2,
           1,
           falling},
          {"data_types.grad_accum_dtype", {R"("fp32")", R"("bf16")"}, bf16, master, {4, 4}},
          {"communication_data_type",
           {R"("fp32")", R"("bf16")"},
           {},
           gradient,
           {1 + std::exp2(-11), 1},
           2,
           1,
           one},
          {"bf16.bf16_master_weights_and_grads", {"false", "true"}, bf16, master, {4, 0}},
          {"fp16.fp16_master_weights_and_grads", {"false", "true"}, fp16, master, {4, 0}},
          {"bf16.bf16_optimizer_states",
           {"false", "true"},
           {{"bf16.enabled", "true"}, {"bf16.bf16_master_weights_and_grads", "true"}},
           moment,
           {4, 2}},
          // Without bf16 masters: DeepSpeed's optimizers off the device.
          {"zero_optimization.offload_optimizer.device",
           {R"("none")", R"("cpu")"},
           {{"bf16.enabled", "true"}, {"optimizer.params.fp32_optimizer_states", "false"}},
           [moment, master](const Seen& s) { return 10 * master(s) + moment(s); },
           {44, 42}}};
}

std::vector<Row> loss_scale_rows() {
  const auto scale = [](const Seen& s) { return s.loss_scale; };
  const auto bad = [](std::initializer_list<int> steps) {
    return [steps = std::vector<int>(steps)](const Moment& at) {
      return std::count(steps.begin(), steps.end(), at.step) ? kInf : 1.0f;
    };
  };
  const auto with = [](const char* key, const char* value) {
    return Keys{{kStage, "1"},
                {"fp16.enabled", "true"},
                {"fp16.initial_scale_power", "4"},
                {concat("fp16.", key), value}};
  };
  return {
      {"fp16.loss_scale", {"8", "32"}, with("hysteresis", "1"), scale, {8, 32}},
      {"fp16.initial_scale_power", {"4", "5"}, with("hysteresis", "1"), scale, {16, 32}},
      {"fp16.loss_scale_window", {"1", "2"}, with("hysteresis", "1"), scale, {64, 32}, 2, 3},
      {"fp16.hysteresis", {"1", "2"}, with("hysteresis", "1"), scale, {8, 16}, 2, 1, bad({0})},
      {"fp16.consecutive_hysteresis",
       {"false", "true"},
       with("hysteresis", "2"),
       scale,
       {8, 16},
       2,
       3,
       bad({0, 2})},
      {"fp16.min_loss_scale", {"1", "12"}, with("hysteresis", "1"), scale, {8, 12}, 2, 1, bad({0})},
      // Stage 0 knows no hysteresis.
      {kStage, {"0", "1"}, with("hysteresis", "2"), scale, {8, 16}, 2, 1, bad({0})}};
}

std::vector<Row> optimizer_rows() {
  const auto lr = [](const Seen& s) { return s.run.steps.back().lr; };
  return {{"optimizer.type",
           {R"("SGD")", R"("Adam")"},
           {},
           [](const Seen& s) { return static_cast<double>(s.p0().states.size()); },
           {0, 2}},
          {"optimizer.params.lr", {"0.5", "0.25"}, {}, lr, {0.5, 0.25}},
          {"optimizer.legacy_fusion",
           {"false", "true"},
           {},
           [](const Seen& s) { return s.warnings; },
           {0, 1}},
          {"scheduler.type",
           {R"("linear")", R"("cosine")"},
           {{"scheduler.params.total_num_steps", "3"}},
           lr,
           {0.125 * 2 / 3, 0.125 * 0.75},
           2,
           2},
          {"scheduler.params.total_num_steps",
           {"2", "4"},
           {{"scheduler.type", R"("linear")"}},
           lr,
           {0.125 / 2, 0.125 * 3 / 4},
           2,
           2},
          {"zero_optimization.sub_group_size",
           {"1024", "2048"},
           {},
           [](const Seen& s) { return s.record_elements; },
           {1024, 2048}}};
}

/// Of eight blocks all but the last are computed again.
std::vector<Row> recomputation_rows() {
  const auto recomputed = [](const Seen& s) { return s.recomputed; };
  const auto groups = [](const Seen& s) { return s.groups; };
  const char* const interval = "pipeline.activation_checkpoint_interval";
  const char* const number = "activation_checkpointing.number_checkpoints";
  return {{interval, {"0", "3"}, {}, recomputed, {0, 7}},
          {interval, {"1", "3"}, {{number, "2"}}, groups, {7, 3}},
          {interval, {"0", "3"}, {{number, "2"}}, groups, {2, 3}},
          {number, {"2", "50"}, {}, groups, {2, 7}},
          {number, {"null", "3"}, {}, recomputed, {0, 7}},
          {"activation_checkpointing.partition_activations", {"false", "true"}, {}, groups, {0, 7}},
          {"activation_checkpointing.cpu_checkpointing", {"false", "true"}, {}, groups, {0, 7}},
          {"activation_checkpointing.cpu_checkpointing",
           {"false", "true"},
           {{number, "2"}},
           groups,
           {2, 2}},
          {"activation_checkpointing.profile", {"false", "true"}, {}, recomputed, {0, 0}}};
}

/// By where the plan has the optimizer's state; that it lies there is the matter of the offload's
/// own tests.
std::vector<Row> offload_rows() {
  const auto tiers = [](const Seen& s) {
    const auto there = [&](Tier tier) { return s.bytes(Category::optimizer_states, tier) > 0; };
    return (there(Tier::device) ? 100.0 : 0) + (there(Tier::pinned) ? 10 : 0) +
           (there(Tier::pageable) ? 1 : 0);
  };
  const auto buffers = [](const Seen& s) {
    return s.bytes(Category::optimizer_states, Tier::pinned);
  };
  const auto state = [](const char* key) {
    return concat("zero_optimization.offload_optimizer.", key);
  };
  static const std::string device = state("device"), count = state("buffer_count"),
                           pin = state("pin_memory"), ratio = state("ratio");
  const Keys cpu = {{device, R"("cpu")"}};
  const Keys nvme = {{device, R"("nvme")"},
                     {"zero3d.nvme_paths", R"(["@NVME@"])"},
                     {"zero_optimization.sub_group_size", "1024"}};
  const auto drives = [](const Seen& s) {
    return static_cast<double>(s.run.estimates[0].total_on_drives());
  };
  const double element = 3 * 4;  // master and two moments
  return {{device.c_str(), {R"("none")", R"("cpu")"}, {}, tiers, {100, 10}},
          {kStage, {"0", "1"}, cpu, tiers, {100, 10}},
          {pin.c_str(), {"true", "false"}, cpu, tiers, {10, 1}},
          {ratio.c_str(), {"1", "0.5"}, cpu, tiers, {10, 110}},
          {count.c_str(), {"10", "30"}, nvme, buffers, {10 * 1024 * element, 30 * 1024 * element}},
          {device.c_str(),
           {R"("cpu")", R"("nvme")"},
           nvme,
           drives,
           {0, kModel / 2 * (element + 4)}},  // and the gradient
          {"zero_optimization.cpu_offload", {"false", "true"}, {}, tiers, {100, 10}}};
}

class Wiring : public ::testing::TestWithParam<std::vector<Row> (*)()> {};

TEST_P(Wiring, AKeyDoesWhatItSays) {
  for (const Row& row : GetParam()()) {
    for (int i = 0; i < 2; ++i) {
      SCOPED_TRACE(concat(row.key, ": ", row.values[i]));
      const double found = see(row, row.values[i]);
      if (std::isnan(row.expected[i])) {
        EXPECT_TRUE(std::isnan(found)) << found;
      } else {
        EXPECT_DOUBLE_EQ(found, row.expected[i]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Batch, Wiring, ::testing::Values(batch_rows));
INSTANTIATE_TEST_SUITE_P(Sharding, Wiring, ::testing::Values(sharding_rows));
INSTANTIATE_TEST_SUITE_P(Gradients, Wiring, ::testing::Values(gradient_rows));
INSTANTIATE_TEST_SUITE_P(Precision, Wiring, ::testing::Values(precision_rows));
INSTANTIATE_TEST_SUITE_P(LossScale, Wiring, ::testing::Values(loss_scale_rows));
INSTANTIATE_TEST_SUITE_P(Offload, Wiring, ::testing::Values(offload_rows));
INSTANTIATE_TEST_SUITE_P(Recomputation, Wiring, ::testing::Values(recomputation_rows));
INSTANTIATE_TEST_SUITE_P(Optimizer, Wiring, ::testing::Values(optimizer_rows));

}  // namespace
}  // namespace zero3d::test
