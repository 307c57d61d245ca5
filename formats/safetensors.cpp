#include "zero3d/formats/safetensors.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/convert.h"
#include "zero3d/formats/element_reader.h"
#include "zero3d/formats/lfs_pointer.h"
#include "zero3d/formats/problem_list.h"
#include "zero3d/formats/safetensors_header.h"

namespace zero3d {
namespace {

static_assert(std::endian::native == std::endian::little, "the format's bytes are little-endian");

/// What git leaves in the place of a large file that was not fetched.
void refuse_lfs_pointer(const InputFile& file) {
  std::string begin(std::min<std::uint64_t>(file.bytes(), 64), '\0');
  file.read(0, begin.data(), begin.size());
  if (is_lfs_pointer(begin)) throw IoError(file.path(), 0, std::string(kIsLfsPointer));
}

std::string read_header(const InputFile& file) {
  if (file.bytes() < 8) {
    throw IoError(file.path(), 0,
                  concat("truncated safetensors file: expected 8 bytes of header size, found ",
                         file.bytes(), " bytes in all; get it anew"));
  }
  std::uint64_t bytes = 0;
  file.read(0, &bytes, sizeof bytes);
  refuse_lfs_pointer(file);
  if (bytes > SafetensorsFile::kMaxHeaderBytes) {
    throw IoError(file.path(), 0,
                  concat("no safetensors file: its first 8 bytes give a header of ", bytes,
                         " bytes, the format allows ", SafetensorsFile::kMaxHeaderBytes,
                         "; is it a page of an error, or weights of another kind?"));
  }
  if (bytes > file.bytes() - 8) {
    throw IoError(file.path(), 0,
                  concat("truncated safetensors file: expected a header of ", bytes,
                         " bytes, found ", file.bytes() - 8, "; get it anew"));
  }
  std::string text(static_cast<std::size_t>(bytes), '\0');
  file.read(8, text.data(), text.size());
  return text;
}

}  // namespace

std::int64_t SafetensorsEntry::numel() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

std::string to_string(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += concat(i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

bool same_shape(const std::vector<std::int64_t>& a, const Shape& b) {
  if (a.size() != static_cast<std::size_t>(b.rank())) return false;
  for (int dim = 0; dim < b.rank(); ++dim) {
    if (a[static_cast<std::size_t>(dim)] != b[dim]) return false;
  }
  return true;
}

SafetensorsFile::SafetensorsFile(std::string path) : file_(std::move(path)) {
  const std::string text = read_header(file_);
  const std::uint64_t offset = 8 + text.size();
  SafetensorsHeader header =
      parse_safetensors_header(file_.path(), text, offset, file_.bytes() - offset);
  tensors_ = std::move(header.tensors);
  metadata_ = std::move(header.metadata);
  for (std::size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

void SafetensorsFile::read(const SafetensorsEntry& entry, std::int64_t first,
                           const View& dst) const {
  const std::int64_t count = dst.numel();
  if (!entry.dtype || !is_convertible(*entry.dtype, dst.dtype())) {
    throw IoError(
        path(), 0,
        concat("tensor ", printable(entry.name), " has dtype ", printable(entry.dtype_name),
               ", which cannot be read as ", name_of(dst.dtype())));
  }
  if (first < 0 || count > entry.numel() || first > entry.numel() - count) {
    throw_invalid(concat("elements [", first, ", ", first, " + ", count, ") of tensor ",
                         printable(entry.name), " asked for, it has ", entry.numel()));
  }
  read_elements(file_, *entry.dtype,
                entry.begin + static_cast<std::uint64_t>(first) * size_of(*entry.dtype), dst);
}

}  // namespace zero3d
