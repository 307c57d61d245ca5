// Writes files as torch.save does: a zip archive of a pickle and the storages of its tensors, each
// read piece by piece as it is written.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/core/output_file.h"
#include "zero3d/core/view.h"
#include "zero3d/formats/pickle_writer.h"

namespace zero3d {

class TorchFileWriter {
 public:
  /// Writes elements [first, first + dst.numel()) of a storage to host memory; called twice for
  /// each.
  using Read = std::function<void(std::int64_t first, const View& dst)>;

  /// Throws IoError when the file cannot be written.
  explicit TorchFileWriter(const std::string& path);

  /// What the file holds: one value.
  PickleWriter& pickle() { return pickle_; }
  /// The number of a new storage of f32, bf16 or f16.
  std::size_t add_storage(DType dtype, std::int64_t numel, Read read);
  /// The next value is a tensor in a storage, from element `offset` on, row-major.
  void tensor(std::size_t storage, std::int64_t offset, const std::vector<std::int64_t>& shape,
              bool requires_grad = false);
  /// Writes the file under its name; IoError.
  void commit();

 private:
  struct Storage {
    DType dtype;
    std::int64_t numel;
    Read read;
  };
  struct Entry {
    std::string name;
    std::uint64_t offset;
    std::uint64_t bytes;
    std::uint32_t checksum;
  };
  void put(std::string_view bytes);
  void begin_entry(const std::string& name, std::uint64_t bytes, std::uint32_t checksum);
  void add_entry(const std::string& name, std::string_view bytes);
  void add_entry(const std::string& name, const Storage& storage);
  void put_directory();

  std::string root_;
  PickleWriter pickle_;
  std::vector<Storage> storages_;
  OutputFile file_;
  std::uint64_t size_ = 0;  ///< Written so far.
  std::vector<Entry> entries_;
};

}  // namespace zero3d
