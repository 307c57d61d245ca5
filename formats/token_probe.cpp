#include "zero3d/formats/token_probe.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "zero3d/core/text.h"

namespace zero3d {
namespace {

constexpr std::size_t kProbeBytes = std::size_t{64} * 1024;
/// Fewer bytes may be anything.
constexpr std::size_t kFewestBytes = 32;
/// From so many bytes on it is no chance that the upper half of each token is small, else only that
/// it is zero. No vocabulary has more than 2^20 words.
constexpr std::size_t kManyBytes = 4096;
constexpr std::uint16_t kHighestUpperHalf = 15;
constexpr std::string_view kGitLfs = "version https://git-lfs";

struct Container {
  std::string_view magic;
  std::string_view what;
};
constexpr std::array kContainers = {
    Container{kGitLfs,
              "a git-lfs pointer, not the data itself; run git lfs pull where it came from"},
    Container{"\x1f\x8b", "a gzip-compressed file; decompress it first (gunzip)"},
    Container{"\x28\xb5\x2f\xfd", "a zstd-compressed file; decompress it first (unzstd)"},
    Container{"\xfd"
              "7zXZ",
              "an xz-compressed file; decompress it first (unxz)"},
    Container{"BZh", "a bzip2-compressed file; decompress it first (bunzip2)"},
    Container{
        "PK\x03\x04",
        "a zip archive such as .npz or .pt; save the tokens alone, with numpy.save or tofile"},
    Container{"\x89HDF\r\n", "an HDF5 file; save the tokens with numpy.save or tofile"},
    Container{"PAR1", "a Parquet file; save its tokens with numpy.save or tofile"},
    Container{"ARROW1", "an Arrow file; save its tokens with numpy.save or tofile"}};

bool starts_with(std::string_view bytes, std::string_view start) {
  return bytes.substr(0, start.size()) == start;
}

/// Text as people and programs write it: no control characters but those of lines and pages.
bool is_plain_text(std::string_view bytes) {
  return looks_like_text(bytes) && std::none_of(bytes.begin(), bytes.end(), [](char c) {
           return static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r' && c != '\t' &&
                  c != '\f';
         });
}

std::string_view kind_of_text(std::string_view bytes) {
  const std::size_t first = bytes.find_first_not_of(" \t\r\n");
  const bool json = first != std::string_view::npos &&
                    (bytes[first] == '{' || bytes[first] == '[') &&
                    bytes.find('"') != std::string_view::npos;
  return json ? "JSON lines; turn their text into tokens first, or take it out and give it with "
                "--data-format text"
              : "plain text; give --data-format text to train on its bytes, or turn it into tokens";
}

/// The largest 16-bit number at each place within 8 bytes.
struct Places {
  std::array<std::uint16_t, 4> largest{};
  std::uint16_t limit = 0;  ///< What is no larger is the upper half of a token.

  explicit Places(std::string_view bytes)
      : limit(bytes.size() >= kManyBytes ? kHighestUpperHalf : 0) {
    for (std::size_t i = 0; i < bytes.size() / sizeof(std::uint16_t); ++i) {
      std::uint16_t value = 0;
      std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
      largest[i % 4] = std::max(largest[i % 4], value);
    }
  }
  bool small(int place) const { return largest[static_cast<std::size_t>(place)] <= limit; }
  bool zero(int place) const { return largest[static_cast<std::size_t>(place)] == 0; }
  bool of_8_bytes() const { return !small(0) && small(1) && zero(2) && zero(3); }
  bool of_4_bytes() const { return small(1) && small(3) && !(small(0) && small(2)); }
};

}  // namespace

std::string probe(const InputFile& file) {
  std::string start(std::min<std::size_t>(kProbeBytes, file.bytes()), '\0');
  file.read(0, start.data(), start.size());
  return start;
}

bool looks_like_text(std::string_view bytes) {
  for (std::size_t i = 0; i < bytes.size();) {
    const auto lead = static_cast<unsigned char>(bytes[i++]);
    if (lead == 0 || (lead >= 0x80 && lead < 0xc2) || lead > 0xf4) return false;
    const int more = lead < 0x80 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
    for (int k = 0; k < more && i < bytes.size(); ++k) {
      if ((static_cast<unsigned char>(bytes[i++]) & 0xc0) != 0x80) return false;
    }
  }
  return true;
}

bool is_npy(std::string_view bytes) { return starts_with(bytes, "\x93NUMPY"); }

std::string container_of(std::string_view bytes) {
  for (const Container& container : kContainers) {
    if (starts_with(bytes, container.magic)) return std::string(container.what);
  }
  return "";
}

std::string no_text(std::string_view bytes) {
  return starts_with(bytes, kGitLfs) || !looks_like_text(bytes) ? container_of(bytes) : "";
}

std::string binary_data(std::string_view bytes) {
  if (is_npy(bytes)) return "a NumPy file; give --data-format npy";
  if (bytes.find('\0') == std::string_view::npos) return "";
  const bool wide = Places(bytes).of_4_bytes();
  return concat("binary data (it has zero bytes), such as tokens of ", wide ? 4 : 2,
                " bytes; give --data-format ", wide ? "u32" : "u16");
}

bool is_all_zero(const InputFile& file) {
  if (file.bytes() < kFewestBytes) return false;
  std::string part(kProbeBytes, '\0');
  for (std::uint64_t at = 0; at < file.bytes(); at += part.size()) {
    part.resize(std::min<std::uint64_t>(kProbeBytes, file.bytes() - at));
    file.read(at, part.data(), part.size());
    if (part.find_first_not_of('\0') != std::string::npos) return false;
  }
  return true;
}

std::string no_raw_tokens(std::string_view bytes, std::size_t width) {
  if (bytes.size() < kFewestBytes) return "";
  if (is_npy(bytes)) return "a NumPy file; give --data-format npy";
  if (std::string container = container_of(bytes); !container.empty()) return container;
  if (is_plain_text(bytes)) return std::string(kind_of_text(bytes));
  const Places places(bytes);
  if (places.of_8_bytes())
    return "tokens of 8 bytes (int64); save them as uint16 or uint32, or with numpy.save for "
           "--data-format npy";
  if (width == 2 && places.of_4_bytes())
    return "tokens of 4 bytes (every second 16-bit number is 0 or nearly); give --data-format u32";
  if (width == 4 && places.largest[1] > kHighestUpperHalf && places.largest[3] > kHighestUpperHalf)
    return "tokens of 2 bytes (as 4 bytes they pass every vocabulary); give --data-format u16";
  return "";
}

}  // namespace zero3d
