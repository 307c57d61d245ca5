// The files of a model's folder that go with an export.
#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/output_file.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/input_file.h"
#include "zero3d/formats/lfs_pointer.h"
#include "zero3d/models/hf_folder.h"

namespace zero3d {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{256} << 20;

/// As save_pretrained of a tokenizer and of a generation config, and the published folders, name
/// them.
bool goes_with_a_model(std::string_view name) {
  static constexpr std::array<std::string_view, 8> kBeginnings = {
      "generation_config", "tokenizer",     "special_tokens_map", "added_tokens", "vocab.",
      "merges.txt",        "chat_template", "sentencepiece"};
  static constexpr std::array<std::string_view, 2> kNames = {"spiece.model", "tekken.json"};
  return std::ranges::any_of(kBeginnings, [&](auto begin) { return name.starts_with(begin); }) ||
         std::ranges::find(kNames, name) != kNames.end() || name.ends_with(".tiktoken");
}

/// What every export has of its own.
bool is_replaced(const fs::path& path) {
  const std::string name = path.filename().string();
  return name == "config.json" || name.ends_with(".safetensors") ||
         name.ends_with(".safetensors.index.json");
}

/// False when it cannot be read, was never fetched, or is larger than such files are.
bool carry_file(const fs::path& from, const fs::path& to) {
  std::string text;
  try {
    text = InputFile(from.string()).read_all(kMaxFileBytes);
  } catch (const IoError&) {
    return false;
  }
  if (is_lfs_pointer(text)) {
    log_warning(concat(from.string(), " ", kIsLfsPointer, "; the export goes without it"));
    return false;
  }
  write_text_file(to.string(), text);
  return true;
}

}  // namespace

std::vector<std::string> carry_model_files(const std::string& from, const std::string& to) {
  std::vector<std::string> left;
  std::error_code code;
  if (!fs::is_directory(from, code) || fs::equivalent(from, to, code)) return left;
  for (fs::directory_iterator it(from, code), end; !code && it != end; it.increment(code)) {
    const fs::path& path = it->path();
    const std::string name = path.filename().string();
    if (is_replaced(path) || name.starts_with(".")) continue;
    if (!goes_with_a_model(name) || !carry_file(path, fs::path(to) / name)) left.push_back(name);
  }
  std::ranges::sort(left);
  return left;
}

}  // namespace zero3d
