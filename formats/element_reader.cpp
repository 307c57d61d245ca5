#include "zero3d/formats/element_reader.h"

#include <algorithm>
#include <vector>

#include "zero3d/formats/convert.h"

namespace zero3d {
namespace {

constexpr std::size_t kChunkBytes = 1u << 18;

}  // namespace

void read_elements(const InputFile& file, DType from, std::uint64_t offset, const View& dst) {
  const auto count = static_cast<std::size_t>(dst.numel());
  const std::size_t size = size_of(from);
  if (from == dst.dtype()) return file.read(offset, dst.data(), count * size);
  std::vector<std::byte> chunk(std::min(kChunkBytes, count * size));
  std::byte* out = dst.data();
  for (std::size_t left = count; left > 0;) {
    const std::size_t part = std::min(left, kChunkBytes / size);
    file.read(offset, chunk.data(), part * size);
    convert_elements(from, chunk.data(), dst.dtype(), out, part);
    offset += part * size;
    out += part * size_of(dst.dtype());
    left -= part;
  }
}

}  // namespace zero3d
