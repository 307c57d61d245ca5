#include "zero3d/formats/zip_directory.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/problem_list.h"

namespace zero3d {
namespace {

// PKWARE's APPNOTE.TXT, sections 4.3.7 to 4.3.16.
constexpr std::uint32_t kLocalHeader = 0x04034b50, kCentralHeader = 0x02014b50;
constexpr std::uint32_t kEnd = 0x06054b50, kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr std::size_t kLocalBytes = 30, kCentralBytes = 46;
constexpr std::size_t kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20;
constexpr std::size_t kLongestComment = 0xffff;

template <typename T>
T number(std::string_view bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::string read(const InputFile& file, std::uint64_t offset, std::size_t bytes) {
  std::string text(bytes, '\0');
  file.read(offset, text.data(), bytes);
  return text;
}

struct Place {
  std::uint64_t entries = 0;
  std::uint64_t bytes = 0;
  std::uint64_t offset = 0;
  std::uint64_t end = 0;  ///< Where what follows the directory begins.
};

[[noreturn]] void refuse(const InputFile& file, std::string_view what) {
  throw IoError(file.path(), 0,
                concat("damaged zip archive: ", what, "; get the file anew, or save it again"));
}

/// The place of the record that ends every archive.
std::uint64_t find_end(const InputFile& file) {
  const auto tail =
      static_cast<std::size_t>(std::min<std::uint64_t>(file.bytes(), kEndBytes + kLongestComment));
  const std::string text = read(file, file.bytes() - tail, tail);
  for (std::size_t at = tail < kEndBytes ? 0 : tail - kEndBytes + 1; at-- > 0;) {
    if (number<std::uint32_t>(text, at) == kEnd &&
        number<std::uint16_t>(text, at + 20) == tail - at - kEndBytes)
      return file.bytes() - tail + at;
  }
  throw IoError(file.path(), 0,
                concat("no complete zip archive: its end record is missing (the file has ",
                       file.bytes(), " bytes; was it copied whole?)"));
}

Place find_directory(const InputFile& file) {
  const std::uint64_t end = find_end(file);
  const std::string record = read(file, end, kEndBytes);
  Place place{number<std::uint16_t>(record, 10), number<std::uint32_t>(record, 12),
              number<std::uint32_t>(record, 16), end};
  bool one_part = number<std::uint32_t>(record, 4) == 0 &&
                  number<std::uint16_t>(record, 8) == number<std::uint16_t>(record, 10);
  const bool wide =
      place.entries == 0xffff || place.bytes == 0xffffffff || place.offset == 0xffffffff;
  const std::string locator =
      end < kLocatorBytes ? "" : read(file, end - kLocatorBytes, kLocatorBytes);
  if (!locator.empty() && number<std::uint32_t>(locator, 0) == kLocator64) {
    const auto at = number<std::uint64_t>(locator, 8);
    if (at > end - kLocatorBytes || end - kLocatorBytes - at < kEnd64Bytes)
      refuse(file, "its zip64 end record lies outside the file");
    const std::string record64 = read(file, at, kEnd64Bytes);
    if (number<std::uint32_t>(record64, 0) != kEnd64)
      refuse(file, "there is no zip64 end record where its locator says");
    one_part = number<std::uint64_t>(record64, 16) == 0 &&
               number<std::uint64_t>(record64, 24) == number<std::uint64_t>(record64, 32);
    place = {number<std::uint64_t>(record64, 32), number<std::uint64_t>(record64, 40),
             number<std::uint64_t>(record64, 48), at};
  } else if (wide) {
    refuse(file, "its zip64 end record is missing");
  }
  if (!one_part) refuse(file, "it is one of several parts");
  if (place.offset > place.end || place.bytes != place.end - place.offset)
    refuse(file, concat("its directory (", place.bytes, " bytes at ", place.offset,
                        ") does not end where the end record begins, at ", place.end));
  if (place.bytes > ZipDirectory::kMaxBytes || place.entries > ZipDirectory::kMaxEntries)
    refuse(file, concat("a directory of ", place.entries, " entries and ", place.bytes,
                        " bytes; at most ", ZipDirectory::kMaxEntries, " and ",
                        ZipDirectory::kMaxBytes, " are read"));
  if (place.entries > place.bytes / kCentralBytes)
    refuse(file, concat(place.entries, " entries in a directory of ", place.bytes, " bytes"));
  return place;
}

/// The zip64 field (id 1) holds, in this order, those of size, packed size and offset that the
/// record has no room for.
void widen(const InputFile& file, std::string_view extra, std::uint64_t& bytes,
           std::uint64_t& packed, std::uint64_t& offset) {
  if (bytes != 0xffffffff && packed != 0xffffffff && offset != 0xffffffff) return;
  while (extra.size() >= 4) {
    const auto id = number<std::uint16_t>(extra, 0);
    const std::size_t size = number<std::uint16_t>(extra, 2);
    if (size > extra.size() - 4) break;
    std::string_view field = extra.substr(4, size);
    extra.remove_prefix(4 + size);
    if (id != 1) continue;
    for (std::uint64_t* value : {&bytes, &packed, &offset}) {
      if (*value != 0xffffffff) continue;
      if (field.size() < 8) break;
      *value = number<std::uint64_t>(field, 0);
      field.remove_prefix(8);
    }
    return;
  }
  refuse(file, "an entry without the zip64 field that its size asks for");
}

/// Reads the record at the front of `text` and takes it off.
ZipEntry take_entry(const InputFile& file, std::string_view& text, const Place& place) {
  if (text.size() < kCentralBytes || number<std::uint32_t>(text, 0) != kCentralHeader)
    refuse(file, "its directory holds something else than entries");
  const auto flags = number<std::uint16_t>(text, 8), method = number<std::uint16_t>(text, 10);
  const std::size_t name = number<std::uint16_t>(text, 28), extra = number<std::uint16_t>(text, 30),
                    comment = number<std::uint16_t>(text, 32);
  if (text.size() - kCentralBytes < name + extra + comment)
    refuse(file, "its directory ends within an entry");
  ZipEntry entry;
  entry.name = text.substr(kCentralBytes, name);
  entry.checksum = number<std::uint32_t>(text, 16);
  entry.header = number<std::uint32_t>(text, 42);
  std::uint64_t packed = number<std::uint32_t>(text, 20);
  entry.bytes = number<std::uint32_t>(text, 24);
  widen(file, text.substr(kCentralBytes + name, extra), entry.bytes, packed, entry.header);
  text.remove_prefix(kCentralBytes + name + extra + comment);
  const auto wrong = [&](const auto&... what) {
    refuse(file, concat("entry ", printable(entry.name), what...));
  };
  if ((flags & 1u) != 0) wrong(" is encrypted");
  if (method != 0 || packed != entry.bytes)
    wrong(" is compressed (method ", method, "), which PyTorch does not do: unpack it and save ",
          "what is in it again");
  if (entry.header > place.offset || place.offset - entry.header < kLocalBytes ||
      entry.bytes > place.offset - entry.header - kLocalBytes)
    wrong(" of ", entry.bytes, " bytes at ", entry.header, " does not fit before the directory, ",
          "which begins at ", place.offset);
  return entry;
}

}  // namespace

ZipDirectory::ZipDirectory(const InputFile& file) {
  const Place place = find_directory(file);
  const std::string text = read(file, place.offset, static_cast<std::size_t>(place.bytes));
  std::string_view rest = text;
  entries_.reserve(static_cast<std::size_t>(place.entries));
  for (std::uint64_t i = 0; i < place.entries; ++i)
    entries_.push_back(take_entry(file, rest, place));
  if (!rest.empty()) refuse(file, "its directory holds more than the entries it counts");

  std::vector<std::size_t> order(entries_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return entries_[i].header; });
  std::uint64_t next = place.offset;
  for (std::size_t k = order.size(); k-- > 0;) {
    ZipEntry& entry = entries_[order[k]];
    if (next < entry.header + kLocalBytes + entry.bytes)
      refuse(file, concat("entry ", printable(entry.name), " reaches into the next one"));
    entry.limit = std::exchange(next, entry.header);
  }
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!index_.emplace(entries_[i].name, i).second)
      refuse(file, concat("entry ", printable(entries_[i].name), " is there twice"));
  }
}

const ZipEntry* ZipDirectory::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

bool begins_as_zip(const InputFile& file) {
  return file.bytes() >= 4 && number<std::uint32_t>(read(file, 0, 4), 0) == kLocalHeader;
}

std::uint64_t first_byte(const InputFile& file, const ZipEntry& entry) {
  const std::string header = read(file, entry.header, kLocalBytes);
  const std::size_t name = number<std::uint16_t>(header, 26);
  const std::uint64_t begin = entry.header + kLocalBytes + name + number<std::uint16_t>(header, 28);
  if (number<std::uint32_t>(header, 0) != kLocalHeader || name != entry.name.size() ||
      read(file, entry.header + kLocalBytes, name) != entry.name)
    refuse(file, concat("no header of entry ", printable(entry.name), " at ", entry.header));
  if (begin > entry.limit || entry.bytes > entry.limit - begin)
    refuse(file, concat("entry ", printable(entry.name), " reaches into the next one"));
  return begin;
}

std::string read_entry(const InputFile& file, const ZipEntry& entry, std::uint64_t limit) {
  if (entry.bytes > limit)
    refuse(file, concat("entry ", printable(entry.name), " has ", entry.bytes,
                        " bytes, expected at most ", limit));
  std::string text = read(file, first_byte(file, entry), static_cast<std::size_t>(entry.bytes));
  const std::uint32_t found = zip_checksum(text);
  if (entry.checksum != 0 && found != entry.checksum)
    refuse(file, concat("entry ", printable(entry.name), " has the checksum ", found, ", expected ",
                        entry.checksum));
  return text;
}

std::uint32_t zip_checksum(std::string_view bytes, std::uint32_t checksum) {
  static const std::array<std::uint32_t, 256> kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1u) * 0xedb88320u);
      table[i] = value;
    }
    return table;
  }();
  std::uint32_t value = ~checksum;
  for (const char c : bytes)
    value = kTable[(value ^ static_cast<unsigned char>(c)) & 0xffu] ^ (value >> 8);
  return ~value;
}

}  // namespace zero3d
