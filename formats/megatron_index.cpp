#include "zero3d/formats/megatron_index.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/token_probe.h"

namespace zero3d {
namespace {

constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
constexpr std::uint64_t kHeaderBytes = 34;
constexpr std::uint64_t kChunk = 1u << 15;

[[noreturn]] void refuse(const InputFile& file, const std::string& message) {
  throw IoError(file.path(), 0,
                concat("damaged Megatron index: ", message,
                       "; get the pair of .idx and .bin anew, or make it again"));
}

MegatronIndex read_header(const InputFile& file) {
  unsigned char bytes[kHeaderBytes];
  if (file.bytes() < kHeaderBytes) {
    refuse(file,
           concat("expected a header of ", kHeaderBytes, " bytes, the file has ", file.bytes()));
  }
  file.read(0, bytes, sizeof bytes);
  if (std::memcmp(bytes, kMagic, sizeof kMagic) != 0) {
    const std::string other = other_format(probe(file));
    refuse(file,
           concat("expected it to start with MMIDIDX, found ",
                  other.empty() ? "another format (TNTIDX is of fairseq and not read)" : other));
  }
  std::uint64_t version = 0;
  MegatronIndex index;
  std::memcpy(&version, bytes + 9, 8);
  index.dtype_code = bytes[17];
  std::memcpy(&index.sequences, bytes + 18, 8);
  std::memcpy(&index.documents, bytes + 26, 8);
  if (version != 1) refuse(file, concat("expected version 1, found ", version));
  if (index.dtype_code < 1 || index.dtype_code > 8) {
    refuse(file, concat("dtype code ", index.dtype_code, "; expected one of 1 to 8"));
  }
  const std::uint64_t limit = file.bytes() / 8;  // each sequence and boundary takes 8 bytes or more
  const bool fits = index.sequences <= limit && index.documents <= limit;
  const std::uint64_t expected =
      fits ? kHeaderBytes + index.sequences * 12 + index.documents * 8 : 0;
  if (!fits || (file.bytes() != expected && file.bytes() != expected + index.sequences)) {
    refuse(file, concat(index.sequences, " sequences and ", index.documents,
                        " document boundaries do not fit its size of ", file.bytes(), " bytes"));
  }
  return index;
}

/// Boundaries must rise from 0 to the number of sequences: then documents in order are sequences in
/// order.
void check_documents(const InputFile& file, const MegatronIndex& index) {
  const std::uint64_t offset = kHeaderBytes + index.sequences * 12;
  std::vector<std::int64_t> boundaries(kChunk);
  std::int64_t last = 0;
  for (std::uint64_t done = 0; done < index.documents;) {
    const std::uint64_t part = std::min(kChunk, index.documents - done);
    file.read(offset + done * 8, boundaries.data(), static_cast<std::size_t>(part * 8));
    for (std::uint64_t i = 0; i < part; ++i) {
      const std::int64_t boundary = boundaries[static_cast<std::size_t>(i)];
      if (boundary < last || (done + i == 0 && boundary != 0)) {
        refuse(file, concat("document boundary ", done + i, " is ", boundary, " after ", last));
      }
      last = boundary;
    }
    done += part;
  }
  if (index.documents == 0 || last != static_cast<std::int64_t>(index.sequences)) {
    refuse(file, concat("expected document boundaries from 0 to ", index.sequences,
                        ", the last is ", last));
  }
}

void add_lengths(const InputFile& file, MegatronIndex& index) {
  std::vector<std::int32_t> lengths(kChunk);
  for (std::uint64_t done = 0; done < index.sequences;) {
    const std::uint64_t part = std::min(kChunk, index.sequences - done);
    file.read(kHeaderBytes + done * 4, lengths.data(), static_cast<std::size_t>(part * 4));
    for (std::size_t i = 0; i < part; ++i) {
      if (lengths[i] < 0) refuse(file, concat("sequence ", done + i, " has length ", lengths[i]));
      index.tokens += static_cast<std::uint64_t>(lengths[i]);  // at most 2^31 for 12 bytes of file
    }
    done += part;
  }
}

struct CodedType {
  int code;
  std::size_t size;
  const char* name;
  bool is_signed = false;
  bool is_float = false;
};
constexpr CodedType kTypes[] = {{1, 1, "uint8"},
                                {2, 1, "int8", true},
                                {3, 2, "int16", true},
                                {4, 4, "int32", true},
                                {5, 8, "int64", true},
                                {6, 2, "uint16 (DeepSpeed)"},
                                {7, 4, "uint32 (DeepSpeed)"},
                                {8, 2, "uint16 (Megatron)"},
                                {8, 8, "uint64 (DeepSpeed)"},
                                {6, 8, "float64 (Megatron)", true, true}};

}  // namespace

MegatronIndex read_megatron_index(const InputFile& file) {
  MegatronIndex index = read_header(file);
  add_lengths(file, index);
  check_documents(file, index);
  return index;
}

MegatronType megatron_type(const InputFile& file, const MegatronIndex& index, std::uint64_t bytes) {
  std::string expected;
  for (const CodedType& type : kTypes) {
    if (type.code != index.dtype_code) continue;
    const bool fills = bytes % type.size == 0 && bytes / type.size == index.tokens;
    if (fills && type.is_float)
      refuse(file, concat("dtype code ", type.code, " is ", type.name, "; expected token numbers"));
    if (fills) return {type.size, type.is_signed};
    if (!type.is_float) append_item(expected, " or ", index.tokens * type.size, " as ", type.name);
  }
  refuse(file, concat("its ", index.tokens, " tokens of dtype code ", index.dtype_code,
                      " take the bytes ", expected, ", and the .bin has ", bytes,
                      " (is it cut off, or of another index?)"));
}

void read_megatron_sequences(
    const InputFile& file, const MegatronIndex& index,
    const std::function<void(std::uint64_t pointer, std::int64_t length)>& sequence) {
  std::vector<std::int32_t> lengths(kChunk);
  std::vector<std::int64_t> pointers(kChunk);
  for (std::uint64_t done = 0; done < index.sequences;) {
    const std::uint64_t part = std::min(kChunk, index.sequences - done);
    file.read(kHeaderBytes + done * 4, lengths.data(), static_cast<std::size_t>(part * 4));
    file.read(kHeaderBytes + index.sequences * 4 + done * 8, pointers.data(),
              static_cast<std::size_t>(part * 8));
    for (std::size_t i = 0; i < part; ++i) {
      if (lengths[i] < 0 || pointers[i] < 0) {
        refuse(file, concat("sequence ", done + i, " has length ", lengths[i], " and pointer ",
                            pointers[i]));
      }
      sequence(static_cast<std::uint64_t>(pointers[i]), lengths[i]);
    }
    done += part;
  }
}

}  // namespace zero3d
