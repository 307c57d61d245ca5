#include "zero3d/formats/deepspeed_files.h"

#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/input_file.h"
#include "zero3d/formats/problem_list.h"

namespace zero3d {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxTagBytes = 4096;

/// Takes `text` off the front of a name.
bool take(std::string_view& name, std::string_view text) {
  if (!name.starts_with(text)) return false;
  name.remove_prefix(text.size());
  return true;
}

bool take(std::string_view& name, int& number) {
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || number < 0) return false;
  name.remove_prefix(static_cast<std::size_t>(end - name.data()));
  return true;
}

/// "zero_pp_rank_3_mp_rank_00" and what follows in `name`.
bool take_ranks(std::string_view& name, DeepspeedFiles::RankPair& ranks) {
  return take(name, "zero_pp_rank_") && take(name, ranks.first) && take(name, "_mp_rank_") &&
         take(name, ranks.second);
}

void classify(std::string_view name, const std::string& path, DeepspeedFiles& files) {
  std::string_view rest = name;
  DeepspeedFiles::RankPair ranks;
  int rank = 0;
  if (take(rest, "mp_rank_") && take(rest, rank) && rest == "_model_states.pt")
    files.models[rank] = path;
  rest = name;
  if (take_ranks(rest, ranks) && rest == "_model_states.pt") files.shard_models[ranks] = path;
  rest = name;
  if (!take(rest, "bf16_")) take(rest, "fp16_");
  if (take_ranks(rest, ranks) && (rest == "_optim_states.pt" || rest == "optim_states.pt"))
    files.optimizers[ranks] = path;
  rest = name;
  std::pair<int, int> layer;
  if (take(rest, "layer_") && take(rest, layer.first)) {
    if (rest.starts_with("_expert_")) files.experts.push_back(path);
    if (!take(rest, "-model_") || rest == "states.pt")
      layer.second = 0;
    else if (!take(rest, layer.second) || !take(rest, "-model_"))
      return;
    if (rest == "states.pt") files.layers[layer] = path;
  }
  if (name.starts_with("expp_rank_") || name.starts_with("expert_")) files.experts.push_back(path);
}

std::optional<std::string> read_tag(const fs::path& folder, const char* file) {
  std::error_code code;
  if (!fs::is_regular_file(folder / file, code)) return std::nullopt;
  const std::string path = (folder / file).string();
  std::string tag = InputFile(path).read_all(kMaxTagBytes);
  while (!tag.empty() && (tag.back() == '\n' || tag.back() == '\r' || tag.back() == ' '))
    tag.pop_back();
  const fs::path relative(tag);
  bool inside = !tag.empty() && relative.is_relative();
  for (const fs::path& part : relative) inside = inside && part != "..";
  if (!inside)
    throw IoError(
        path, 0,
        concat("expected the name of a checkpoint's folder beside it, found ", printable(tag)));
  return tag;
}

}  // namespace

DeepspeedFiles list_deepspeed_files(const std::string& folder) {
  DeepspeedFiles files;
  files.folder = folder;
  std::error_code code;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code))
    classify(it->path().filename().string(), it->path().string(), files);
  const fs::path zero = fs::path(folder) / "zero";
  files.universal = fs::is_directory(zero, code) &&
                    (files.any() || fs::exists(zero / "optimizer_state.pt", code));
  return files;
}

std::string find_deepspeed_tag(const std::string& path) {
  for (const char* file : {"latest", "latest_universal"}) {
    const auto tag = read_tag(path, file);
    if (!tag) continue;
    const std::string folder = (fs::path(path) / *tag).string();
    return list_deepspeed_files(folder).any() ? folder : "";
  }
  return list_deepspeed_files(path).any() ? path : "";
}

}  // namespace zero3d
