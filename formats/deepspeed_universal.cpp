// The layout of ds_to_universal (deepspeed/checkpoint/ds_to_universal.py): a folder for each
// parameter under "zero", with a file for its masters and one for each of its states, beside model
// files as save_checkpoint writes them.
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/deepspeed_shards.h"
#include "zero3d/formats/problem_list.h"

namespace zero3d {
namespace {

namespace fs = std::filesystem;

/// What the model files say of a parameter.
struct Listed {
  std::vector<std::int64_t> shape;
  int group = -1;  ///< -1: frozen.
};

struct Listing {
  std::vector<std::string> order;
  std::map<std::string, Listed> parameters;

  void add(const NamedShapes& shapes, int group) {
    for (const auto& [name, shape] : shapes)
      if (parameters.emplace(name, Listed{shape, group}).second) order.push_back(name);
  }
};

Listing list_parameters_of(const TorchArchive& model) {
  Listing listing;
  const PickleValue groups = model.root().find("param_shapes");
  for (std::size_t i = 0; i < groups.size(); ++i)
    listing.add(named_shapes(model, groups[i]), static_cast<int>(i));
  if (const PickleValue frozen = model.root().find("frozen_param_shapes"))
    listing.add(named_shapes(model, frozen), -1);
  return listing;
}

std::vector<std::string> sorted_names(const fs::path& folder, bool folders) {
  std::vector<std::string> names;
  std::error_code code;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code))
    if (it->is_directory(code) == folders) names.push_back(it->path().filename().string());
  std::ranges::sort(names);
  return names;
}

/// The tensor of a file: plain, or under "param" beside how ranks cut it.
const PickleTensor& tensor_of(const TorchArchive& archive) {
  const PickleValue root = archive.root();
  const PickleValue value = root.is(PickleKind::dict) ? root.find("param") : root;
  if (value.tensor() == nullptr)
    throw IoError(archive.path(), 0,
                  concat("expected a tensor, or one under 'param', found ", value.describe()));
  return *value.tensor();
}

class UniversalReader {
 public:
  UniversalReader(const DeepspeedFiles& files, DeepspeedContents& contents)
      : folder_(fs::path(files.folder) / "zero"), contents_(contents) {
    read_models(files);
    read_optimizer();
  }

  void read_parameters() {
    std::set<std::string> there;
    for (std::string& name : sorted_names(folder_, true)) there.insert(std::move(name));
    std::vector<std::string> order;
    for (const std::string& name : listing_.order)
      if (there.erase(name) != 0)
        order.push_back(name);
      else
        missing_.push_back(name);
    if (!missing_.empty())
      throw IoError(folder_.string(), 0,
                    concat("incomplete checkpoint: no folder for ", name_list(missing_)));
    for (const std::string& name : there) {
      const auto alias = contents_.facts.aliases.find(name);
      if (alias == contents_.facts.aliases.end() || !listing_.parameters.contains(alias->second))
        order.push_back(name);
    }
    for (const std::string& name : order) read_parameter(name);
  }

 private:
  void read_models(const DeepspeedFiles& files) {
    std::vector<std::string> paths;
    for (const auto& [rank, path] : files.models) paths.push_back(path);
    if (paths.empty() && !files.shard_models.empty())
      paths.push_back(files.shard_models.begin()->second);
    for (const std::string& path : paths) {
      const TorchArchive& model = contents_.open(path);
      if (path == paths.front()) read_model_facts(model, contents_.facts);
      const PickleValue module = model.root().find("module");
      if (!contents_.facts.dtype) contents_.facts.dtype = weight_dtype(module);
      const Listing more = list_parameters_of(model);
      for (const std::string& name : more.order)
        if (listing_.parameters.emplace(name, more.parameters.at(name)).second)
          listing_.order.push_back(name);
    }
    contents_.facts.universal = true;
  }

  void read_optimizer() {
    std::error_code code;
    const std::string path = (folder_ / "optimizer_state.pt").string();
    if (!fs::exists(path, code)) return;
    const TorchArchive& archive = contents_.open(path);
    const PickleValue root = archive.root();
    read_optimizer_facts(archive, root, root, contents_.facts);
    const PickleValue inner = root.find("optimizer_state_dict");
    std::size_t group = 0;
    const auto states = states_by_id(inner);
    for (const auto& ids : group_ids(archive, inner)) {
      const auto found = ids.empty() ? states.end() : states.find(ids.front());
      if (found != states.end() && group < contents_.facts.groups.size() &&
          found->second.find("step"))
        contents_.facts.groups[group].step = counter(archive, found->second.find("step"));
      ++group;
    }
  }

  void read_parameter(const std::string& name) {
    const fs::path folder = folder_ / name;
    const auto listed = listing_.parameters.find(name);
    const int group = listed == listing_.parameters.end() ? -1 : listed->second.group;
    auto& groups = contents_.facts.groups;
    if (group >= 0 && groups.size() <= static_cast<std::size_t>(group))
      groups.resize(static_cast<std::size_t>(group) + 1);
    const TorchArchive& masters = contents_.open((folder / "fp32.pt").string());
    const PickleTensor& tensor = tensor_of(masters);
    std::vector<std::int64_t> shape = tensor.shape;
    if (listed != listing_.parameters.end() && shape.size() == 1 &&
        numel_of(listed->second.shape) == shape[0])
      shape = listed->second.shape;
    contents_.declare(masters, name, shape);
    add(masters, name, DeepspeedCheckpoint::kMaster);
    bool states = false;
    for (const std::string& file : sorted_names(folder, false)) {
      if (!file.ends_with(".pt") || file == "fp32.pt") continue;
      const TorchArchive& archive = contents_.open((folder / file).string());
      if (file == "step.pt") {
        if (group >= 0)
          groups[static_cast<std::size_t>(group)].step = counter(archive, archive.root());
        continue;
      }
      add(archive, name, file.substr(0, file.size() - 3));
      states = true;
    }
    DeepspeedParameter& parameter = contents_.declare(masters, name, shape);
    parameter.frozen = group < 0 && !states;
    parameter.group = group;
    if (group >= 0) parameter.step = groups[static_cast<std::size_t>(group)].step;
  }

  void add(const TorchArchive& archive, const std::string& name, std::string_view what) {
    const PickleTensor& tensor = tensor_of(archive);
    contents_.add_piece(name, what, {&archive, &tensor, 0, 0, tensor.numel()});
  }

  const fs::path folder_;
  DeepspeedContents& contents_;
  Listing listing_;
  std::vector<std::string> missing_;
};

}  // namespace

void read_deepspeed_universal(const DeepspeedFiles& files, DeepspeedContents& contents) {
  UniversalReader(files, contents).read_parameters();
  DeepspeedFacts& facts = contents.facts;
  facts.pipeline =
      std::ranges::any_of(contents.parameters, [](const DeepspeedParameter& parameter) {
        return parameter.name.starts_with("tied_modules.") ||
               (parameter.name[0] >= '0' && parameter.name[0] <= '9');
      });
}

}  // namespace zero3d
