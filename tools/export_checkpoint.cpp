#include "export_checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "saved_states.h"
#include "train_resume.h"
#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/checkpoint/manifest.h"
#include "zero3d/formats/problem_list.h"
#include "zero3d/models/build.h"
#include "zero3d/models/hf_folder.h"

namespace zero3d::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSlice = std::int64_t{1} << 20;  // elements read at a time

/// Of --model, else as the run wrote it down.
ModelConfig find_model(const SavedState& saved, const ExportOptions& options) {
  if (!options.model.empty()) {
    std::error_code code;
    return fs::exists(options.model, code) ? read_model_config(options.model)
                                           : built_in_model_config(options.model);
  }
  const JsonValue* const text = train_fact(saved, kModelConfig);
  if (text == nullptr || !text->is_string())
    throw_invalid(concat(saved.path(),
                         " does not say what model it is of; name the folder of its "
                         "config.json with --model"));
  ModelConfig config =
      parse_model_config(text->as_string(), concat(saved.path(), ": the config.json in it"));
  return config;
}

/// Where the files lie that go with the model.
std::string model_folder(const SavedState& saved, const ExportOptions& options) {
  if (!options.model.empty()) return options.model;
  const JsonValue* const folder = train_fact(saved, kModel);
  return folder != nullptr && folder->is_string() ? folder->as_string() : "";
}

/// A head that shares the name of the embedding is left out of what the run saved.
void match_ties(const SavedState& saved, ModelConfig& config) {
  if (config.tied && saved.find("lm_head.weight") != nullptr) config.tied = false;
}

DType dtype_of_export(const ExportOptions& options, const ModelConfig& config) {
  if (!options.dtype.empty()) return dtype_from_name(options.dtype);
  return config.dtype.value_or(DType::f32);
}

ExportSource open_source(const ExportOptions& options) {
  ExportSource source;
  source.saved = open_saved_state(options.checkpoint);
  source.model = find_model(*source.saved, options);
  match_ties(*source.saved, source.model);
  source.saved = open_saved_state(options.checkpoint, {blocks_of(source.model), options.map});
  return source;
}

/// Slice by slice.
void write_weights(const SavedState& saved, const std::vector<TensorDeclaration>& tensors,
                   FolderWriter& writer) {
  std::vector<std::byte> bytes;
  for (const TensorDeclaration& tensor : tensors) {
    const SavedParameter& parameter = *saved.find(tensor.name);
    const std::int64_t numel = tensor.shape.numel();
    bytes.resize(static_cast<std::size_t>(bytes_of(std::min(kSlice, numel), tensor.dtype)));
    for (std::int64_t first = 0; first < numel; first += kSlice) {
      const std::int64_t count = std::min(kSlice, numel - first);
      const GlobalRun run{first, count, 0};
      const View view(bytes.data(), tensor.dtype, Shape{count});
      saved.read(parameter, kWeight, {&run, 1}, view);
      writer.write(tensor.name, view);
    }
  }
}

void export_folder(const ExportOptions& options, const ExportSource& source) {
  const SavedState& saved = *source.saved;
  const std::vector<ParameterSpec> parameters = list_parameters(*build_model(source.model));
  require_same_model(saved, parameters);
  const DType dtype = dtype_of_export(options, source.model);
  const std::vector<TensorDeclaration> tensors = exported_tensors(parameters, dtype);
  for (const TensorDeclaration& tensor : tensors)
    if (saved.find(tensor.name)->tensors.count(kWeight) == 0)
      throw_invalid(concat(saved.path(), " was saved without ", tensor.name,
                           ", which was frozen: export from a checkpoint that has it"));
  FolderWriter writer(
      options.out, to_config_json(source.model, dtype), tensors,
      options.max_shard.empty() ? FolderWriter::kMaxShardBytes : parse_bytes(options.max_shard));
  write_weights(saved, tensors, writer);
  const std::vector<std::string> left = writer.carry(model_folder(saved, options));
  writer.commit();
  std::printf("model      %s: %zu tensors in %s, of step %lld of %s\n", options.out.c_str(),
              tensors.size(), std::string(name_of(dtype)).c_str(),
              static_cast<long long>(saved.run().state.steps), saved.path().c_str());
  if (!left.empty()) std::printf("model      left behind: %s\n", name_list(left).c_str());
}

}  // namespace

void export_checkpoint(const ExportOptions& options) {
  const ExportSource source = open_source(options);
  if (options.deepspeed)
    export_deepspeed(options, source);
  else
    export_folder(options, source);
}

}  // namespace zero3d::tools
