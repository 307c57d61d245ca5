#include "zero3d/formats/megatron_index.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
constexpr std::uint64_t kHeaderBytes = 34;
constexpr std::uint64_t kChunk = 1u << 15;

[[noreturn]] void refuse(const InputFile& file, const std::string& message) {
  throw IoError(file.path(), 0, "damaged Megatron index: " + message);
}

MegatronIndex read_header(const InputFile& file) {
  unsigned char bytes[kHeaderBytes];
  if (file.bytes() < kHeaderBytes) {
    refuse(file,
           concat("expected a header of ", kHeaderBytes, " bytes, the file has ", file.bytes()));
  }
  file.read(0, bytes, sizeof bytes);
  if (std::memcmp(bytes, kMagic, sizeof kMagic) != 0) {
    refuse(file, "expected it to start with MMIDIDX");
  }
  std::uint64_t version = 0;
  MegatronIndex index;
  std::memcpy(&version, bytes + 9, 8);
  index.dtype_code = bytes[17];
  std::memcpy(&index.sequences, bytes + 18, 8);
  std::memcpy(&index.documents, bytes + 26, 8);
  if (version != 1) refuse(file, concat("expected version 1, found ", version));
  if (index.dtype_code < 1 || index.dtype_code > 8) {
    refuse(file, concat("dtype code ", index.dtype_code, " is none of 1 to 8"));
  }
  if (index.dtype_code == 6 || index.dtype_code == 7) {
    refuse(file, concat("dtype code ", index.dtype_code, " is a float; expected token numbers"));
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

}  // namespace

MegatronIndex read_megatron_index(const InputFile& file) {
  const MegatronIndex index = read_header(file);
  check_documents(file, index);
  return index;
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
