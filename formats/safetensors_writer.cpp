#include "zero3d/formats/safetensors_writer.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/convert.h"
#include "zero3d/formats/safetensors_header.h"

namespace zero3d {
namespace {

constexpr std::size_t kChunkBytes = 1u << 18;

/// The header with its size in front, padded so that the data is aligned to 8 bytes.
std::string header_bytes(const std::vector<TensorDeclaration>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::string text = header.dump();
  text.pop_back();  // the closing brace: tensors are appended, a lookup of each would be quadratic
  std::set<std::string_view> names{"__metadata__"};
  std::int64_t offset = 0;
  for (const TensorDeclaration& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      throw_invalid(concat("tensor '", tensor.name, "' is to be written twice to one file"));
    }
    nlohmann::ordered_json entry;
    entry["dtype"] = safetensors_name(tensor.dtype);
    entry["shape"] = nlohmann::ordered_json::array();
    for (int dim = 0; dim < tensor.shape.rank(); ++dim) entry["shape"].push_back(tensor.shape[dim]);
    entry["data_offsets"] = {offset, offset + tensor.bytes()};
    offset += tensor.bytes();
    text +=
        concat(text.size() > 1 ? "," : "", nlohmann::json(tensor.name).dump(), ":", entry.dump());
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + text;
}

}  // namespace

std::int64_t TensorDeclaration::bytes() const { return bytes_of(shape.numel(), dtype); }

SafetensorsWriter::SafetensorsWriter(std::string path, std::vector<TensorDeclaration> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : tensors_(std::move(tensors)), file_(std::move(path)) {
  const std::string header = header_bytes(tensors_, metadata);
  file_.write(header.data(), header.size());
  skip_full_tensors();
}

void SafetensorsWriter::skip_full_tensors() {
  while (turn_ < tensors_.size() && element_ == tensors_[turn_].shape.numel()) {
    ++turn_;
    element_ = 0;
  }
}

void SafetensorsWriter::write(std::string_view name, ConstView values) {
  const std::int64_t count = values.numel();
  if (count == 0) return;
  if (turn_ == tensors_.size() || name != tensors_[turn_].name) {
    throw_invalid(concat(file_.path(), ": tensor '", name, "' written out of turn; expected ",
                         turn_ == tensors_.size() ? std::string("no more")
                                                  : concat("'", tensors_[turn_].name, "'")));
  }
  const TensorDeclaration& tensor = tensors_[turn_];
  if (count > tensor.shape.numel() - element_) {
    throw_invalid(concat(file_.path(), ": tensor '", name, "' of shape ", to_string(tensor.shape),
                         " has room for ", tensor.shape.numel() - element_, " more elements, got ",
                         count));
  }
  if (!is_convertible(values.dtype(), tensor.dtype)) {
    throw_invalid(concat(file_.path(), ": tensor '", name, "' is declared as ",
                         name_of(tensor.dtype), ", got ", name_of(values.dtype())));
  }
  if (values.dtype() == tensor.dtype) {
    file_.write(values.data(), values.bytes());
  } else {
    const std::size_t to = size_of(tensor.dtype);
    const std::size_t from = size_of(values.dtype());
    std::vector<std::byte> chunk(std::min(kChunkBytes, static_cast<std::size_t>(count) * to));
    const std::byte* src = values.data();
    for (std::size_t left = static_cast<std::size_t>(count); left > 0;) {
      const std::size_t part = std::min(left, kChunkBytes / to);
      convert_elements(values.dtype(), src, tensor.dtype, chunk.data(), part);
      file_.write(chunk.data(), part * to);
      src += part * from;
      left -= part;
    }
  }
  element_ += count;
  skip_full_tensors();
}

void SafetensorsWriter::commit() {
  if (!complete()) {
    throw_invalid(concat(file_.path(), ": committed before tensor '", tensors_[turn_].name,
                         "' was whole: ", element_, " of ", tensors_[turn_].shape.numel(),
                         " elements written"));
  }
  file_.commit();
}

std::vector<std::size_t> plan_shards(const std::vector<TensorDeclaration>& tensors,
                                     std::int64_t max_bytes) {
  std::vector<std::size_t> plan;
  std::int64_t bytes = 0;
  for (const TensorDeclaration& tensor : tensors) {
    if (plan.empty() || (bytes > 0 && tensor.bytes() > max_bytes - bytes)) {
      plan.push_back(0);
      bytes = 0;
    }
    ++plan.back();
    bytes += tensor.bytes();
  }
  if (plan.empty()) plan.push_back(0);
  return plan;
}

std::string shard_file_name(std::size_t shard, std::size_t shards) {
  if (shards == 1) return "model.safetensors";
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", shard + 1, shards);
  return name;
}

std::string shard_index(const std::vector<TensorDeclaration>& tensors,
                        const std::vector<std::size_t>& plan) {
  std::map<std::string, std::string> files;
  std::int64_t bytes = 0;
  std::int64_t parameters = 0;
  std::size_t next = 0;
  for (std::size_t shard = 0; shard < plan.size(); ++shard) {
    for (std::size_t i = 0; i < plan[shard]; ++i, ++next) {
      files[tensors[next].name] = shard_file_name(shard, plan.size());
      bytes += tensors[next].bytes();
      parameters += tensors[next].shape.numel();
    }
  }
  const nlohmann::json index = {
      {"metadata", {{"total_parameters", parameters}, {"total_size", bytes}}},
      {"weight_map", files}};
  return index.dump(2) + "\n";
}

}  // namespace zero3d
