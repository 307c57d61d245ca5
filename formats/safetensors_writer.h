// Writes safetensors files as a stream: the header follows from names, shapes and dtypes alone,
// then come the tensors in order, so that no more than a slice of one is in memory. Cutting a model
// into shards is planned by pure functions; who writes a whole folder composes them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/core/output_file.h"
#include "zero3d/core/view.h"

namespace zero3d {

struct TensorDeclaration {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;

  std::int64_t bytes() const;
};

class SafetensorsWriter {
 public:
  /// Writes the header to a temporary file beside `path`. Throws Error(kInvalid) for a name given
  /// twice, IoError when the file cannot be written.
  SafetensorsWriter(std::string path, std::vector<TensorDeclaration> tensors,
                    const std::map<std::string, std::string>& metadata = {});

  /// The next elements, in row-major order, of the tensor whose turn it is (tensors in the declared
  /// order; whole or in slices); `values` is host memory of the declared dtype, or of another
  /// floating one and is rounded once.
  void write(std::string_view name, ConstView values);
  /// True once every element is written; tensors without elements need no write.
  bool complete() const { return turn_ == tensors_.size(); }
  /// Makes the file durable under its name; until then there is none. Throws Error(kInvalid) when
  /// elements are missing.
  void commit();

 private:
  void skip_full_tensors();

  std::vector<TensorDeclaration> tensors_;
  OutputFile file_;
  std::size_t turn_ = 0;
  std::int64_t element_ = 0;  ///< Elements of tensors_[turn_] written so far.
};

/// How many of `tensors` go to each shard, in order: a shard is closed when the next tensor would
/// take it past `max_bytes`; a larger tensor has a shard of its own.
std::vector<std::size_t> plan_shards(const std::vector<TensorDeclaration>& tensors,
                                     std::int64_t max_bytes);
/// "model.safetensors" for one shard, else "model-00001-of-00003.safetensors" (shard counts from
/// 0).
std::string shard_file_name(std::size_t shard, std::size_t shards);
/// The text of model.safetensors.index.json for a plan.
std::string shard_index(const std::vector<TensorDeclaration>& tensors,
                        const std::vector<std::size_t>& plan);

}  // namespace zero3d
