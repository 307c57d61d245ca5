// The header of NumPy's .npy files:
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html. Only what holds tokens is
// taken: one dimension of little-endian integers. Internal to formats.
#pragma once

#include <cstddef>
#include <cstdint>

#include "zero3d/formats/input_file.h"

namespace zero3d {

struct NpyHeader {
  char kind = 'u';       ///< 'u' or 'i', as NumPy's type letters.
  std::size_t size = 0;  ///< Bytes of an element: 1, 2, 4 or 8.
  std::uint64_t count = 0;
  std::uint64_t offset = 0;  ///< Of the first element.
};

/// Throws IoError for what is no such file, or whose size is not what the header says.
NpyHeader read_npy_header(const InputFile& file);

}  // namespace zero3d
