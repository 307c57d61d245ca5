// Description of data_efficiency: curriculum learning, dynamic batching, random layer-token drop.
#include "zero3d/core/text.h"
#include "zero3d/ds_config/field.h"
#include "zero3d/ds_config/run_sections.h"

namespace zero3d::config {

namespace {

const Section& metric_section() {
  static const Section section = [] {
    using C = CurriculumMetricConfig;
    SectionBuilder<C> b("data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*",
                        false);
    b.add("index_to_sample_path", &C::index_to_sample_path, "File from index to samples.");
    b.add("index_to_metric_path", &C::index_to_metric_path, "File from index to difficulty.");
    b.add("difficulty_type", &C::difficulty_type, "Difficulty by value or by percentile.")
        .one_of({"value", "percentile"});
    b.add("clustering_type", &C::clustering_type, "How samples are grouped.")
        .one_of({"schedule_based", "single_cluster"});
    b.add("min_difficulty", &C::min_difficulty, "Difficulty at the start.");
    b.add("max_difficulty", &C::max_difficulty, "Difficulty at the end.");
    b.add("schedule_type", &C::schedule_type, "How it rises.")
        .one_of({"fixed_discrete", "fixed_linear", "fixed_root", "custom"});
    b.add("schedule_config", &C::schedule_config, "Settings of the schedule.").or_null();
    return b.build();
  }();
  return section;
}

const Section& curriculum_section() {
  static const Section section = [] {
    using C = CurriculumLearningConfig;
    SectionBuilder<C> b("data_efficiency.data_sampling.curriculum_learning", false);
    b.add("enabled", &C::enabled, "Feed easy samples first.");
    b.add("data_cluster_path", &C::data_cluster_path, "Folder of the sample groups.");
    b.custom(
        "curriculum_metrics", "object of objects", "The measures of difficulty, by name.",
        [](Reader& r, const Field& f, const std::string& path, const JsonValue& value, C& out) {
          if (!value.is_object()) {
            r.refuse(f, path, value, "an object with a metric under each name");
            return;
          }
          for (const JsonMember& member : value.members()) {
            auto& metric =
                out.curriculum_metrics.emplace_back(member.name, CurriculumMetricConfig{});
            r.read_section(metric_section(), member.value, &metric.second,
                           join_path(path, member.name));
          }
        },
        [](const C& in) {
          JsonValue object = JsonValue::make_object();
          for (const auto& [name, metric] : in.curriculum_metrics) {
            object.members().push_back({name, {}, metric_section().write(&metric)});
          }
          return object;
        });
    return b.build();
  }();
  return section;
}

const Section& dynamic_batching_section() {
  static const Section section = [] {
    using C = DynamicBatchingConfig;
    SectionBuilder<C> b("data_efficiency.data_sampling.dynamic_batching", false);
    b.add("enabled", &C::enabled, "Batches of equal tokens instead of equal samples.");
    b.add("lr_scaling_method", &C::lr_scaling_method, "How the rate follows the batch.")
        .one_of({"linear", "sqrt", "none"});
    b.add("min_batch_size", &C::min_batch_size, "Samples of a batch at least.").check();
    b.add("max_batch_size", &C::max_batch_size, "Samples of a batch at most.").check();
    b.add("sequence_picking_order", &C::sequence_picking_order, "Order of the samples.")
        .one_of({"random", "seqlen", "dataloader"});
    b.add("max_tokens", &C::max_tokens, "Tokens of a batch; required when enabled.");
    b.add("metrics_path", &C::metrics_path, "Folder of the measured lengths.");
    b.add("verbose", &C::verbose, "Print the batches.");
    return b.build();
  }();
  return section;
}

const Section& data_sampling_section() {
  static const Section section = [] {
    using C = DataSamplingConfig;
    SectionBuilder<C> b("data_efficiency.data_sampling", false);
    b.add("enabled", &C::enabled, "Choose samples by difficulty or length.");
    b.add("num_epochs", &C::num_epochs, "Epochs to prepare for.");
    b.add("num_workers", &C::num_workers, "Loader processes.");
    b.add("pin_memory", &C::pin_memory, "Page-locked batches.");
    b.nest("curriculum_learning", &C::curriculum_learning, curriculum_section(),
           "Curriculum learning.");
    b.nest("dynamic_batching", &C::dynamic_batching, dynamic_batching_section(),
           "Dynamic batching.");
    return b.build();
  }();
  return section;
}

const Section& ltd_schedule_section() {
  static const Section section = [] {
    using C = RandomLtdScheduleConfig;
    SectionBuilder<C> b("data_efficiency.data_routing.random_ltd.random_ltd_schedule", false);
    b.add("min_value", &C::min_value, "Tokens kept at the start.");
    b.add("max_value", &C::max_value, "Tokens kept at the end.");
    b.add("schedule_type", &C::schedule_type, "How they rise.").one_of({"fixed_linear"});
    b.add("schedule_config", &C::schedule_config, "Settings of the schedule.").or_null();
    return b.build();
  }();
  return section;
}

const Section& layer_token_lr_section() {
  static const Section section = [] {
    using C = LayerTokenLrScheduleConfig;
    SectionBuilder<C> b("data_efficiency.data_routing.random_ltd.layer_token_lr_schedule", false);
    b.add("enabled", &C::enabled, "Not implemented in DeepSpeed either.");
    return b.build();
  }();
  return section;
}

const Section& random_ltd_section() {
  static const Section section = [] {
    using C = RandomLtdConfig;
    SectionBuilder<C> b("data_efficiency.data_routing.random_ltd", false);
    b.add("enabled", &C::enabled, "Middle layers see a random part of the tokens.");
    b.add("total_layer_num", &C::total_layer_num, "Layers of the model.");
    b.add("random_ltd_layer_num", &C::random_ltd_layer_num, "Layers that drop tokens.");
    b.add("random_ltd_layer_id", &C::random_ltd_layer_id, "Their numbers.").or_null();
    b.add("model_mask_name", &C::model_mask_name, "Argument with the attention mask.").or_null();
    b.add("model_type", &C::model_type, "encoder or decoder.");
    b.add("hidden_state_order", &C::hidden_state_order, "Order of the hidden state's dims.");
    b.nest("random_ltd_schedule", &C::random_ltd_schedule, ltd_schedule_section(),
           "How many tokens are kept when.")
        .unread();
    b.nest("layer_token_lr_schedule", &C::layer_token_lr_schedule, layer_token_lr_section(),
           "A learning rate by tokens.")
        .unread();
    return b.build();
  }();
  return section;
}

const Section& data_routing_section() {
  static const Section section = [] {
    using C = DataRoutingConfig;
    SectionBuilder<C> b("data_efficiency.data_routing", false);
    b.add("enabled", &C::enabled, "Route tokens around layers.");
    b.nest("random_ltd", &C::random_ltd, random_ltd_section(), "Random layer-token drop.");
    return b.build();
  }();
  return section;
}

}  // namespace

const Section& data_efficiency_section() {
  static const Section section = [] {
    using C = DataEfficiencyConfig;
    SectionBuilder<C> b("data_efficiency", false);
    b.add("enabled", &C::enabled, "Read the section at all.");
    b.add("seed", &C::seed, "Seed of its random choices.");
    b.nest("data_sampling", &C::data_sampling, data_sampling_section(), "Choice of samples.");
    b.nest("data_routing", &C::data_routing, data_routing_section(), "Choice of tokens.");
    return b.build();
  }();
  return section;
}

}  // namespace zero3d::config
