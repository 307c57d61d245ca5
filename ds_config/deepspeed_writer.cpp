#include "zero3d/ds_config/deepspeed_writer.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "zero3d/core/error.h"
#include "zero3d/core/output_file.h"
#include "zero3d/core/temporary_path.h"
#include "zero3d/core/text.h"
#include "zero3d/ds_config/deepspeed_values.h"
#include "zero3d/engine/checkpoint/checkpoint_folder.h"
#include "zero3d/formats/torch_file_writer.h"
#include "zero3d/optim/schedule.h"

namespace zero3d {
namespace {

namespace fs = std::filesystem;

/// The release whose files these are.
constexpr const char* kVersion = "0.19.8";
constexpr std::string_view kStates[] = {"exp_avg", "exp_avg_sq"};

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

  TorchFileWriter::Read reader(const FlatTensor& flat, std::string_view tensor) const {
    return [this, flat, tensor = std::string(tensor)](std::int64_t first, const View& dst) {
      std::memset(dst.data(), 0, dst.bytes());
      for (const FlatSegment& segment : flat.segments) {
        const std::int64_t begin = std::max(first, segment.offset);
        const std::int64_t end = std::min(first + dst.numel(), segment.offset + segment.count);
        if (begin >= end) continue;
        const GlobalRun run{segment.first + begin - segment.offset, end - begin, begin - first};
        saved_.read(*segment.parameter, tensor, {&run, 1}, dst);
      }
    };
  }

  /// The state dict of the optimizer over `flats`, one tensor each.
  void adam(TorchFileWriter& file, const std::vector<FlatTensor>& flats) const {
    PickleWriter& out = file.pickle();
    out.begin_dict();
    out.text("state");
    out.begin_dict();
    for (std::size_t i = 0; i < flats.size(); ++i) {
      out.integer(static_cast<std::int64_t>(i));
      out.begin_dict();
      write_member(out, "step", saved_.run().state.optimizer_steps);
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
    write_param_group(out, layout_.ds_config, layout_.lr, flats.size());
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
      const FlatTensor flat = stage3() ? FlatTensor() : whole_tensor(parameter);
      auto storage = storages.find(parameter.name);
      if (storage == storages.end() || stage3()) {
        storage = storages
                      .insert_or_assign(parameter.name, file.add_storage(layout_.dtype, flat.numel,
                                                                         reader(flat, kWeight)))
                      .first;
      }
      out.text(name);
      file.tensor(storage->second, 0, stage3() ? std::vector<std::int64_t>{0} : dims_of(parameter));
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
      const FlatTensor flat =
          stage3() ? flat_share(*parameter, rank, layout_.ranks) : whole_tensor(*parameter);
      out.text(parameter->name);
      file.tensor(file.add_storage(layout_.dtype, flat.numel, reader(flat, kWeight)), 0,
                  stage3() ? std::vector<std::int64_t>{flat.numel} : dims_of(*parameter));
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
    write_sizes(out, trained_);
    out.end_list();
    out.text("frozen_param_shapes");
    if (layout_.zero_stage >= 2)
      write_sizes(out, frozen_);
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
    write_member(out, "skipped_steps", state.skipped_steps);
    write_member(out, "global_steps", state.steps);
    write_member(out, "global_samples", state.samples);
    write_member(out, "dp_world_size", layout_.ranks);
    write_member(out, "mp_world_size", 1);
    out.text("checkpoint_parallel_dimensions");
    out.begin_dict();
    write_member(out, "pp_degree", 1);
    write_member(out, "tp_degree", 1);
    out.end_dict();
    end_file(out);
    file.commit();
  }

  void scheduler(PickleWriter& out) const {
    out.text("lr_scheduler");
    const JsonValue* const type = layout_.ds_config.find_path("scheduler.type");
    if (type == nullptr || type->is_null()) return out.none();
    out.begin_dict();
    write_member(out, "last_batch_iteration",
                 last_batch_iteration(saved_.run().state.schedule_steps));
    out.end_dict();
  }

  void end_file(PickleWriter& out) const {
    out.text("ds_config");
    write_json(out, layout_.ds_config);
    out.text("ds_version");
    out.text(kVersion);
    out.end_dict();
  }

  void scaling(PickleWriter& out) const {
    out.text("loss_scaler");
    write_loss_scaler(out, saved_.run(), layout_.ds_config);
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
    const std::vector<FlatTensor> flats =
        flat_subgroups(trained_, rank, layout_.ranks, layout_.sub_group);
    out.text("zero_stage");
    write_zero_stage(out, layout_.zero_stage);
    scaling(out);
    write_member(out, "partition_count", layout_.ranks);
    out.text("optimizer_state_dict");
    adam(file, flats);
    out.text("fp32_flat_groups");
    out.begin_list();
    for (const FlatTensor& flat : flats)
      file.tensor(file.add_storage(DType::f32, flat.numel, reader(flat, kWeight)), 0, {flat.numel},
                  true);
    out.end_list();
  }

  void state_of_stage12(TorchFileWriter& file, int rank) const {
    PickleWriter& out = file.pickle();
    const FlatTensor flat = flat_partition(trained_, rank, layout_.ranks);
    scaling(out);
    out.text("clip_grad");
    const JsonValue* const clip = layout_.ds_config.find("gradient_clipping");
    out.real(clip != nullptr && clip->is_number() ? clip->as_number() : 0);
    out.text("base_optimizer_state");
    adam(file, {flat});
    out.text("single_partition_of_fp32_groups");
    out.begin_list();
    const std::int64_t lean = flat.numel - flat.padding;
    file.tensor(file.add_storage(DType::f32, lean, reader(flat, kWeight)), 0, {lean}, true);
    out.end_list();
    out.text("zero_stage");
    write_zero_stage(out, layout_.zero_stage);
    const auto list_of = [&](const char* name, std::int64_t value) {
      out.text(name);
      out.begin_list();
      out.integer(value);
      out.end_list();
    };
    list_of("group_paddings", flat.padding);
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
    write_fragments(out, flat);
    out.end_list();
  }

  const SavedState& saved_;
  const DeepspeedLayout& layout_;
  SavedParameters trained_;
  SavedParameters frozen_;
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
