#include "zero3d/ds_config/deepspeed_writer.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "zero3d/core/error.h"
#include "zero3d/core/multiples.h"
#include "zero3d/core/output_file.h"
#include "zero3d/core/temporary_path.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/checkpoint/checkpoint_folder.h"
#include "zero3d/formats/torch_file_writer.h"
#include "zero3d/optim/schedule.h"

namespace zero3d {
namespace {

namespace fs = std::filesystem;

/// The release whose files these are.
constexpr const char* kVersion = "0.19.8";
constexpr std::string_view kStates[] = {"exp_avg", "exp_avg_sq"};

/// A run of a parameter in a flat tensor; what no segment covers is zero.
struct Segment {
  const SavedParameter* parameter = nullptr;
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::int64_t offset = 0;
};
struct Flat {
  std::vector<Segment> segments;
  std::int64_t numel = 0;
};

class Writer {
 public:
  Writer(const SavedState& saved, const DeepspeedLayout& layout) : saved_(saved), layout_(layout) {
    for (const std::string& name : layout.order) {
      const SavedParameter* const parameter = saved.find(name);
      ZERO3D_CHECK(parameter != nullptr, "the order names parameters of the state");
      require_writable(*parameter);
      (parameter->frozen ? frozen_ : trained_).push_back(parameter);
    }
  }

  void write(const fs::path& folder) const {
    for (int rank = 0; rank < layout_.ranks; ++rank) {
      if (rank == 0 || layout_.zero_stage == 3) write_model(folder, rank);
      write_optimizer(folder, rank);
    }
  }

 private:
  bool stage3() const { return layout_.zero_stage == 3; }

  void require_writable(const SavedParameter& parameter) const {
    if (parameter.tensors.count(kWeight) == 0)
      throw_invalid(concat(saved_.path(), " was saved without ", parameter.name,
                           ", which was frozen: take a checkpoint that has it"));
    if (parameter.frozen) return;
    for (const std::string_view state : kStates)
      if (parameter.tensors.count(state) == 0)
        throw_invalid(concat(parameter.name, " has no ", state,
                             ": DeepSpeed's layout is written for the states of Adam and AdamW",
                             parameter.rule.empty() ? "" : concat(", not of ", parameter.rule)));
  }

  TorchFileWriter::Read reader(const Flat& flat, std::string_view tensor) const {
    return [this, flat, tensor = std::string(tensor)](std::int64_t first, const View& dst) {
      std::memset(dst.data(), 0, dst.bytes());
      for (const Segment& segment : flat.segments) {
        const std::int64_t begin = std::max(first, segment.offset);
        const std::int64_t end = std::min(first + dst.numel(), segment.offset + segment.count);
        if (begin >= end) continue;
        const GlobalRun run{segment.first + begin - segment.offset, end - begin, begin - first};
        saved_.read(*segment.parameter, tensor, {&run, 1}, dst);
      }
    };
  }

  // What a rank holds.

  std::int64_t share(const SavedParameter& parameter) const {
    return ceil_div<std::int64_t>(parameter.shape.numel(), layout_.ranks);
  }
  /// Stage 3: an equal part of each parameter, in subgroups of whole parameters.
  Segment part_of(const SavedParameter& parameter, int rank, std::int64_t offset) const {
    const std::int64_t begin = std::min(parameter.shape.numel(), rank * share(parameter));
    const std::int64_t end = std::min(parameter.shape.numel(), begin + share(parameter));
    return {&parameter, begin, end - begin, offset};
  }
  std::vector<Flat> parts(int rank) const {
    std::vector<Flat> groups(1);
    for (const SavedParameter* parameter : trained_) {
      if (groups.back().numel >= layout_.sub_group) groups.emplace_back();
      Flat& flat = groups.back();
      flat.segments.push_back(part_of(*parameter, rank, flat.numel));
      flat.numel += share(*parameter);
    }
    return groups;
  }
  /// Stages 1 and 2: an equal part of all parameters in a row, padded to two elements a rank.
  Flat partition(int rank, std::int64_t& padding) const {
    std::int64_t total = 0;
    for (const SavedParameter* parameter : trained_) total += parameter->shape.numel();
    const std::int64_t padded = round_up<std::int64_t>(total, 2 * layout_.ranks);
    Flat flat;
    flat.numel = padded / layout_.ranks;
    const std::int64_t begin = rank * flat.numel;
    padding = std::clamp<std::int64_t>(begin + flat.numel - total, 0, flat.numel);
    std::int64_t at = 0;
    for (const SavedParameter* parameter : trained_) {
      const std::int64_t numel = parameter->shape.numel();
      const std::int64_t from = std::max(begin, at);
      const std::int64_t to = std::min(begin + flat.numel, at + numel);
      if (from < to) flat.segments.push_back({parameter, from - at, to - from, from - begin});
      at += numel;
    }
    return flat;
  }

  // Values.

  static void json(PickleWriter& out, const JsonValue& value) {
    switch (value.kind()) {
      case JsonValue::Kind::null:
        return out.none();
      case JsonValue::Kind::boolean:
        return out.boolean(value.as_bool());
      case JsonValue::Kind::integer:
        return out.integer(value.as_integer());
      case JsonValue::Kind::number:
        return out.real(value.as_number());
      case JsonValue::Kind::string:
        return out.text(value.as_string());
      case JsonValue::Kind::array:
        out.begin_list();
        for (const JsonValue& item : value.items()) json(out, item);
        return out.end_list();
      case JsonValue::Kind::object:
        out.begin_dict();
        for (const JsonMember& member : value.members()) {
          out.text(member.name);
          json(out, member.value);
        }
        return out.end_dict();
    }
  }
  static std::vector<std::int64_t> dims(const SavedParameter& parameter) {
    std::vector<std::int64_t> result;
    for (int dim = 0; dim < parameter.shape.rank(); ++dim) result.push_back(parameter.shape[dim]);
    return result;
  }
  static void sizes(PickleWriter& out, const std::vector<const SavedParameter*>& parameters) {
    out.begin_ordered_dict();
    for (const SavedParameter* parameter : parameters) {
      out.text(parameter->name);
      out.global("torch", "Size");
      out.begin_tuple();
      out.begin_tuple();
      for (const std::int64_t dim : dims(*parameter)) out.integer(dim);
      out.end_tuple();
      out.end_tuple();
      out.reduce();
    }
    out.end_dict();
  }
  void loss_scaler(PickleWriter& out) const {
    const LossScaler::State& state = saved_.run().state.scaler;
    const bool dynamic = saved_.run().scale == SavedScale::dynamic;
    out.global("deepspeed.runtime.fp16.loss_scaler", dynamic ? "DynamicLossScaler" : "LossScaler");
    out.object();
    out.begin_dict();
    out.text("cur_scale");
    out.real(state.scale);
    out.text("dynamic");
    out.boolean(dynamic);
    if (dynamic) {
      const auto of_config = [&](const char* key, std::int64_t otherwise) {
        const JsonValue* const value = layout_.ds_config.find_path(concat("fp16.", key));
        return value != nullptr && value->is_integer() ? value->as_integer() : otherwise;
      };
      const auto number = [&](const char* name, std::int64_t value) {
        out.text(name);
        out.integer(value);
      };
      const JsonValue* const refills = layout_.ds_config.find_path("fp16.consecutive_hysteresis");
      number("cur_iter", state.iteration);
      number("last_overflow_iter", state.last_overflow);
      out.text("scale_factor");
      out.real(2);
      number("scale_window", of_config("loss_scale_window", 1000));
      number("min_scale", of_config("min_loss_scale", 1));
      number("delayed_shift", of_config("hysteresis", 2));
      number("cur_hysteresis", state.hysteresis);
      out.text("consecutive_hysteresis");
      out.boolean(refills != nullptr && refills->is_bool() && refills->as_bool());
      out.text("raise_error_at_min_scale");
      out.boolean(true);
      out.text("dtype");
      out.global("torch", "float16");
    }
    out.end_dict();
    out.build();
  }
  static void member(PickleWriter& out, const char* name, std::int64_t value) {
    out.text(name);
    out.integer(value);
  }

  /// The state dict of the optimizer over `flats`, one tensor each.
  void adam(TorchFileWriter& file, const std::vector<Flat>& flats) const {
    PickleWriter& out = file.pickle();
    out.begin_dict();
    out.text("state");
    out.begin_dict();
    for (std::size_t i = 0; i < flats.size(); ++i) {
      out.integer(static_cast<std::int64_t>(i));
      out.begin_dict();
      member(out, "step", saved_.run().state.optimizer_steps);
      for (const std::string_view state : kStates) {
        out.text(state);
        file.tensor(file.add_storage(DType::f32, flats[i].numel, reader(flats[i], state)), 0,
                    {flats[i].numel});
      }
      out.end_dict();
    }
    out.end_dict();
    out.text("param_groups");
    out.begin_list();
    param_group(out, flats.size());
    out.end_list();
    out.end_dict();
  }
  void param_group(PickleWriter& out, std::size_t tensors) const {
    const JsonValue* const given = layout_.ds_config.find_path("optimizer.params");
    const auto value = [&](const char* name, JsonValue otherwise) {
      const JsonValue* const found = given == nullptr ? nullptr : given->find(name);
      out.text(name);
      json(out, found == nullptr || found->is_null() ? otherwise : *found);
    };
    JsonValue betas = JsonValue::make_array();
    betas.push_back(JsonValue(0.9));
    betas.push_back(JsonValue(0.999));
    out.begin_dict();
    out.text("lr");
    out.real(layout_.lr);
    value("bias_correction", JsonValue(true));
    value("betas", betas);
    value("eps", JsonValue(1e-8));
    value("weight_decay", JsonValue(0.0));
    value("amsgrad", JsonValue(false));
    member(out, "step", 0);
    out.text("params");
    out.begin_list();
    for (std::size_t i = 0; i < tensors; ++i) out.integer(static_cast<std::int64_t>(i));
    out.end_list();
    out.end_dict();
  }

  // Files.

  std::string rank_name(int rank, const char* kind) const {
    char name[64];
    std::snprintf(name, sizeof name, "zero_pp_rank_%d_mp_rank_00_%s_states.pt", rank, kind);
    return name;
  }

  void module(TorchFileWriter& file) const {
    PickleWriter& out = file.pickle();
    std::map<std::string, std::size_t> storages;
    const auto weight = [&](const std::string& name, const SavedParameter& parameter) {
      const std::int64_t numel = stage3() ? 0 : parameter.shape.numel();
      auto storage = storages.find(parameter.name);
      if (storage == storages.end() || stage3()) {
        const Flat flat{{{&parameter, 0, numel, 0}}, numel};
        storage = storages
                      .insert_or_assign(parameter.name, file.add_storage(layout_.dtype, numel,
                                                                         reader(flat, kWeight)))
                      .first;
      }
      out.text(name);
      file.tensor(storage->second, 0, stage3() ? std::vector<std::int64_t>{0} : dims(parameter));
    };
    out.begin_ordered_dict();
    for (const std::string& name : layout_.order) weight(name, *saved_.find(name));
    for (const auto& [alias, name] : layout_.aliases) weight(alias, *saved_.find(name));
    out.end_dict();
  }

  void frozen_parts(TorchFileWriter& file, int rank) const {
    PickleWriter& out = file.pickle();
    out.begin_ordered_dict();
    for (const SavedParameter* parameter : frozen_) {
      Flat flat{{{parameter, 0, parameter->shape.numel(), 0}}, parameter->shape.numel()};
      if (stage3()) flat = {{part_of(*parameter, rank, 0)}, share(*parameter)};
      out.text(parameter->name);
      file.tensor(file.add_storage(layout_.dtype, flat.numel, reader(flat, kWeight)), 0,
                  stage3() ? std::vector<std::int64_t>{flat.numel} : dims(*parameter));
    }
    out.end_dict();
  }

  void write_model(const fs::path& folder, int rank) const {
    const std::string name = stage3() ? rank_name(rank, "model") : "mp_rank_00_model_states.pt";
    TorchFileWriter file((folder / name).string());
    PickleWriter& out = file.pickle();
    const RunState& state = saved_.run().state;
    const auto none = [&](const char* key) {
      out.text(key);
      out.none();
    };
    out.begin_dict();
    out.text("module");
    module(file);
    out.text("buffer_names");
    out.begin_list();
    out.end_list();
    none("optimizer");
    out.text("param_shapes");
    out.begin_list();
    sizes(out, trained_);
    out.end_list();
    out.text("frozen_param_shapes");
    if (layout_.zero_stage >= 2)
      sizes(out, frozen_);
    else
      out.none();
    out.text("shared_params");
    out.begin_dict();
    for (const auto& [alias, of] : layout_.aliases) {
      out.text(alias);
      out.text(of);
    }
    out.end_dict();
    out.text("frozen_param_fragments");
    if (layout_.zero_stage >= 2)
      frozen_parts(file, rank);
    else
      out.none();
    scheduler(out);
    none("data_sampler");
    none("random_ltd");
    member(out, "skipped_steps", state.skipped_steps);
    member(out, "global_steps", state.steps);
    member(out, "global_samples", state.samples);
    member(out, "dp_world_size", layout_.ranks);
    member(out, "mp_world_size", 1);
    out.text("checkpoint_parallel_dimensions");
    out.begin_dict();
    member(out, "pp_degree", 1);
    member(out, "tp_degree", 1);
    out.end_dict();
    end_file(out);
    file.commit();
  }

  void scheduler(PickleWriter& out) const {
    out.text("lr_scheduler");
    const JsonValue* const type = layout_.ds_config.find_path("scheduler.type");
    if (type == nullptr || type->is_null()) return out.none();
    out.begin_dict();
    member(out, "last_batch_iteration", last_batch_iteration(saved_.run().state.schedule_steps));
    out.end_dict();
  }

  void end_file(PickleWriter& out) const {
    out.text("ds_config");
    json(out, layout_.ds_config);
    out.text("ds_version");
    out.text(kVersion);
    out.end_dict();
  }

  void stage_number(PickleWriter& out) const {
    out.text("zero_stage");
    out.global("deepspeed.runtime.zero.config", "ZeroStageEnum");
    out.begin_tuple();
    out.integer(layout_.zero_stage);
    out.end_tuple();
    out.reduce();
  }
  void scaling(PickleWriter& out) const {
    out.text("loss_scaler");
    loss_scaler(out);
    out.text("dynamic_loss_scale");
    out.boolean(saved_.run().scale == SavedScale::dynamic);
    out.text("overflow");
    out.boolean(false);
  }

  void write_optimizer(const fs::path& folder, int rank) const {
    TorchFileWriter file(
        (folder / concat(layout_.dtype == DType::bf16 ? "bf16_" : "", rank_name(rank, "optim")))
            .string());
    PickleWriter& out = file.pickle();
    out.begin_dict();
    out.text("optimizer_state_dict");
    out.begin_dict();
    if (stage3())
      state_of_stage3(file, rank);
    else
      state_of_stage12(file, rank);
    out.end_dict();
    end_file(out);
    file.commit();
  }

  void state_of_stage3(TorchFileWriter& file, int rank) const {
    PickleWriter& out = file.pickle();
    const std::vector<Flat> flats = parts(rank);
    stage_number(out);
    scaling(out);
    member(out, "partition_count", layout_.ranks);
    out.text("optimizer_state_dict");
    adam(file, flats);
    out.text("fp32_flat_groups");
    out.begin_list();
    for (const Flat& flat : flats)
      file.tensor(file.add_storage(DType::f32, flat.numel, reader(flat, kWeight)), 0, {flat.numel},
                  true);
    out.end_list();
  }

  void state_of_stage12(TorchFileWriter& file, int rank) const {
    PickleWriter& out = file.pickle();
    std::int64_t padding = 0;
    const Flat flat = partition(rank, padding);
    scaling(out);
    out.text("clip_grad");
    const JsonValue* const clip = layout_.ds_config.find("gradient_clipping");
    out.real(clip != nullptr && clip->is_number() ? clip->as_number() : 0);
    out.text("base_optimizer_state");
    adam(file, {flat});
    out.text("single_partition_of_fp32_groups");
    out.begin_list();
    const std::int64_t lean = flat.numel - padding;
    file.tensor(file.add_storage(DType::f32, lean, reader(flat, kWeight)), 0, {lean}, true);
    out.end_list();
    stage_number(out);
    const auto list_of = [&](const char* name, std::int64_t value) {
      out.text(name);
      out.begin_list();
      out.integer(value);
      out.end_list();
    };
    list_of("group_paddings", padding);
    out.text("param_alignment_paddings");
    out.begin_list();
    out.begin_list();
    for (std::size_t i = 0; i < trained_.size(); ++i) out.integer(0);
    out.end_list();
    out.end_list();
    list_of("partition_count", layout_.ranks);
    out.text("ds_version");
    out.text(kVersion);
    out.text("param_slice_mappings");
    out.begin_list();
    out.begin_ordered_dict();
    for (const Segment& segment : flat.segments) {
      out.text(segment.parameter->name);
      out.global("deepspeed.utils.tensor_fragment", "fragment_address");
      out.object();
      out.begin_dict();
      member(out, "numel", segment.count);
      member(out, "start", segment.offset);
      out.end_dict();
      out.build();
    }
    out.end_dict();
    out.end_list();
  }

  const SavedState& saved_;
  const DeepspeedLayout& layout_;
  std::vector<const SavedParameter*> trained_;
  std::vector<const SavedParameter*> frozen_;
};

}  // namespace

std::string write_deepspeed_checkpoint(const SavedState& saved, const std::string& folder,
                                       const DeepspeedLayout& layout) {
  if (layout.zero_stage < 1 || layout.zero_stage > 3 || layout.ranks < 1)
    throw_invalid(
        concat("DeepSpeed's layout is written for ZeRO stages 1 to 3 and 1 rank or more, "
               "not for stage ",
               layout.zero_stage, " and ", layout.ranks));
  const Writer writer(saved, layout);
  const std::string tag = tag_of_step(saved.run().state.steps);
  const fs::path target = fs::path(folder) / tag;
  std::error_code code;
  if (fs::exists(fs::symlink_status(target, code)))
    throw_invalid(concat(target.string(), " is there already; choose another folder"));
  fs::create_directories(folder, code);
  if (code) throw IoError(folder, code.value(), "cannot create the folder");
  TemporaryPath writing(target.string(), TemporaryPath::Kind::folder);
  writer.write(writing.path());
  sync_folder(writing.path());
  fs::rename(writing.path(), target, code);
  if (code)
    throw IoError(target.string(), code.value(), "cannot move the complete checkpoint there");
  writing.release();
  sync_folder(folder);
  write_text_file((fs::path(folder) / kLatestName).string(), tag);
  return target.string();
}

}  // namespace zero3d
