// Token data from outside: files of tokens seen as one sequence. Formats:
//   text      every byte is a token, vocabulary 256
//   u16, u32  raw little-endian uint16 (nanoGPT) or uint32
//   npy       NumPy's .npy, one dimension of integers
//   llmc      256 int32 of header, then tokens: magic 20240520 version 1 uint16, magic 20240801
//             version 7 uint32
//   megatron  NAME.idx with header MMIDIDX, NAME.bin with the documents; DeepSpeed's too
// Automatic choice, the first rule that holds: a path that ends in .idx, or beside which (its .bin,
// if any, replaced) lies an .idx file, is megatron; a file that starts with a magic of llm.c is
// llmc, with NumPy's npy; a name ending in .bin or .u16 is u16, in .u32 u32; a file whose first 64
// KiB are UTF-8 without zero bytes is text; anything else is refused. Raw tokens carry no sign of
// what they are: a file that looks like something else (token_probe.h) is refused, chosen by hand
// or not.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/formats/input_file.h"

namespace zero3d {

enum class TokenFormat { automatic, text, u16, u32, npy, llmc, megatron };

/// "auto", "text", "u16", "u32", "npy", "llmc", "megatron"; throws Error(kInvalid) otherwise.
TokenFormat parse_token_format(std::string_view name);
std::string_view name_of(TokenFormat format);
/// What `automatic` means for `path`; throws IoError when no rule holds.
TokenFormat detect_token_format(const std::string& path);

/// The files, one after the other, as one sequence of tokens. Safe to read from several threads.
class TokenFile {
 public:
  /// Throws IoError for a file that is missing, empty, cut off, of an odd size or whose header is
  /// no header of its format.
  explicit TokenFile(const std::vector<std::string>& paths,
                     TokenFormat format = TokenFormat::automatic);
  explicit TokenFile(const std::string& path, TokenFormat format = TokenFormat::automatic)
      : TokenFile(std::vector<std::string>{path}, format) {}

  std::int64_t tokens() const { return starts_.back(); }
  /// True when every token is a byte of text.
  bool is_text() const { return is_text_; }
  /// True when a file of text begins as JSON does.
  bool looks_like_json() const { return looks_like_json_; }
  /// Of a file of raw tokens: what it cannot hold for want of bits is not below this, whatever the
  /// data's vocabulary is. INT64_MAX when no file sets such a limit.
  std::int64_t raw_limit() const { return raw_limit_; }
  /// Writes tokens [first, first + count) to dst. Throws IoError for a token outside int32.
  void read(std::int64_t first, std::int64_t count, std::int32_t* dst) const;
  /// "data/train.bin, token 17": where a token of the sequence comes from.
  std::string place(std::int64_t token) const;
  /// The paths and what was found in them, for a start-up line: "a.bin (llmc, 1,000 tokens)".
  std::string description() const;

 private:
  enum class Width { u8, u16, u32, u64, i8, i16, i32, i64 };
  /// A run of tokens that lie one after the other in a file.
  struct Run {
    std::size_t file;
    Width width;
    std::uint64_t offset;     ///< Byte of the first token.
    std::int64_t first_here;  ///< Number of the first token within its file's documents.
  };

  void add(const std::string& path, TokenFormat format);
  void add_raw(const std::string& path, Width width);
  void add_npy(const std::string& path);
  void add_llmc(const std::string& path);
  void add_megatron(const std::string& path);
  void add_run(const Run& run, std::int64_t tokens);
  std::size_t run_of(std::int64_t token) const;
  void read_run(const Run& run, std::int64_t skip, std::int64_t count, std::int32_t* dst) const;
  static std::size_t bytes_of(Width width);
  static Width width_of(std::size_t bytes, bool is_signed);

  std::vector<InputFile> files_;
  std::vector<Run> runs_;
  std::vector<std::int64_t> starts_{0};  ///< First token of each run, and the end.
  std::vector<std::string> descriptions_;
  bool is_text_ = true;
  bool looks_like_json_ = false;
  std::int64_t raw_limit_ = std::numeric_limits<std::int64_t>::max();
};

}  // namespace zero3d
