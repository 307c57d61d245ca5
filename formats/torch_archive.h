// Reads what torch.save writes: an archive of a pickle and the bytes of its tensors. The pickle is
// read as plain values and executes nothing; tensors are read by ranges of their elements, from
// where they lie. Files may come from anywhere: every place and size is checked before it is used.
// Reads are safe from several threads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "zero3d/core/view.h"
#include "zero3d/formats/open_files.h"
#include "zero3d/formats/pickle_value.h"

namespace zero3d {

class TorchArchive {
 public:
  static constexpr std::uint64_t kMaxPickleBytes = std::uint64_t{256} << 20;

  /// Reads the pickle and checks that every tensor's bytes are there. `files` keeps the file open
  /// between reads, or not; empty: one of its own. Throws IoError with what is damaged, or what
  /// kind of file it is instead. Both forms that PyTorch has written are read: zip archives and,
  /// from before 1.6, pickles with bytes behind them.
  explicit TorchArchive(std::string path, std::shared_ptr<OpenFiles> files = nullptr);

  TorchArchive(const TorchArchive&) = delete;
  TorchArchive& operator=(const TorchArchive&) = delete;

  const std::string& path() const { return path_; }
  /// What was saved. Valid as long as the archive.
  PickleValue root() const { return tree_.root(); }

  /// Writes elements [first, first + dst.numel()) of a tensor of this archive, in row-major order
  /// whatever its strides, to host memory: as they are when dst has the same dtype, else both must
  /// be floating and each element is rounded once. Throws IoError.
  void read(const PickleTensor& tensor, std::int64_t first, const View& dst) const;
  /// Reads all of the file and holds it to its checksums. Throws IoError. Files from before 1.6
  /// have none.
  void verify() const;

 private:
  void read_zip(const InputFile& file);
  void read_old_form(const InputFile& file);
  void check_tensors() const;
  void read_strided(const InputFile& file, const PickleTensor& tensor, std::uint64_t begin,
                    std::int64_t first, const View& dst) const;
  std::shared_ptr<const InputFile> reopen() const;

  struct Record {
    std::uint64_t begin = 0;
    std::uint64_t bytes = 0;
  };

  std::string path_;
  std::shared_ptr<OpenFiles> files_;
  std::uint64_t bytes_ = 0;  ///< Of the file, when it was read.
  bool zip_ = false;
  PickleTree tree_;
  std::map<std::string, Record, std::less<>> storages_;  ///< Of tensors, by key.
};

}  // namespace zero3d
