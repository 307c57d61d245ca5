#include "zero3d/engine/train_settings.h"

#include <climits>
#include <cmath>
#include <iomanip>
#include <limits>
#include <sstream>
#include <variant>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

class Description {
 public:
  Description() { out_ << std::setprecision(17); }

  template <typename T>
  void add(std::string_view name, const T& value) {
    out_ << (out_.tellp() > 0 ? "; " : "") << name << " " << value;
  }
  void add(std::string_view name, DType value) { add(name, name_of(value)); }
  void add(std::string_view name, const ParameterMap& parameters) {
    for (const auto& [key, value] : parameters) {
      add(name, key);
      std::visit([&](const auto& held) { put(held); }, value);
    }
  }
  std::string text() const { return out_.str(); }

 private:
  void put(std::monostate) { out_ << " null"; }
  void put(const std::vector<double>& list) {
    for (const double number : list) put(number);
  }
  template <typename T>
  void put(const T& value) {
    out_ << " " << value;
  }

  std::ostringstream out_;
};

void add(Description& out, const ShardingSettings& sharding) {
  out.add("sharded optimizer state", sharding.what.optimizer_state);
  out.add("sharded gradients", sharding.what.gradients);
  out.add("sharded parameters", sharding.what.parameters);
  out.add("ranks of a shard group", sharding.ranks);
  out.add("ranks of a secondary partition", sharding.secondary_ranks);
  out.add("gather bucket", sharding.gather_bucket);
  out.add("prefetch", sharding.prefetch);
  out.add("live parameters", sharding.max_live);
  out.add("reuse distance", sharding.max_reuse_distance);
  out.add("persistent parameter", sharding.persistent_parameter);
  out.add("persistent total", sharding.persistent_total);
  out.add("gather to save", sharding.gather_to_save);
}

void add(Description& out, const GradientSettings& gradients) {
  out.add("mean of gradients", gradients.mean);
  out.add("prescale", gradients.prescale);
  out.add("predivide factor", gradients.predivide_factor);
  out.add("reduce bucket", gradients.reduce_bucket);
  out.add("overlapped reduction", gradients.overlap_reduction);
  out.add("reduce-scatter", gradients.reduce_scatter);
  out.add("gradient clipping", gradients.max_norm);
  out.add("gradient norm", gradients.take_norm);
  out.add("skip non-finite", gradients.skip_non_finite);
}

void add(Description& out, const PrecisionSettings& precision) {
  out.add("parameters in", precision.parameters);
  out.add("accumulation in", precision.accumulation);
  out.add("communication in", precision.communication);
  out.add("masters in", precision.masters);
  if (!precision.loss_scale) return;
  const LossScalerOptions& scale = *precision.loss_scale;
  out.add("loss scale", scale.static_scale);
  out.add("initial scale power", scale.initial_scale_power);
  out.add("loss scale window", scale.window);
  out.add("hysteresis", scale.hysteresis);
  out.add("consecutive hysteresis", scale.consecutive_hysteresis);
  out.add("smallest loss scale", scale.min_scale);
  out.add("no error at the smallest scale", scale.stage0);
}

void add(Description& out, const OffloadSettings& offload) {
  const OptimizerOffload& optimizer = offload.optimizer;
  out.add("optimizer state on", name_of(optimizer.device));
  out.add("optimizer state under", joined(optimizer.paths, ", "));
  out.add("pinned optimizer state", optimizer.pin_memory);
  out.add("buffers of optimizer state", optimizer.buffer_count);
  out.add("optimizer state read ahead", optimizer.pipeline_read);
  out.add("optimizer state written behind", optimizer.pipeline_write);
  out.add("share of the parameters updated on the CPU", optimizer.ratio);
  const ParameterOffload& parameters = offload.parameters;
  out.add("parameters on", name_of(parameters.device));
  out.add("parameters under", joined(parameters.paths, ", "));
  out.add("pinned parameters", parameters.pin_memory);
  out.add("buffers of parameters", parameters.buffer_count);
  out.add("elements of a buffer", parameters.buffer_elements);
  out.add("parameters kept in host memory", parameters.max_in_cpu);
  out.add("activations in host memory", offload.activations);
  const IoOptions& io = offload.io;
  out.add("bytes of an I/O request", io.block_size);
  out.add("I/O requests under way", io.queue_depth);
  out.add("I/O threads", io.intra_op_parallelism);
  out.add("single I/O submissions", io.single_submit);
  out.add("overlapped I/O events", io.overlap_events);
  out.add("I/O stall limit in ms", io.stall_limit.count());
  out.add("checksums of what drives hold", offload.checksums);
}

void add(Description& out, const DelayedUpdateSettings& delayed) {
  if (!delayed.on()) return;
  out.add("steps between updates of the rest", delayed.update_every);
  out.add("share updated at every step", delayed.share);
  out.add("steps between choices of it", delayed.select_every);
  out.add("epochs between choices of it", delayed.select_epochs);
  out.add("steps of an epoch", delayed.steps_of_epoch);
  out.add("overlapped updates of the rest", delayed.overlap);
  out.add("steps that update everything first", delayed.warm_up);
}

/// For what they need beside their own ranges.
void require_in_range(const DelayedUpdateSettings& delayed, const OffloadSettings& offload) {
  if (!delayed.on()) return;
  const std::string where = "TrainSettings::delayed_updates";
  if (!(delayed.share > 0 && delayed.share <= 1))
    throw_invalid(
        concat(where, ".share is ", delayed.share, "; expected a number above 0, at most 1"));
  if (delayed.select_epochs > 0 && delayed.steps_of_epoch == 0)
    throw_invalid(concat(where, ".select_epochs is ", delayed.select_epochs,
                         ", and steps_of_epoch is not known: state it, or choose by select_every"));
  const std::int64_t between = delayed.steps_between_choices();
  if (between > 0 && between < delayed.update_every)
    throw_invalid(concat(where, " chooses every ", between, " steps and updates the rest every ",
                         delayed.update_every,
                         "; expected choices no more often than that: raise select_every or "
                         "select_epochs, or lower update_every"));
  if (offload.optimizer.device != OffloadDevice::cpu)
    throw_invalid(concat(where, " need the optimizer in host memory, and it is on ",
                         name_of(offload.optimizer.device),
                         "; set offload.optimizer.device to cpu"));
  if (offload.parameters.on())
    throw_invalid(concat(where, " update parameters on the device, and offload.parameters moves ",
                         "them to ", name_of(offload.parameters.device), "; set it to none"));
}

}  // namespace

std::string_view name_of(TagValidation validation) {
  switch (validation) {
    case TagValidation::ignore:
      return "ignore";
    case TagValidation::warn:
      return "warn";
    case TagValidation::fail:
      break;
  }
  return "fail";
}

std::string describe_updates(const DelayedUpdateSettings& delayed) {
  const std::int64_t between = delayed.steps_between_choices();
  const std::string choice = between > 0 ? concat("chosen every ", between, " steps")
                             : delayed.select_epochs > 0
                                 ? concat("chosen every ", delayed.select_epochs, " epochs")
                                 : std::string("chosen once");
  return concat(
      delayed.share, " of each parameter at every step on the device, ", choice,
      "; the rest every ", delayed.update_every, " steps on the host",
      delayed.overlap ? ", taking effect so many steps later" : "",
      delayed.warm_up > 0 ? concat("; after ", delayed.warm_up, " steps of everything") : "");
}

std::string describe(const TrainSettings& settings) {
  Description out;
  out.add("micro-batch", settings.micro_batch);
  out.add("accumulation", settings.accumulation);
  out.add("managed accumulation", settings.managed_accumulation);
  out.add("data parallel degree", settings.dp);
  out.add("tensor parallel degree", settings.tp);
  out.add("pipeline stages", settings.pp);
  out.add("sequence parallel degree", settings.sp);
  out.add("pipeline schedule", name_of(settings.pipeline.schedule));
  out.add("virtual stages", settings.pipeline.virtual_stages);
  out.add("partition", describe(settings.pipeline.partition));
  out.add("partition by", settings.pipeline.partition.pattern);
  out.add("partition in", joined(settings.pipeline.partition.blocks, ", "));
  out.add("rows split over tensor-parallel ranks", settings.split_rows);
  out.add("overlapped tensor-parallel sums", settings.overlap_tp);
  out.add("kept inputs in parts", settings.split_kept);
  add(out, settings.sharding);
  add(out, settings.gradients);
  add(out, settings.precision);
  out.add("blocks of a recomputed group", settings.recomputation.interval);
  out.add("recomputed groups", settings.recomputation.groups);
  add(out, settings.offload);
  add(out, settings.delayed_updates);
  out.add("tiles of a linear layer", settings.tiles.linear);
  out.add("tiles of the head", settings.tiles.head);
  out.add("optimizer", settings.optimizer.type);
  out.add("optimizer", settings.optimizer.params);
  out.add("offloaded optimizer", settings.optimizer.offloaded);
  out.add("bf16 states", settings.optimizer.bf16_states);
  out.add("schedule", settings.schedule.type);
  out.add("schedule", settings.schedule.params);
  out.add("optimizer tile", settings.optimizer_tile);
  out.add("steps between progress lines", settings.log_every);
  out.add("validation of tags", name_of(settings.tag_validation));
  return out.text();
}

void require_in_range(const TrainSettings& settings) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const auto in_range = [](const char* field, std::int64_t value, std::int64_t least,
                           std::int64_t most) {
    if (value < least || value > most)
      throw_invalid(concat("TrainSettings::", field, " is ", value, "; expected a number from ",
                           least, most == kMost ? " on" : concat(" to ", most)));
  };
  // Operations number micro-batches by int.
  in_range("accumulation", settings.accumulation, 1, std::numeric_limits<int>::max());
  in_range("micro_batch", settings.micro_batch, 1, kMost);
  in_range("dp", settings.dp, 0, kMost);
  in_range("tp", settings.tp, 1, kMost);
  in_range("pp", settings.pp, 1, kMost);
  in_range("sp", settings.sp, 1, kMost);
  in_range("pipeline.virtual_stages", settings.pipeline.virtual_stages, 0, kMost);
  in_range("optimizer_tile", settings.optimizer_tile, 0, kMost);
  in_range("recomputation.interval", settings.recomputation.interval, 0, kMost);
  in_range("recomputation.groups", settings.recomputation.groups, 0, kMost);
  in_range("tiles.linear", settings.tiles.linear, 0, kMost);
  in_range("tiles.head", settings.tiles.head, 0, kMost);
  const ShardingSettings& sharding = settings.sharding;
  in_range("sharding.ranks", sharding.ranks, 0, kMost);
  in_range("sharding.secondary_ranks", sharding.secondary_ranks, 1, kMost);
  in_range("sharding.gather_bucket", sharding.gather_bucket, 0, kMost);
  in_range("sharding.prefetch", sharding.prefetch, 0, kMost);
  in_range("sharding.max_live", sharding.max_live, 0, kMost);
  in_range("sharding.max_reuse_distance", sharding.max_reuse_distance, 0, kMost);
  in_range("sharding.persistent_parameter", sharding.persistent_parameter, 0, kMost);
  in_range("sharding.persistent_total", sharding.persistent_total, 0, kMost);
  in_range("gradients.reduce_bucket", settings.gradients.reduce_bucket, 0, kMost);
  const double divisor = settings.gradients.predivide_factor;
  if (!std::isfinite(divisor) || divisor == 0)
    throw_invalid(concat("TrainSettings::gradients.predivide_factor is ", divisor,
                         "; expected a finite number other than 0"));
  const DelayedUpdateSettings& delayed = settings.delayed_updates;
  in_range("delayed_updates.update_every", delayed.update_every, 0, kMost);
  in_range("delayed_updates.select_every", delayed.select_every, 0, kMost);
  in_range("delayed_updates.select_epochs", delayed.select_epochs, 0, INT_MAX);
  in_range("delayed_updates.steps_of_epoch", delayed.steps_of_epoch, 0, INT_MAX);
  in_range("delayed_updates.warm_up", delayed.warm_up, 0, kMost);
  require_in_range(settings.offload);
  require_in_range(delayed, settings.offload);
}

}  // namespace zero3d
