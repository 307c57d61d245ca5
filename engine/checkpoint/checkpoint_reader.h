// Reads a checkpoint of ours: its manifest at once, and of its files the slices that are asked for,
// each chunk held to its checksum when it is first touched.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "zero3d/engine/checkpoint/manifest.h"
#include "zero3d/engine/checkpoint/saved_state.h"
#include "zero3d/formats/input_file.h"

namespace zero3d {

class CheckpointReader final : public SavedState {
 public:
  /// Of a folder with a manifest. Throws IoError when that is damaged, or a file is missing or of
  /// another size than it says.
  explicit CheckpointReader(const std::string& folder);

  const std::string& path() const override { return path_; }
  const SavedRun& run() const override { return manifest_.run; }
  const CheckpointManifest& manifest() const { return manifest_; }
  void read(const SavedParameter& parameter, std::string_view tensor,
            std::span<const GlobalRun> runs, const View& dst) const override;

  /// Every chunk has its checksum, and every tensor its elements.
  void verify() const override;
  std::int64_t bytes() const;  ///< Of all files but the manifest.

 private:
  struct File {
    std::unique_ptr<InputFile> input;
    std::unique_ptr<std::atomic<bool>[]> verified;  ///< By chunk.
  };
  using Runs = std::shared_ptr<const std::vector<PlacedRun>>;

  Runs runs_of(std::size_t parameter, const std::string& tensor) const;
  void read_bytes(int file, std::int64_t offset, std::byte* dst, std::int64_t bytes) const;
  void read_chunk(int file, std::int64_t chunk, std::vector<std::byte>& bytes) const;
  void read_run(const std::vector<PlacedRun>& runs, DType from, const GlobalRun& wanted,
                const View& dst) const;

  std::string path_;
  CheckpointManifest manifest_;
  std::vector<File> files_;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<std::size_t, std::string>, Runs> placed_;  ///< Of late.
};

}  // namespace zero3d
