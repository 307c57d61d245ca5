#include "zero3d/formats/safetensors.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <filesystem>
#include <map>
#include <set>
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

constexpr std::size_t kMaxUnreadable = 8;  // an index may name a million files that are not there

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
                         file.bytes(), " bytes in all"));
  }
  std::uint64_t bytes = 0;
  file.read(0, &bytes, sizeof bytes);
  refuse_lfs_pointer(file);
  if (bytes > SafetensorsFile::kMaxHeaderBytes) {
    throw IoError(file.path(), 0,
                  concat("no safetensors file: its first 8 bytes give a header of ", bytes,
                         " bytes, the format allows ", SafetensorsFile::kMaxHeaderBytes));
  }
  if (bytes > file.bytes() - 8) {
    throw IoError(file.path(), 0,
                  concat("truncated safetensors file: expected a header of ", bytes,
                         " bytes, found ", file.bytes() - 8));
  }
  std::string text(static_cast<std::size_t>(bytes), '\0');
  file.read(8, text.data(), text.size());
  return text;
}

bool is_there(const std::filesystem::path& path) {
  std::error_code code;
  return std::filesystem::exists(path, code);
}

/// Why a folder has no weights for us, with what it has instead.
std::string no_weights(const std::filesystem::path& folder) {
  std::string text =
      "expected model.safetensors or model.safetensors.index.json in the folder, found neither";
  if (is_there(folder / "adapter_model.safetensors") || is_there(folder / "adapter_config.json")) {
    text +=
        "; it holds an adapter (LoRA): merge it into its base model (merge_and_unload) and save "
        "that";
  }
  return text + other_weights(folder.string());
}

}  // namespace

std::string other_weights(const std::string& folder) {
  constexpr std::string_view kSaveAgain =
      "load the model in transformers and save it with save_pretrained, which writes safetensors";
  struct Kind {
    std::string_view end;
    std::string_view what;
    std::string_view advice;
  };
  static constexpr Kind kKinds[] = {
      {".gguf", "quantized for llama.cpp", "give the folder that it was converted from"},
      {"pytorch_model.bin", "pickled by PyTorch", kSaveAgain},
      {"pytorch_model.bin.index.json", "pickled by PyTorch", kSaveAgain},
      {".pth", "pickled by PyTorch", "convert them for transformers, which writes safetensors"},
      {".pt", "pickled by PyTorch", kSaveAgain},
      {".ckpt", "of a training checkpoint", kSaveAgain},
      {".msgpack", "of Flax", kSaveAgain},
      {".h5", "of TensorFlow", kSaveAgain}};
  std::map<const Kind*, std::vector<std::string>> found;
  std::error_code code;
  for (std::filesystem::directory_iterator it(folder, code), end; !code && it != end;
       it.increment(code)) {
    const std::string name = it->path().filename().string();
    for (const Kind& kind : kKinds)
      if (name.ends_with(kind.end)) found[&kind].push_back(name);
  }
  std::string text;
  for (auto& [kind, names] : found) {
    std::sort(names.begin(), names.end());
    text += concat("; ", name_list(names, 3), names.size() == 1 ? " holds" : " hold", " weights ",
                   kind->what, ", which are not read: ", kind->advice);
  }
  return text;
}

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

SafetensorsFolder::SafetensorsFolder(std::string path) : path_(std::move(path)) {
  const std::filesystem::path folder(path_);
  std::error_code code;
  if (!std::filesystem::exists(folder, code)) {
    throw IoError(path_, code ? code.value() : ENOENT,
                  concat("no such model folder (looked from ",
                         std::filesystem::current_path(code).string(), ")"));
  }
  if (!std::filesystem::is_directory(folder, code)) {
    files_.push_back(std::make_unique<SafetensorsFile>(path_));
  } else if (is_there(folder / "model.safetensors")) {
    files_.push_back(std::make_unique<SafetensorsFile>((folder / "model.safetensors").string()));
  } else if (is_there(folder / "model.safetensors.index.json")) {
    open_shards((folder / "model.safetensors.index.json").string());
  } else {
    throw IoError(path_, 0, no_weights(folder));
  }
  for (const auto& file : files_) {
    for (const SafetensorsEntry& entry : file->tensors()) {
      tensors_.emplace(entry.name, Tensor{&entry, file.get()});
    }
  }
}

void SafetensorsFolder::open_shards(const std::string& index_path) {
  const auto weight_map = parse_safetensors_index(
      index_path, InputFile(index_path).read_all(SafetensorsFile::kMaxHeaderBytes));
  std::set<std::string> names;
  for (const auto& [tensor, file] : weight_map) names.insert(file);

  ProblemList problems;
  std::map<std::string_view, std::string_view> found;  // tensor -> shard
  std::set<std::string_view> unreadable;
  for (const std::string& name : names) {
    try {
      files_.push_back(
          std::make_unique<SafetensorsFile>((std::filesystem::path(path_) / name).string()));
    } catch (const IoError& error) {
      problems.add(error.what());
      unreadable.insert(name);
      if (unreadable.size() < kMaxUnreadable) continue;
      problems.add("the files after these were not looked at");
      break;
    }
    for (const SafetensorsEntry& entry : files_.back()->tensors()) {
      const auto [it, fresh] = found.emplace(entry.name, name);
      if (!fresh) {
        problems.add(
            concat("tensor ", printable(entry.name), " is in ", it->second, " and in ", name));
      }
    }
  }
  if (unreadable.size() == kMaxUnreadable) problems.throw_if_any(path_, "damaged model folder");
  for (const auto& [tensor, file] : weight_map) {
    const auto it = found.find(tensor);
    if (it != found.end() && it->second != file) {
      problems.add(concat("tensor ", printable(tensor), ": the index says ", file, ", it is in ",
                          it->second));
    } else if (it == found.end() && unreadable.count(file) == 0) {
      problems.add(
          concat("tensor ", printable(tensor), ": the index says ", file, ", it is not there"));
    }
  }
  problems.throw_if_any(path_, "damaged model folder");
}

const SafetensorsFolder::Tensor* SafetensorsFolder::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

void SafetensorsFolder::read(std::string_view name, std::int64_t first, const View& dst) const {
  const Tensor* tensor = find(name);
  if (tensor == nullptr) throw IoError(path_, 0, concat("no tensor ", printable(name)));
  tensor->file->read(*tensor->entry, first, dst);
}

}  // namespace zero3d
