#include "zero3d/formats/npy_header.h"

#include <array>
#include <charconv>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/token_probe.h"

namespace zero3d {
namespace {

constexpr std::size_t kLongestHeader = std::size_t{64} * 1024;  // NumPy's own reader takes 10,000

/// The header's text: a dictionary as Python writes it, of strings, flags and tuples of integers.
class Dictionary {
 public:
  Dictionary(const InputFile& file, std::string_view text) : file_(file), rest_(text) {}

  void read() {
    expect('{');
    while (!take('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr") {
        descr = peek() == '[' ? std::string(rest_.substr(0, 40)) : string();
        if (peek() == '[') return;  // fields, which no token has
      } else if (key == "fortran_order") {
        word();
      } else if (key == "shape") {
        tuple();
      } else {
        fail(concat("has a key '", key, "'"));
      }
      if (!take(',') && peek() != '}') fail("lacks a comma between its entries");
    }
    if (descr.empty() || !has_shape) fail("lacks descr or shape");
  }

  std::string descr;
  std::vector<std::uint64_t> shape;
  bool has_shape = false;

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw IoError(file_.path(), 0, concat("damaged NumPy file: its header ", what));
  }
  void skip_blanks() {
    const std::size_t next = rest_.find_first_not_of(" \t\n");
    rest_.remove_prefix(next == std::string_view::npos ? rest_.size() : next);
  }
  char peek() {
    skip_blanks();
    return rest_.empty() ? '\0' : rest_.front();
  }
  bool take(char c) {
    if (peek() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(concat("lacks a '", c, "'"));
  }
  std::string string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') fail("has no name in quotes where one belongs");
    const std::size_t end = rest_.find(quote, 1);
    if (end == std::string_view::npos || end > 40) fail("has a name that does not end");
    const std::string text(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return text;
  }
  void word() {
    for (const std::string_view value : {"True", "False"}) {
      if (peek() == value[0] && rest_.substr(0, value.size()) == value)
        return rest_.remove_prefix(value.size());
    }
    fail("has a fortran_order that is neither True nor False");
  }
  void tuple() {
    has_shape = true;
    expect('(');
    while (!take(')')) {
      std::uint64_t extent = 0;
      skip_blanks();
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), extent);
      if (error != std::errc() || shape.size() == 32) fail("has a shape that is none");
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      shape.push_back(extent);
      if (!take(',') && peek() != ')') fail("has a shape that is none");
    }
  }

  const InputFile& file_;
  std::string_view rest_;
};

/// The text between the magic and the data; `offset` is where the data begins.
std::string header_text(const InputFile& file, std::uint64_t& offset) {
  std::array<unsigned char, 12> start{};
  const auto refuse = [&](const std::string& why) { throw IoError(file.path(), 0, why); };
  if (file.bytes() < start.size())
    refuse(concat("expected a NumPy file, found ", file.bytes(), " bytes"));
  file.read(0, start.data(), start.size());
  if (std::memcmp(start.data(), "\x93NUMPY", 6) != 0) {
    const std::string other = other_format(probe(file));
    refuse(concat("expected a NumPy file, which starts with \\x93NUMPY; found ",
                  other.empty() ? "something else: give its format by --data-format" : other));
  }
  const int version = start[6];
  if (version < 1 || version > 3)
    refuse(concat("expected version 1, 2 or 3 of NumPy's format, found ", version));
  const std::size_t prefix = version == 1 ? 10 : 12;
  std::uint64_t length = start[8] | static_cast<std::uint64_t>(start[9]) << 8;
  if (version > 1)
    length |= static_cast<std::uint64_t>(start[10]) << 16 | static_cast<std::uint64_t>(start[11])
                                                                << 24;
  if (length > kLongestHeader || length > file.bytes() - prefix)
    refuse(
        concat("damaged NumPy file: a header of ", length, " bytes in a file of ", file.bytes()));
  std::string text(static_cast<std::size_t>(length), '\0');
  file.read(prefix, text.data(), text.size());
  offset = prefix + length;
  return text;
}

}  // namespace

NpyHeader read_npy_header(const InputFile& file) {
  NpyHeader header;
  const std::string text = header_text(file, header.offset);
  Dictionary read(file, text);
  read.read();
  const auto refuse = [&](const std::string& why) { throw IoError(file.path(), 0, why); };
  const std::string& type = read.descr;
  const bool one_byte = type.size() == 3 && type[2] == '1';
  const bool integral = type.size() == 3 && (type[1] == 'u' || type[1] == 'i') &&
                        std::string_view("1248").find(type[2]) != std::string_view::npos;
  if (!integral || (type[0] != '<' && !one_byte))
    refuse(concat("expected tokens as little-endian integers, found NumPy's type ", type,
                  "; save them with .astype('<u4')"));
  if (read.shape.size() != 1)
    refuse(concat("expected an array of one dimension, found ", read.shape.size(),
                  "; save it with .reshape(-1), in the order of the text"));
  header.kind = type[1];
  header.size = static_cast<std::size_t>(type[2] - '0');
  header.count = read.shape[0];
  const std::uint64_t bytes = file.bytes() - header.offset;
  if (header.count > bytes / header.size || header.count * header.size != bytes)
    refuse(concat("its header promises ", header.count, " tokens of ", header.size,
                  " bytes, the file has ", bytes,
                  " bytes after the header; is it cut off, or of another type?"));
  return header;
}

}  // namespace zero3d
