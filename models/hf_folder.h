// Hugging Face model folders, in and out: weights of model.safetensors (or its shards) as the
// values a run starts from, and a trained model written as save_pretrained would. What config.json
// says is read and written by model_config.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/core/temporary_path.h"
#include "zero3d/engine/module.h"
#include "zero3d/engine/parameter_source.h"
#include "zero3d/formats/safetensors_writer.h"
#include "zero3d/models/model_config.h"

namespace zero3d {

/// The weights of `path` as the values of `parameters`. Names match with or without the base
/// model's prefix ("transformer." or "model."). Throws one IoError that lists what is missing,
/// unexpected, of another shape or not floating, and whatever is damaged. Parameters named twice
/// (tied) must agree. Without a parameter "lm_head.weight" the model ties its head: a head in the
/// folder must equal the embedding, or takes its place where the folder has no embedding. Buffers
/// that older releases of transformers saved are compared with what the model derives; those that
/// differ or cannot be compared are named in a warning.
std::unique_ptr<ParameterSource> open_folder(const std::string& path,
                                             const std::vector<ParameterSpec>& parameters);

/// The same for the whole model of `config`, read from that folder. As transformers 5 does, a tied
/// head that is in the folder with other values than the embedding unties the two: config.tied
/// becomes false. That, and what the warning would say, is added to config.remarks.
std::unique_ptr<ParameterSource> open_model_folder(const std::string& path, ModelConfig& config);

/// What an export of `parameters` holds, in their order, each once; a tied head shares the name of
/// the embedding and so is left out, as save_pretrained does.
std::vector<TensorDeclaration> exported_tensors(const std::vector<ParameterSpec>& parameters,
                                                DType dtype);

/// Copies what goes with a model beside its config and weights (generation_config.json, tokenizer
/// files, chat templates) from one of its folders to another that is there, over what that has.
/// Returns the names of the other files of `from` and of those that could not be read: what is not
/// in the new folder. `from` may be no folder; then nothing is copied.
std::vector<std::string> carry_model_files(const std::string& from, const std::string& to);

/// Writes a model folder: under a temporary name beside its path until commit(). Until then, and
/// after any failure, the path is as it was. Not thread-safe; one rank writes.
class FolderWriter {
 public:
  static constexpr std::int64_t kMaxShardBytes = 50'000'000'000;  ///< As transformers 5 has it.

  enum class Check { now, at_commit };

  /// `path` may not exist, or be an empty folder, or be a model folder (config.json names a model
  /// type), which commit() replaces: weights and config.json are the new ones, its other files
  /// (tokenizer) are kept where carry() brings no others. Anything else throws IoError now, or
  /// leaves it to commit(), for what must be written somewhere.
  FolderWriter(const std::string& path, const std::string& config_json,
               std::vector<TensorDeclaration> tensors,
               std::int64_t max_shard_bytes = kMaxShardBytes, Check check = Check::now);

  /// The tensors in the declared order, whole or in consecutive slices, from host memory of any
  /// floating dtype (rounded once to the declared one).
  void write(std::string_view name, ConstView values);
  /// carry_model_files() into the new folder, before commit(); what it brings goes before what a
  /// folder that is replaced has.
  std::vector<std::string> carry(const std::string& from);
  /// Makes the folder durable under its path; where that is refused (something came there since),
  /// under the first free name of "<path>.kept", "<path>.kept2", ..., which the error names. Throws
  /// Error(kInvalid) when tensors are missing.
  void commit();

 private:
  void take_place(const std::string& temporary);
  void open_shards_until_incomplete();

  std::string path_;
  std::optional<TemporaryPath> temporary_;
  std::vector<TensorDeclaration> tensors_;
  std::vector<std::size_t> plan_;
  std::size_t shard_ = 0;        ///< The one being written; plan_.size() when all are.
  std::size_t shard_begin_ = 0;  ///< Its first tensor.
  std::unique_ptr<SafetensorsWriter> writer_;
};

}  // namespace zero3d
