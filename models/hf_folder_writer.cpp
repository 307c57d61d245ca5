// FolderWriter: the folder grows under a temporary name and takes its place in one rename.
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/output_file.h"
#include "zero3d/core/replace_path.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/input_file.h"
#include "zero3d/models/hf_folder.h"

namespace zero3d {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigName = "config.json";
constexpr const char* kIndexName = "model.safetensors.index.json";

/// The folder itself where `path` is a link to one, absolute, without a slash at its end: what can
/// be renamed.
fs::path resolved(const std::string& path) {
  std::error_code code;
  fs::path target = fs::absolute(fs::path(path), code);
  if (!code) target = fs::weakly_canonical(target, code);
  if (code) throw IoError(path, code.value(), "cannot resolve the path");
  return target.has_filename() ? target : target.parent_path();
}

bool is_model_config(const fs::path& path) {
  try {
    const auto config =
        nlohmann::json::parse(InputFile(path.string()).read_all(1 << 24), nullptr, false);
    return config.is_object() &&
           (config.contains("model_type") || config.contains("architectures"));
  } catch (const IoError&) {
    return false;
  }
}

/// Refuses a target whose files are not a model's: they are not ours to replace.
void check_target(const fs::path& target) {
  std::error_code code;
  if (!fs::exists(target, code)) {
    if (!fs::is_symlink(target, code)) return;
    throw IoError(target.string(), 0,
                  concat("is a link to ", fs::read_symlink(target, code).string(),
                         ", which is not there; make that folder, or export to another"));
  }
  if (!fs::is_directory(target, code)) {
    throw IoError(target.string(), ENOTDIR, "expected a folder to export to");
  }
  if (fs::is_empty(target, code) || is_model_config(target / kConfigName)) return;
  throw IoError(
      target.string(), 0,
      "the folder holds files but no config.json of a model, so it is not replaced; export "
      "to another folder");
}

/// What an export of a model writes, and so what a new one does not keep of the folder it replaces.
bool is_exported_file(const std::string& name) {
  std::size_t shard = 0;
  std::size_t shards = 0;
  return name == kConfigName || name == kIndexName || name == "model.safetensors" ||
         (std::sscanf(name.c_str(), "model-%5zu-of-%5zu.safetensors", &shard, &shards) == 2 &&
          shard > 0 && name == shard_file_name(shard - 1, shards));
}

/// Gives `to` the other files of `from`, as hard links where the file system has them.
void keep_other_files(const fs::path& from, const fs::path& to) {
  constexpr auto kCopy = fs::copy_options::recursive | fs::copy_options::copy_symlinks;
  std::error_code code;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(from, code), end; !code && it != end; it.increment(code)) {
    entries.push_back(it->path());
  }
  if (code) throw IoError(from.string(), code.value(), "cannot list the folder");
  for (const fs::path& entry : entries) {
    const std::string name = entry.filename().string();
    if (is_exported_file(name) || fs::exists(to / name, code)) continue;
    fs::copy(entry, to / name, kCopy | fs::copy_options::create_hard_links, code);
    if (!code) continue;
    fs::remove_all(to / name, code);
    fs::copy(entry, to / name, kCopy, code);
    if (code) {
      throw IoError(entry.string(), code.value(),
                    "cannot be kept beside the new weights; nothing was replaced");
    }
  }
}

/// Under the first free name of "<path>.kept", "<path>.kept2", ...; "" when it cannot be moved.
std::string keep_aside(const fs::path& complete, const std::string& path) {
  for (int number = 1; number < 100; ++number) {
    const std::string name = concat(path, ".kept", number > 1 ? std::to_string(number) : "");
    std::error_code code;
    if (fs::exists(fs::symlink_status(name, code))) continue;
    fs::rename(complete, name, code);
    return code ? "" : name;
  }
  return "";
}

}  // namespace

FolderWriter::FolderWriter(const std::string& path, const std::string& config_json,
                           std::vector<TensorDeclaration> tensors, std::int64_t max_shard_bytes,
                           Check check)
    : path_(resolved(path).string()),
      tensors_(std::move(tensors)),
      plan_(plan_shards(tensors_, max_shard_bytes)) {
  if (check == Check::now) check_target(path_);
  std::error_code code;
  fs::create_directories(fs::path(path_).parent_path(), code);
  temporary_.emplace(path_, TemporaryPath::Kind::folder);
  write_text_file((fs::path(temporary_->path()) / kConfigName).string(), config_json);
  open_shards_until_incomplete();
}

void FolderWriter::open_shards_until_incomplete() {
  while (shard_ < plan_.size()) {
    if (writer_ == nullptr) {
      const auto begin = tensors_.begin() + static_cast<std::ptrdiff_t>(shard_begin_);
      writer_ = std::make_unique<SafetensorsWriter>(
          (fs::path(temporary_->path()) / shard_file_name(shard_, plan_.size())).string(),
          std::vector<TensorDeclaration>(begin, begin + static_cast<std::ptrdiff_t>(plan_[shard_])),
          std::map<std::string, std::string>{{"format", "pt"}});
    }
    if (!writer_->complete()) return;
    writer_->commit();
    writer_.reset();
    shard_begin_ += plan_[shard_++];
  }
}

void FolderWriter::write(std::string_view name, ConstView values) {
  if (writer_ == nullptr) {
    throw_invalid(concat(path_, ": tensor '", name, "' written after the last one"));
  }
  writer_->write(name, values);
  open_shards_until_incomplete();
}

std::vector<std::string> FolderWriter::carry(const std::string& from) {
  ZERO3D_CHECK(temporary_, "files carried into an export that is committed");
  return carry_model_files(from, temporary_->path());
}

/// The export becomes what `path_` names.
void FolderWriter::take_place(const std::string& temporary) {
  check_target(path_);
  std::error_code code;
  const bool replaces = fs::exists(path_, code);
  if (replaces) keep_other_files(path_, temporary);
  sync_folder(temporary);
  if (replaces) {
    replace_path(temporary, path_);
  } else {
    fs::rename(temporary, path_, code);
    if (code) throw IoError(path_, code.value(), "cannot move the complete export to its name");
    temporary_->release();
  }
  sync_folder(fs::path(path_).parent_path().string());
}

void FolderWriter::commit() {
  if (writer_ != nullptr) writer_->commit();  // throws: tensors are missing
  ZERO3D_CHECK(temporary_, "export committed twice");
  const fs::path temporary(temporary_->path());
  if (plan_.size() > 1) {
    write_text_file((temporary / kIndexName).string(), shard_index(tensors_, plan_));
  }
  std::error_code code;
  try {
    take_place(temporary.string());
  } catch (const Error& error) {  // what stands there came since the run began: lose neither
    const std::string kept = keep_aside(temporary, path_);
    if (kept.empty()) throw;
    temporary_->release();
    throw Error(error.kind(), concat(error.what(), "; the complete export is kept as ", kept));
  }
  code = temporary_->remove();  // the old one, where there was one
  if (code)
    log_warning(concat("the old export is left as ", temporary.string(), ": ", code.message()));
  temporary_.reset();
}

}  // namespace zero3d
