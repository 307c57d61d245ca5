// What one rank writes of a checkpoint: of the elements that it owns, the weights in the best
// precision they are kept in and the optimizer's states, tile by tile, whatever the tier; and the
// part of the manifest that tells where they are.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "zero3d/engine/checkpoint/manifest.h"
#include "zero3d/engine/checkpoint/rank_file.h"
#include "zero3d/engine/sharded_model.h"

namespace zero3d {

class StateWriter {
 public:
  /// Enqueues all of it; `whole` as RankFile takes it. The model is between two windows, and must
  /// outlive this. Throws Error for what cannot be begun: IoError, OutOfMemory.
  StateWriter(ShardedModel& model, const std::string& folder, bool exclude_frozen, bool whole);

  /// Bytes that this rank saves.
  static std::int64_t file_bytes(const ShardedModel& model, bool exclude_frozen);
  /// Bytes of pinned memory that `whole` takes; 0: there is no room for them.
  static std::int64_t whole_bytes(ShardedModel& model, bool exclude_frozen);

  bool done() const { return file_ == nullptr || file_->done(); }
  /// Waits until the file is durable. The manifest of this rank's part, without the run. Throws the
  /// first error.
  CheckpointManifest wait();

 private:
  void declare(bool exclude_frozen);
  void write_tile(std::span<const StateSlice> slices, Stream& stream);
  void write_frozen(int unit);
  void add_block(int parameter, std::int64_t first, std::int64_t count, std::string_view tensor,
                 DType dtype);

  ShardedModel& model_;
  CheckpointManifest manifest_;
  std::unique_ptr<RankFile> file_;  ///< Null: this rank owns nothing.
};

}  // namespace zero3d
