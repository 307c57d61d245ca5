// The .idx file of Megatron-LM's indexed data sets: where each sequence lies in the .bin file.
// Internal to formats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "zero3d/formats/input_file.h"

namespace zero3d {

/// Layout: "MMIDIDX" and two zero bytes, uint64 version 1, uint8 dtype code, uint64 sequences,
/// uint64 document boundaries, int32 lengths[sequences], int64 byte pointers[sequences], int64
/// boundaries[...] (sequence numbers), optionally int8 modes[sequences].
struct MegatronIndex {
  /// NumPy dtypes by code: uint8 1, int8 2, int16 3, int32 4, int64 5; then Megatron has float64 6,
  /// float32 7, uint16 8, and DeepSpeed uint16 6, uint32 7, uint64 8.
  int dtype_code = 0;
  std::uint64_t sequences = 0;
  std::uint64_t documents = 0;
  std::uint64_t tokens = 0;  ///< Of all sequences together.
};

struct MegatronType {
  std::size_t size = 0;  ///< Bytes of a token.
  bool is_signed = false;
};

/// Reads and checks the header, the lengths and the document boundaries. Throws IoError.
MegatronIndex read_megatron_index(const InputFile& file);
/// The type with which the tokens of the index fill the `bytes` of the .bin, of those its code may
/// mean; floats are none. Throws IoError, with both numbers, when there is none.
MegatronType megatron_type(const InputFile& file, const MegatronIndex& index, std::uint64_t bytes);
/// Calls sequence(pointer, length) for each in order (bytes, tokens; neither is negative, both are
/// not yet checked against the .bin). Throws IoError.
void read_megatron_sequences(
    const InputFile& file, const MegatronIndex& index,
    const std::function<void(std::uint64_t pointer, std::int64_t length)>& sequence);

}  // namespace zero3d
