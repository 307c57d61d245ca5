#include "zero3d/formats/token_probe.h"

#include <algorithm>
#include <array>
#include <cmath>
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
    Container{"ARROW1", "an Arrow file; save its tokens with numpy.save or tofile"},
    Container{"\x04\x22\x4d\x18", "an lz4-compressed file; decompress it first (unlz4)"},
    Container{"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it first"},
    Container{"Rar!\x1a\x07", "a RAR archive; unpack it first"},
    Container{"SQLite format 3", "an SQLite database; save its tokens with numpy.save or tofile"},
    Container{"%PDF-", "a PDF file; take its text out first"},
    Container{"GGUF", "weights of llama.cpp, no tokens; give the data"},
    Container{"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19",
              "a tensor that an older PyTorch pickled; save the tokens with numpy.save or tofile"}};

bool starts_with(std::string_view bytes, std::string_view start) {
  return bytes.substr(0, start.size()) == start;
}

/// Protocol 4 or 5 with a first frame, whose length has four zero bytes.
bool is_pickle(std::string_view bytes) {
  return bytes.size() > 11 &&
         (starts_with(bytes, "\x80\x04\x95") || starts_with(bytes, "\x80\x05\x95")) &&
         bytes.substr(7, 4) == std::string_view("\0\0\0\0", 4);
}

/// A length of 8 bytes, and JSON.
bool is_safetensors(std::string_view bytes) {
  return bytes.size() > 10 && bytes.substr(4, 4) == std::string_view("\0\0\0\0", 4) &&
         bytes.substr(8, 2) == "{\"";
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

/// The largest 16-bit number at each place within 8 bytes. Numbers of 32 bits just below 0, such as
/// labels that mask, count as 0.
struct Places {
  std::array<std::uint16_t, 4> largest{};
  std::uint16_t limit = 0;  ///< What is no larger is the upper half of a token.
  bool negative = false;

  explicit Places(std::string_view bytes)
      : limit(bytes.size() >= kManyBytes ? kHighestUpperHalf : 0) {
    for (std::size_t i = 0; i < bytes.size() / sizeof(std::uint16_t); i += 2) {
      std::array<std::uint16_t, 2> halves{};
      std::memcpy(halves.data(), bytes.data() + i * sizeof halves[0],
                  std::min(sizeof halves, bytes.size() - i * sizeof halves[0]));
      if (halves[1] == 0xffff && halves[0] >= 0xff00) {
        negative = true;
        continue;
      }
      for (std::size_t half = 0; half < 2; ++half)
        largest[(i + half) % 4] = std::max(largest[(i + half) % 4], halves[half]);
    }
  }
  bool small(int place) const { return largest[static_cast<std::size_t>(place)] <= limit; }
  bool zero(int place) const { return largest[static_cast<std::size_t>(place)] == 0; }
  bool of_8_bytes() const { return !small(0) && small(1) && zero(2) && zero(3); }
  bool of_4_bytes() const { return small(1) && small(3) && !(small(0) && small(2)); }
  bool of_4_bytes_swapped() const { return zero(0) && zero(2) && !small(1) && !small(3); }
};

/// Whether all are whole numbers from 0 to 2^24 as floating-point numbers, and not all of them 0.
template <typename T>
bool are_whole(std::string_view bytes) {
  bool any = false;
  for (std::size_t i = 0; i + sizeof(T) <= bytes.size(); i += sizeof(T)) {
    T value = 0;
    std::memcpy(&value, bytes.data() + i, sizeof value);
    if (!(value >= 0 && value <= T{1 << 24}) || value != std::trunc(value)) return false;
    any = any || value > 0;
  }
  return any;
}

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
  if (is_pickle(bytes)) return "what Python pickled; save the tokens with numpy.save or tofile";
  if (is_safetensors(bytes)) return "a safetensors file; save its tokens with numpy.save or tofile";
  if (bytes.size() > 262 && bytes.substr(257, 5) == "ustar")
    return "a tar archive; unpack it first (tar -xf)";
  return "";
}

std::string other_format(std::string_view bytes) {
  if (is_npy(bytes)) return "a NumPy file; give --data-format npy";
  if (std::string container = container_of(bytes); !container.empty()) return container;
  return bytes.size() >= kFewestBytes && is_plain_text(bytes) ? std::string(kind_of_text(bytes))
                                                              : "";
}

bool looks_like_json(std::string_view bytes) {
  return is_plain_text(bytes) && starts_with(kind_of_text(bytes), "JSON");
}

std::string no_text(std::string_view bytes) {
  if (bytes.size() >= kFewestBytes && bytes.find('\0') != std::string_view::npos &&
      (starts_with(bytes, "\xff\xfe") || starts_with(bytes, "\xfe\xff")))
    return "text of UTF-16; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)";
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
  if (std::string other = other_format(bytes); !other.empty()) return other;
  if (are_whole<float>(bytes) || are_whole<double>(bytes))
    return "floating-point numbers; save the tokens as integers, with .astype('<u4')";
  const Places places(bytes);
  if (places.negative && (places.of_4_bytes() || places.of_8_bytes()))
    return "integers of 4 or 8 bytes with some below 0, such as labels that mask (-100); give the "
           "tokens themselves, as uint16 or uint32";
  if (places.of_4_bytes_swapped())
    return "big-endian tokens of 4 or 8 bytes; save them little-endian, with .astype('<u4')";
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
