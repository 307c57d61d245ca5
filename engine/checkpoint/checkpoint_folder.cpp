#include "zero3d/engine/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>

#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/output_file.h"
#include "zero3d/core/replace_path.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/checkpoint/manifest.h"
#include "zero3d/formats/input_file.h"
#include "zero3d/formats/problem_list.h"

namespace zero3d {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepTag = "global_step";
constexpr std::uint64_t kMaxTag = 4096;

std::optional<std::int64_t> step_of_tag(std::string_view tag) {
  if (!tag.starts_with(kStepTag)) return std::nullopt;
  const std::string_view digits = tag.substr(kStepTag.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size() || step < 0) return std::nullopt;
  return step;
}

/// What is left of a checkpoint without its manifest: rank-00000.bin and such alone.
bool is_partial(const fs::path& folder) {
  std::error_code code;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with("rank-")) return false;
  }
  return !code;
}

void require_replaceable(const fs::path& target) {
  std::error_code code;
  if (!fs::exists(fs::symlink_status(target, code))) return;
  if (!fs::is_directory(target, code))
    throw IoError(target.string(), ENOTDIR, "expected a folder to save to");
  if (is_checkpoint(target.string())) return;
  if (is_partial(target)) {
    log_warning(concat(target.string(), ": the folder has no whole checkpoint; it is replaced"));
    return;
  }
  throw IoError(target.string(), 0,
                "the folder holds files that are no checkpoint of zero3d, so it is not replaced; "
                "save to another folder");
}

}  // namespace

std::string tag_of_step(std::int64_t step) { return concat(kStepTag, step); }

void require_tag(std::string_view tag) {
  if (!tag.empty() && tag != "." && tag != ".." && tag != kLatestName && tag.size() < 200 &&
      tag.find_first_of(std::string_view("/\n\0", 3)) == std::string_view::npos)
    return;
  throw_invalid(concat("a checkpoint's tag is ", printable(tag),
                       "; expected a plain name for a folder, such as global_step10"));
}

std::optional<std::string> read_latest(const std::string& folder) {
  const fs::path file = fs::path(folder) / kLatestName;
  std::error_code code;
  if (!fs::exists(file, code)) return std::nullopt;
  std::string tag = InputFile(file.string()).read_all(kMaxTag);
  while (!tag.empty() && (tag.back() == '\n' || tag.back() == '\r' || tag.back() == ' '))
    tag.pop_back();
  try {
    require_tag(tag);
  } catch (const Error& error) {
    throw IoError(file.string(), 0, error.what());
  }
  return tag;
}

bool is_checkpoint(const std::string& folder) {
  std::error_code code;
  return fs::is_regular_file(fs::path(folder) / CheckpointManifest::kName, code);
}

std::string find_checkpoint(const std::string& folder, const std::string& tag) {
  std::error_code code;
  if (!fs::is_directory(folder, code))
    throw IoError(folder, fs::exists(folder, code) ? ENOTDIR : ENOENT,
                  "expected a folder with a checkpoint");
  std::string wanted = tag;
  if (wanted.empty()) {
    if (is_checkpoint(folder)) return folder;
    const std::optional<std::string> latest = read_latest(folder);
    if (!latest) return folder;
    wanted = *latest;
  }
  const std::string path = (fs::path(folder) / wanted).string();
  if (!fs::is_directory(path, code)) {
    throw IoError(path, ENOENT,
                  concat("there is no such checkpoint",
                         tag.empty() ? concat(", though ", folder, "/", kLatestName, " names it")
                                     : std::string()));
  }
  return path;
}

CheckpointFolder::CheckpointFolder(std::string folder, std::string tag)
    : folder_(std::move(folder)), tag_(std::move(tag)) {
  require_tag(tag_);
  target_ = (fs::path(folder_) / tag_).string();
  std::error_code code;
  fs::create_directories(folder_, code);
  if (code) throw IoError(folder_, code.value(), "cannot create the folder");
  require_replaceable(target_);
  for (const std::string& path : TemporaryPath::abandoned_in(folder_)) {
    log_warning(concat(path, " is left of a save that was interrupted; it is removed"));
    TemporaryPath::remove_abandoned(path);
  }
  temporary_.emplace(target_, TemporaryPath::Kind::folder);
}

void CheckpointFolder::commit(const std::string& manifest, bool save_latest) {
  ZERO3D_CHECK(temporary_, "a checkpoint committed twice");
  const std::string writing = temporary_->path();
  write_text_file((fs::path(writing) / CheckpointManifest::kName).string(), manifest);
  sync_folder(writing);
  require_replaceable(target_);
  std::error_code code;
  if (fs::exists(target_, code)) {
    replace_path(writing, target_);
    sync_folder(folder_);
    if (const std::error_code left = temporary_->remove())
      log_warning(concat("the old checkpoint is left as ", writing, ": ", left.message()));
  } else {
    fs::rename(writing, target_, code);
    if (code) throw IoError(target_, code.value(), "cannot move the complete checkpoint there");
    temporary_->release();
    sync_folder(folder_);
  }
  temporary_.reset();
  if (save_latest) write_text_file((fs::path(folder_) / kLatestName).string(), tag_);
}

void keep_last(const std::string& folder, int keep, const std::string& kept) {
  std::vector<std::pair<std::int64_t, std::string>> found;
  std::vector<fs::path> partial;  // removals that were interrupted
  std::error_code code;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code)) {
    const std::string tag = it->path().filename().string();
    const auto step = step_of_tag(tag);
    if (!step || !it->is_directory(code)) continue;
    if (is_checkpoint(it->path().string()))
      found.emplace_back(*step, tag);
    else if (is_partial(it->path()))
      partial.push_back(it->path());
  }
  if (code) throw IoError(folder, code.value(), "cannot list the folder");
  for (const fs::path& path : partial) fs::remove_all(path, code);
  std::sort(found.begin(), found.end());
  const std::string latest = read_latest(folder).value_or("");
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < found.size(); ++i) {
    const std::string& tag = found[i].second;
    if (tag == kept || tag == latest) continue;
    const fs::path path = fs::path(folder) / tag;
    // The manifest first: what is left of a removal that is interrupted is no checkpoint.
    fs::remove(path / CheckpointManifest::kName, code);
    if (!code) fs::remove_all(path, code);
    if (code) throw IoError(path.string(), code.value(), "the old checkpoint cannot be removed");
  }
}

}  // namespace zero3d
