// The JSON header of a safetensors file: parsed and checked apart from any file, so that it can be
// tested and fuzzed as text. Internal to formats.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/formats/safetensors.h"

namespace zero3d {

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  ///< In the order of their bytes.
  std::map<std::string, std::string> metadata;
};

/// Parses header `text`, which `data_bytes` bytes of tensors follow; ranges are moved by
/// `data_offset`, the place of those bytes in the file. Throws IoError(path) with all problems.
SafetensorsHeader parse_safetensors_header(const std::string& path, std::string_view text,
                                           std::uint64_t data_offset, std::uint64_t data_bytes);

/// "F32" for DType::f32.
std::string_view safetensors_name(DType dtype);

/// Parses model.safetensors.index.json, or one of files that end in another `suffix`: tensor name
/// -> file name. Throws IoError(path) with all problems: file names that are no plain names of such
/// files included.
std::map<std::string, std::string> parse_safetensors_index(
    const std::string& path, std::string_view text, std::string_view suffix = ".safetensors");

}  // namespace zero3d
