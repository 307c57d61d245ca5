#include "zero3d/formats/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/megatron_index.h"

namespace zero3d {
namespace {

static_assert(std::endian::native == std::endian::little, "the formats' bytes are little-endian");

constexpr std::array<std::string_view, 5> kNames = {"auto", "text", "u16", "llmc", "megatron"};
constexpr std::int32_t kGpt2Magic = 20240520;
constexpr std::int32_t kLlama3Magic = 20240801;
constexpr std::size_t kLlmcHeaderBytes = 256 * sizeof(std::int32_t);
constexpr std::size_t kProbeBytes = 64 * 1024;

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

/// NAME of NAME.idx, NAME.bin or NAME itself.
std::string megatron_name(const std::string& path) {
  return ends_with(path, ".idx") || ends_with(path, ".bin") ? path.substr(0, path.size() - 4)
                                                            : path;
}

bool is_file(const std::string& path) {
  std::error_code code;
  return std::filesystem::is_regular_file(path, code);
}

/// UTF-8 without zero bytes; a sequence cut off at the end passes.
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

template <typename T>
void widen(const std::byte* src, std::size_t count, std::int64_t* dst) {
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, src + i * sizeof(T), sizeof(T));
    dst[i] = static_cast<std::int64_t>(value);  // NOLINT(bugprone-signed-char-misuse): i8 is signed
  }
}

}  // namespace

TokenFormat parse_token_format(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) {
    throw_invalid(concat("token format '", name, "': expected auto, text, u16, llmc or megatron"));
  }
  return static_cast<TokenFormat>(found - kNames.begin());
}

std::string_view name_of(TokenFormat format) { return kNames[static_cast<std::size_t>(format)]; }

TokenFormat detect_token_format(const std::string& path) {
  if (ends_with(path, ".idx") || is_file(megatron_name(path) + ".idx")) {
    return TokenFormat::megatron;
  }
  const InputFile file(path);
  std::string start(std::min<std::size_t>(kProbeBytes, file.bytes()), '\0');
  file.read(0, start.data(), start.size());
  std::int32_t magic = 0;
  if (start.size() >= sizeof magic) std::memcpy(&magic, start.data(), sizeof magic);
  if (magic == kGpt2Magic || magic == kLlama3Magic) return TokenFormat::llmc;
  if (ends_with(path, ".bin") || ends_with(path, ".u16")) return TokenFormat::u16;
  if (looks_like_text(start)) return TokenFormat::text;
  throw IoError(path, 0,
                "cannot tell its token format: no .idx beside it, no llm.c header, no .bin or .u16 "
                "name, no UTF-8 text; name the format (text, u16, llmc or megatron)");
}

TokenFile::TokenFile(const std::vector<std::string>& paths, TokenFormat format) {
  if (paths.empty()) throw_invalid("expected at least one file of tokens");
  for (const std::string& path : paths) {
    const TokenFormat found = format == TokenFormat::automatic ? detect_token_format(path) : format;
    const std::int64_t before = tokens();
    is_text_ = is_text_ && found == TokenFormat::text;
    if (found == TokenFormat::text) {
      add_raw(path, Width::u8);
    } else if (found == TokenFormat::u16) {
      add_raw(path, Width::u16);
    } else if (found == TokenFormat::llmc) {
      add_llmc(path);
    } else {
      add_megatron(path);
    }
    if (tokens() == before) throw IoError(path, 0, "the file holds no tokens");
    descriptions_.push_back(
        concat(path, " (", name_of(found), ", ", format_count(tokens() - before), " tokens)"));
  }
}

std::size_t TokenFile::bytes_of(Width width) {
  switch (width) {
    case Width::u8:
    case Width::i8:
      return 1;
    case Width::u16:
    case Width::i16:
      return 2;
    case Width::u32:
    case Width::i32:
      return 4;
    case Width::i64:
      return 8;
  }
  return 0;
}

void TokenFile::add_run(const Run& run, std::int64_t count) {
  if (count == 0) return;
  runs_.push_back(run);
  starts_.push_back(starts_.back() + count);
}

void TokenFile::add_raw(const std::string& path, Width width) {
  InputFile file(path);
  const std::size_t size = bytes_of(width);
  if (file.bytes() % size != 0) {
    throw IoError(path, 0,
                  concat("expected a whole number of ", size, "-byte tokens, found ", file.bytes(),
                         " bytes; is the file cut off or of another format?"));
  }
  const auto count = static_cast<std::int64_t>(file.bytes() / size);
  files_.push_back(std::move(file));
  add_run({files_.size() - 1, width, 0, 0}, count);
}

void TokenFile::add_llmc(const std::string& path) {
  InputFile file(path);
  std::array<std::int32_t, 3> header{};
  if (file.bytes() < kLlmcHeaderBytes) {
    throw IoError(
        path, 0,
        concat("expected an llm.c header of ", kLlmcHeaderBytes, " bytes, found ", file.bytes()));
  }
  file.read(0, header.data(), sizeof header);
  const bool gpt2 = header[0] == kGpt2Magic;
  const std::int32_t version = gpt2 ? 1 : 7;
  if ((!gpt2 && header[0] != kLlama3Magic) || header[1] != version) {
    throw IoError(
        path, 0,
        concat("expected an llm.c header, magic ", kGpt2Magic, " version 1 or magic ", kLlama3Magic,
               " version 7; found magic ", header[0], " version ", header[1]));
  }
  const Width width = gpt2 ? Width::u16 : Width::u32;
  const std::uint64_t data = file.bytes() - kLlmcHeaderBytes;
  if (header[2] < 0 || static_cast<std::uint64_t>(header[2]) * bytes_of(width) != data) {
    throw IoError(path, 0,
                  concat("its header promises ", header[2], " tokens of ", bytes_of(width),
                         " bytes, the file has ", data, " bytes after the header"));
  }
  files_.push_back(std::move(file));
  add_run({files_.size() - 1, width, kLlmcHeaderBytes, 0}, header[2]);
}

void TokenFile::add_megatron(const std::string& path) {
  static constexpr std::array<Width, 9> kWidths = {Width::u8,  Width::u8,  Width::i8,
                                                   Width::i16, Width::i32, Width::i64,
                                                   Width::u8,  Width::u8,  Width::u16};
  const std::string name = megatron_name(path);
  const InputFile index_file(name + ".idx");
  InputFile data(name + ".bin");
  const std::uint64_t bytes = data.bytes();
  files_.push_back(std::move(data));

  struct Piece {
    std::uint64_t offset;
    std::int64_t length;
  };
  std::vector<Piece> pieces;  // neighbours joined
  const MegatronIndex header = read_megatron_index(index_file);
  const Width width = kWidths[static_cast<std::size_t>(header.dtype_code)];
  const std::size_t size = bytes_of(width);
  std::uint64_t number = 0;
  read_megatron_sequences(index_file, header, [&](std::uint64_t pointer, std::int64_t length) {
    const std::uint64_t needed = static_cast<std::uint64_t>(length) * size;
    if (pointer > bytes || needed > bytes - pointer) {
      throw IoError(name + ".bin", 0,
                    concat("sequence ", number, " of ", index_file.path(), " needs bytes [",
                           pointer, ", ", pointer, " + ", needed, "), the file has ", bytes));
    }
    ++number;
    if (length == 0) return;
    if (!pieces.empty() &&
        pieces.back().offset + static_cast<std::uint64_t>(pieces.back().length) * size == pointer) {
      pieces.back().length += length;
    } else {
      pieces.push_back({pointer, length});
    }
  });
  std::int64_t first = 0;
  for (const Piece& piece : pieces) {
    add_run({files_.size() - 1, width, piece.offset, first}, piece.length);
    first += piece.length;
  }
}

std::size_t TokenFile::run_of(std::int64_t token) const {
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), token);
  return static_cast<std::size_t>(after - starts_.begin()) - 1;
}

void TokenFile::read(std::int64_t first, std::int64_t count, std::int32_t* dst) const {
  if (first < 0 || count < 0 || first > tokens() - count) {
    throw_invalid(
        concat("tokens [", first, ", ", first, " + ", count, ") asked for, there are ", tokens()));
  }
  for (std::size_t run = run_of(first); count > 0; ++run) {
    const std::int64_t part = std::min(count, starts_[run + 1] - first);
    read_run(runs_[run], first - starts_[run], part, dst);
    first += part;
    dst += part;
    count -= part;
  }
}

void TokenFile::read_run(const Run& run, std::int64_t skip, std::int64_t count,
                         std::int32_t* dst) const {
  static constexpr std::size_t kChunk = 2048;
  std::array<std::byte, kChunk * 8> bytes;
  std::array<std::int64_t, kChunk> values;
  const std::size_t size = bytes_of(run.width);
  for (std::int64_t done = 0; done < count;) {
    const auto part = static_cast<std::size_t>(
        std::min<std::int64_t>(static_cast<std::int64_t>(kChunk), count - done));
    files_[run.file].read(run.offset + static_cast<std::uint64_t>(skip + done) * size, bytes.data(),
                          part * size);
    switch (run.width) {
      case Width::u8:
        widen<std::uint8_t>(bytes.data(), part, values.data());
        break;
      case Width::u16:
        widen<std::uint16_t>(bytes.data(), part, values.data());
        break;
      case Width::u32:
        widen<std::uint32_t>(bytes.data(), part, values.data());
        break;
      case Width::i8:
        widen<std::int8_t>(bytes.data(), part, values.data());
        break;
      case Width::i16:
        widen<std::int16_t>(bytes.data(), part, values.data());
        break;
      case Width::i32:
        widen<std::int32_t>(bytes.data(), part, values.data());
        break;
      case Width::i64:
        widen<std::int64_t>(bytes.data(), part, values.data());
        break;
    }
    for (std::size_t i = 0; i < part; ++i) {
      if (values[i] < 0 || values[i] > std::numeric_limits<std::int32_t>::max()) {
        throw IoError(files_[run.file].path(), 0,
                      concat("token ", run.first_here + skip + done + static_cast<std::int64_t>(i),
                             " is ", values[i], ", which is no token number"));
      }
      dst[done + static_cast<std::int64_t>(i)] = static_cast<std::int32_t>(values[i]);
    }
    done += static_cast<std::int64_t>(part);
  }
}

std::string TokenFile::place(std::int64_t token) const {
  const std::size_t run = run_of(token);
  return concat(files_[runs_[run].file].path(), ", token ",
                token - starts_[run] + runs_[run].first_here);
}

std::string TokenFile::description() const { return joined(descriptions_, ", "); }

}  // namespace zero3d
