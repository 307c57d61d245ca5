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
#include "zero3d/formats/lfs_pointer.h"
#include "zero3d/formats/megatron_index.h"
#include "zero3d/formats/npy_header.h"
#include "zero3d/formats/token_probe.h"

namespace zero3d {
namespace {

static_assert(std::endian::native == std::endian::little, "the formats' bytes are little-endian");

constexpr std::array<std::string_view, 7> kNames = {"auto", "text", "u16",     "u32",
                                                    "npy",  "llmc", "megatron"};
constexpr std::int32_t kGpt2Magic = 20240520;
constexpr std::int32_t kLlama3Magic = 20240801;
constexpr std::size_t kLlmcHeaderBytes = 256 * sizeof(std::int32_t);

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

template <typename T>
void widen(const std::byte* src, std::size_t count, std::int64_t* dst) {
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, src + i * sizeof(T), sizeof(T));
    if constexpr (sizeof(T) == sizeof(std::int64_t)) {  // what is no token either way
      if (!std::in_range<std::int64_t>(value)) value = std::numeric_limits<std::int64_t>::max();
    }
    dst[i] = static_cast<std::int64_t>(value);  // NOLINT(bugprone-signed-char-misuse): i8 is signed
  }
}

}  // namespace

TokenFormat parse_token_format(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) {
    throw_invalid(concat("token format '", name, "': expected one of ", joined(kNames, ", ")));
  }
  return static_cast<TokenFormat>(found - kNames.begin());
}

std::string_view name_of(TokenFormat format) { return kNames[static_cast<std::size_t>(format)]; }

TokenFormat detect_token_format(const std::string& path) {
  if (ends_with(path, ".idx") || is_file(megatron_name(path) + ".idx")) {
    return TokenFormat::megatron;
  }
  const InputFile file(path);
  const std::string start = probe(file);
  std::int32_t magic = 0;
  if (start.size() >= sizeof magic) std::memcpy(&magic, start.data(), sizeof magic);
  if (magic == kGpt2Magic || magic == kLlama3Magic) return TokenFormat::llmc;
  if (is_npy(start)) return TokenFormat::npy;
  if (ends_with(path, ".bin") || ends_with(path, ".u16")) return TokenFormat::u16;
  if (ends_with(path, ".u32")) return TokenFormat::u32;
  if (const std::string what = no_text(start); !what.empty())
    throw IoError(path, 0, concat("expected tokens or text, found ", what));
  if (looks_like_text(start)) return TokenFormat::text;
  throw IoError(path, 0,
                "cannot tell its token format: no .idx beside it, no header of llm.c or NumPy, no "
                ".bin, .u16 or .u32 name, no UTF-8 text; name the format (--data-format text, u16, "
                "u32, npy, llmc or megatron)");
}

TokenFile::TokenFile(const std::vector<std::string>& paths, TokenFormat format) {
  if (paths.empty()) throw_invalid("expected at least one file of tokens");
  for (const std::string& path : paths) {
    const TokenFormat found = format == TokenFormat::automatic ? detect_token_format(path) : format;
    const std::int64_t before = tokens();
    is_text_ = is_text_ && found == TokenFormat::text;
    add(path, found);
    if (tokens() == before)
      throw IoError(path, 0, "the file holds no tokens, expected some; was it written to its end?");
    descriptions_.push_back(
        concat(path, " (", name_of(found), ", ", format_count(tokens() - before), " tokens)"));
  }
}

void TokenFile::add(const std::string& path, TokenFormat format) {
  switch (format) {
    case TokenFormat::automatic:
    case TokenFormat::text:
      return add_raw(path, Width::u8);
    case TokenFormat::u16:
      return add_raw(path, Width::u16);
    case TokenFormat::u32:
      return add_raw(path, Width::u32);
    case TokenFormat::npy:
      return add_npy(path);
    case TokenFormat::llmc:
      return add_llmc(path);
    case TokenFormat::megatron:
      return add_megatron(path);
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
    case Width::u64:
    case Width::i64:
      return 8;
  }
  return 0;
}

TokenFile::Width TokenFile::width_of(std::size_t bytes, bool is_signed) {
  switch (bytes) {
    case 1:
      return is_signed ? Width::i8 : Width::u8;
    case 2:
      return is_signed ? Width::i16 : Width::u16;
    case 4:
      return is_signed ? Width::i32 : Width::u32;
    default:
      return is_signed ? Width::i64 : Width::u64;
  }
}

void TokenFile::add_run(const Run& run, std::int64_t count) {
  if (count == 0) return;
  runs_.push_back(run);
  starts_.push_back(starts_.back() + count);
}

void TokenFile::add_raw(const std::string& path, Width width) {
  InputFile file(path);
  const std::size_t size = bytes_of(width);
  const std::string start = probe(file);
  std::string what = width == Width::u8 ? no_text(start) : no_raw_tokens(start, size);
  if (what.empty() && width == Width::u8) what = binary_data(start);
  if (what.empty() && width != Width::u8 && is_all_zero(file))
    what =
        "a file of zeros alone, such as a download or a copy that was cut off leaves; get it anew";
  looks_like_json_ = looks_like_json_ || (width == Width::u8 && zero3d::looks_like_json(start));
  if (!what.empty()) {
    throw IoError(path, 0,
                  concat(width == Width::u8 ? "expected text"
                                            : concat("expected raw tokens of ", size, " bytes"),
                         ", found what looks like ", what));
  }
  if (file.bytes() % size != 0) {
    throw IoError(path, 0,
                  concat("expected a whole number of ", size, "-byte tokens, found ", file.bytes(),
                         " bytes; is the file cut off or of another format?"));
  }
  if (width == Width::u16) raw_limit_ = std::int64_t{1} << 16;
  const auto count = static_cast<std::int64_t>(file.bytes() / size);
  files_.push_back(std::move(file));
  add_run({files_.size() - 1, width, 0, 0}, count);
}

void TokenFile::add_npy(const std::string& path) {
  InputFile file(path);
  const NpyHeader header = read_npy_header(file);
  const Width width = width_of(header.size, header.kind == 'i');
  files_.push_back(std::move(file));
  add_run({files_.size() - 1, width, header.offset, 0}, static_cast<std::int64_t>(header.count));
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
    const std::string other = other_format(probe(file));
    throw IoError(path, 0,
                  concat("expected an llm.c header, magic ", kGpt2Magic, " version 1 or magic ",
                         kLlama3Magic, " version 7; found ",
                         other.empty() ? concat("magic ", header[0], " version ", header[1],
                                                "; give its format by --data-format")
                                       : other));
  }
  const Width width = gpt2 ? Width::u16 : Width::u32;
  const std::uint64_t data = file.bytes() - kLlmcHeaderBytes;
  if (header[2] < 0 || static_cast<std::uint64_t>(header[2]) * bytes_of(width) != data) {
    throw IoError(path, 0,
                  concat("its header promises ", header[2], " tokens of ", bytes_of(width),
                         " bytes, the file has ", data, " bytes after the header; is it cut off?"));
  }
  files_.push_back(std::move(file));
  add_run({files_.size() - 1, width, kLlmcHeaderBytes, 0}, header[2]);
}

void TokenFile::add_megatron(const std::string& path) {
  const std::string name = megatron_name(path);
  const InputFile index_file(name + ".idx");
  InputFile data(name + ".bin");
  const std::uint64_t bytes = data.bytes();
  if (is_lfs_pointer(probe(data))) throw IoError(data.path(), 0, std::string(kIsLfsPointer));
  files_.push_back(std::move(data));

  struct Piece {
    std::uint64_t offset;
    std::int64_t length;
  };
  std::vector<Piece> pieces;  // neighbours joined
  const MegatronIndex header = read_megatron_index(index_file);
  const MegatronType type = megatron_type(index_file, header, bytes);
  const Width width = width_of(type.size, type.is_signed);
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
  std::vector<Piece> in_order = pieces;
  std::ranges::sort(in_order, {}, &Piece::offset);
  std::uint64_t end = 0;  // as many bytes as the file has: what overlaps leaves others out
  for (const Piece& piece : in_order) {
    if (piece.offset < end)
      throw IoError(
          index_file.path(), 0,
          concat("damaged Megatron index: byte ", piece.offset,
                 " of the .bin is in two sequences, expected each in one; get the pair of "
                 ".idx and .bin anew, or make it again"));
    end = piece.offset + static_cast<std::uint64_t>(piece.length) * size;
  }
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
      case Width::u64:
        widen<std::uint64_t>(bytes.data(), part, values.data());
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
                             " is ", values[i], ", which is no token number; expected 0 to ",
                             std::numeric_limits<std::int32_t>::max(), ", tokens and not labels"));
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
