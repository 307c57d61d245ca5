// What one rank writes of a checkpoint: of the elements that it owns, the weights in the best
// precision they are kept in and the optimizer's states, tile by tile: first what lies in
// memory, then what lies on drives; and the part of the manifest that tells where they are. A save
// that training does not wait for copies the first whole, and records from drives one after the
// other: an update of a record that is not copied yet waits for its copy.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "zero3d/engine/checkpoint/manifest.h"
#include "zero3d/engine/checkpoint/rank_file.h"
#include "zero3d/engine/sharded_model.h"

namespace zero3d {

/// Pinned bytes of a save.
struct SaveMemory {
  std::int64_t file = 0;     ///< RankFile's buffers.
  std::int64_t records = 0;  ///< For records on their way from drives while training goes on.
  bool asynchronous = false;
  std::int64_t total() const { return file + records; }
};

class StateWriter {
 public:
  /// Of this rank. `asynchronous`: what lies in memory is held whole, drives are read as far ahead
  /// of the file as a few records. Else no more than `room` bytes, where that is some pages.
  static SaveMemory plan(const ShardedModel& model, bool exclude_frozen, bool asynchronous,
                         std::int64_t room);

  /// Enqueues all of it. The model is between two windows, and must outlive this. With `memory` of
  /// an asynchronous save, training may go on at once. `kept`: what a save before has left, or
  /// nothing. Throws Error for what cannot be begun: IoError, OutOfMemory.
  StateWriter(ShardedModel& model, const std::string& folder, bool exclude_frozen,
              const SaveMemory& memory, Tensor kept);
  ~StateWriter();

  bool done() const { return file_ == nullptr || file_->done(); }
  /// Waits until the file is durable. The manifest of this rank's part, without the run. Throws the
  /// first error.
  CheckpointManifest wait();
  /// Then: the memory of the file's buffers.
  Tensor take_memory() { return file_ == nullptr ? Tensor() : file_->take_memory(); }

 private:
  void declare(bool exclude_frozen);
  void write_memory(bool exclude_frozen);
  void write_own_masters(const Tile& tile);
  void write_drives();
  void copy_drives(std::int64_t bytes);
  void write_slices(std::span<const StateSlice> slices, Stream& stream);
  void write_frozen(int unit);
  void add_block(int parameter, std::int64_t first, std::int64_t count, std::string_view tensor,
                 DType dtype);

  ShardedModel& model_;
  CheckpointManifest manifest_;
  // Of records on their way from drives, where training does not wait for them.
  struct Record {
    View bytes;
    Event free;  ///< The file has them.
  };
  Tensor records_memory_;
  std::array<Record, 2> records_;
  std::unique_ptr<Stream> copies_;
  std::unique_ptr<RankFile> file_;  ///< Null: this rank owns nothing.
};

}  // namespace zero3d
