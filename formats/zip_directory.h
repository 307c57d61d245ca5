// The directory of a zip archive whose entries are stored as they are, which is what PyTorch
// writes: names, sizes and places, checked against the file. zip64 is read; compression, encryption
// and archives in several parts are refused. Internal to formats.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/formats/input_file.h"

namespace zero3d {

struct ZipEntry {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint32_t checksum = 0;  ///< CRC-32 of the bytes, as stated; 0: not computed.
  std::uint64_t header = 0;    ///< Where the entry's own header begins.
  std::uint64_t limit = 0;     ///< Where the next one begins: its bytes end there or before.
};

class ZipDirectory {
 public:
  static constexpr std::uint64_t kMaxEntries = 4'000'000;
  static constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;

  /// Throws IoError: no archive, cut short, a directory that disagrees with its file or with
  /// itself, an entry that is not stored as it is, a name given twice.
  explicit ZipDirectory(const InputFile& file);
  ZipDirectory(const ZipDirectory&) = delete;
  ZipDirectory& operator=(const ZipDirectory&) = delete;

  /// In the order of the directory.
  const std::vector<ZipEntry>& entries() const { return entries_; }
  const ZipEntry* find(std::string_view name) const;

 private:
  std::vector<ZipEntry> entries_;
  std::map<std::string_view, std::size_t> index_;
};

/// Whether the file begins as an archive does.
bool begins_as_zip(const InputFile& file);
/// The place of the entry's first byte. Throws IoError when its header is not where the directory
/// says, is of another entry, or leaves no room for the bytes.
std::uint64_t first_byte(const InputFile& file, const ZipEntry& entry);
/// The bytes of an entry, held to its checksum; IoError when there are more than `limit`.
std::string read_entry(const InputFile& file, const ZipEntry& entry, std::uint64_t limit);

/// CRC-32 of zip archives, going on from `checksum` of the bytes before.
std::uint32_t zip_checksum(std::string_view bytes, std::uint32_t checksum = 0);

}  // namespace zero3d
