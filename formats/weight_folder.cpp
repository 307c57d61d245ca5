#include "zero3d/formats/weight_folder.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/problem_list.h"
#include "zero3d/formats/safetensors_header.h"
#include "zero3d/formats/torch_weights.h"

namespace zero3d {
namespace {

constexpr const char* kDamaged =
    "damaged model folder (get the files that are wrong or missing anew, of one release)";
constexpr std::size_t kMaxUnreadable = 8;  // an index may name a million files that are not there

/// A form of weights, as transformers names its files; the first one that is there counts.
struct Form {
  std::string_view file;
  std::string_view index;
  std::string_view suffix;
};
constexpr Form kForms[] = {{"model.safetensors", "model.safetensors.index.json", ".safetensors"},
                           {"pytorch_model.bin", "pytorch_model.bin.index.json", ".bin"}};

bool is_there(const std::filesystem::path& path) {
  std::error_code code;
  return std::filesystem::exists(path, code);
}

const Form* find_form(const std::filesystem::path& folder) {
  for (const Form& form : kForms)
    if (is_there(folder / form.file) || is_there(folder / form.index)) return &form;
  return nullptr;
}

/// By its name: what torch.save writes, or safetensors.
std::unique_ptr<WeightFile> open_weight_file(const std::string& path) {
  for (const std::string_view suffix : {".bin", ".pt", ".pth"})
    if (path.ends_with(suffix)) return std::make_unique<TorchWeightFile>(path);
  return std::make_unique<SafetensorsFile>(path);
}

/// Weights of the right form under names that nobody looks for.
std::string misnamed_weights(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code code;
  for (std::filesystem::directory_iterator it(folder, code), end; !code && it != end;
       it.increment(code)) {
    const std::string name = it->path().filename().string();
    const bool weights = name.ends_with(".safetensors") ||
                         (name.ends_with(".bin") && name.starts_with("pytorch_model"));
    if (weights && !name.starts_with("adapter_model")) names.push_back(name);
  }
  if (names.empty()) return "";
  std::sort(names.begin(), names.end());
  const bool shards = names.front().find("-of-") != std::string::npos;
  return concat("; there ", names.size() == 1 ? "is " : "are ", name_list(names, 3),
                shards ? ": get the index that says which tensors each of the shards has"
                       : ": rename the one that has the weights");
}

/// Why a folder has no weights for us, with what it has instead.
std::string no_weights(const std::filesystem::path& folder) {
  std::string text =
      "expected model.safetensors, model.safetensors.index.json, pytorch_model.bin or "
      "pytorch_model.bin.index.json in the folder, found none of them";
  if (is_there(folder / "adapter_model.safetensors") || is_there(folder / "adapter_config.json")) {
    text +=
        "; it holds an adapter (LoRA): merge it into its base model (merge_and_unload) and save "
        "that";
  }
  return text + misnamed_weights(folder) + other_weights(folder.string());
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

WeightFolder::WeightFolder(std::string path) : path_(std::move(path)) {
  const std::filesystem::path folder(path_);
  std::error_code code;
  if (!std::filesystem::exists(folder, code)) {
    throw IoError(path_, code ? code.value() : ENOENT,
                  concat("no such model folder (looked from ",
                         std::filesystem::current_path(code).string(), ")"));
  }
  if (!std::filesystem::is_directory(folder, code)) {
    files_.push_back(open_weight_file(path_));
  } else if (const Form* form = find_form(folder); form == nullptr) {
    throw IoError(path_, 0, no_weights(folder));
  } else if (is_there(folder / form->file)) {
    files_.push_back(open_weight_file((folder / form->file).string()));
  } else {
    open_shards((folder / form->index).string(), form->suffix);
  }
  for (const auto& file : files_) {
    for (const SafetensorsEntry& entry : file->tensors()) {
      tensors_.emplace(entry.name, Tensor{&entry, file.get()});
    }
  }
}

void WeightFolder::open_shards(const std::string& index_path, std::string_view suffix) {
  const auto weight_map = parse_safetensors_index(
      index_path, InputFile(index_path).read_all(SafetensorsFile::kMaxHeaderBytes), suffix);
  std::set<std::string> names;
  for (const auto& [tensor, file] : weight_map) names.insert(file);

  ProblemList problems;
  std::map<std::string_view, std::string_view> found;  // tensor -> shard
  std::set<std::string_view> unreadable;
  for (const std::string& name : names) {
    try {
      files_.push_back(open_weight_file((std::filesystem::path(path_) / name).string()));
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
  if (unreadable.size() == kMaxUnreadable) problems.throw_if_any(path_, kDamaged);
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
  problems.throw_if_any(path_, kDamaged);
}

const WeightFolder::Tensor* WeightFolder::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

void WeightFolder::read(std::string_view name, std::int64_t first, const View& dst) const {
  const Tensor* tensor = find(name);
  if (tensor == nullptr) throw IoError(path_, 0, concat("no tensor ", printable(name)));
  tensor->file->read(*tensor->entry, first, dst);
}

}  // namespace zero3d
