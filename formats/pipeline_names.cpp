#include "zero3d/formats/pipeline_names.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/problem_list.h"
#include "zero3d/formats/safetensors.h"

namespace zero3d {
namespace {

using Shapes = std::vector<NamedShape>;

std::string_view base_name(std::string_view name) {
  for (const std::string_view prefix : {"module.", "transformer.", "model."})
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  return name;
}

/// Parts between dots that agree from the end.
int common_parts(std::string_view a, std::string_view b) {
  for (int parts = 0;; ++parts) {
    const std::size_t x = a.rfind('.'), y = b.rfind('.');
    const std::string_view last_a = x == std::string_view::npos ? a : a.substr(x + 1);
    const std::string_view last_b = y == std::string_view::npos ? b : b.substr(y + 1);
    if (last_a != last_b) return parts;
    if (x == std::string_view::npos || y == std::string_view::npos) return parts + 1;
    a = a.substr(0, x);
    b = b.substr(0, y);
  }
}

std::string list(const Shapes& shapes) {
  std::vector<std::string> names;
  for (const NamedShape& shape : shapes) names.push_back(shape.name + ' ' + to_string(shape.shape));
  return name_list(names, 16);
}

/// Pairs of one layer and what is left of one block; empty names where there is no partner.
class LayerMatch {
 public:
  LayerMatch(const Shapes& layer, const Shapes& block) : layer_(layer), block_(block) {}

  /// False when something of the layer has no partner or several.
  bool run() {
    paired_.assign(layer_.size(), kNone);
    taken_.assign(block_.size(), false);
    int most = 0;
    for (const NamedShape& a : layer_)
      for (const NamedShape& b : block_) most = std::max(most, common_parts(a.name, b.name));
    for (int parts = most; parts >= 0; --parts)
      for (std::size_t i = 0; i < layer_.size(); ++i)
        if (paired_[i] == kNone && !pair(i, parts)) return false;
    return std::ranges::find(paired_, kNone) == paired_.end();
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const std::size_t i : paired_) names.push_back(block_[i].name);
    return names;
  }
  Shapes rest() const {
    Shapes rest;
    for (std::size_t i = 0; i < block_.size(); ++i)
      if (!taken_[i]) rest.push_back(block_[i]);
    return rest;
  }
  /// Pairs that rest on their order alone.
  const std::vector<std::string>& by_order() const { return by_order_; }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  bool fits(std::size_t i, std::size_t k, int parts) const {
    return paired_[i] == kNone && !taken_[k] && layer_[i].shape == block_[k].shape &&
           common_parts(layer_[i].name, block_[k].name) == parts;
  }
  std::vector<std::size_t> partners(std::size_t i, int parts) const {
    std::vector<std::size_t> found;
    for (std::size_t k = 0; k < block_.size(); ++k)
      if (fits(i, k, parts)) found.push_back(k);
    return found;
  }

  /// Pairs all of the layer that compete with its parameter `i` for the same of the block.
  bool pair(std::size_t i, int parts) {
    const auto candidates = partners(i, parts);
    if (candidates.empty()) return true;
    std::vector<std::size_t> rivals;
    for (std::size_t k = 0; k < layer_.size(); ++k)
      if (paired_[k] == kNone && partners(k, parts) == candidates) rivals.push_back(k);
    if (rivals.size() != candidates.size()) return false;
    for (std::size_t k = 0; k < rivals.size(); ++k) {
      paired_[rivals[k]] = candidates[k];
      if (rivals.size() > 1)
        by_order_.push_back(concat(layer_[rivals[k]].name, " is ", block_[candidates[k]].name));
    }
    for (const std::size_t k : candidates) taken_[k] = true;
    return true;
  }

  const Shapes& layer_;
  const Shapes& block_;
  std::vector<std::size_t> paired_;
  std::vector<bool> taken_;
  std::vector<std::string> by_order_;
};

std::string renamed(const std::string& name, const std::map<std::string, std::string>& renames) {
  for (const auto& [from, to] : renames)
    if (name == from || name.starts_with(from + '.')) return to + name.substr(from.size());
  return name;
}

/// The layer of "3.block.ln_1.weight" and the rest; -1 without one.
std::pair<int, std::string> split_layer(const std::string& name) {
  int layer = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (error != std::errc() || end == name.data() + name.size() || *end != '.' || layer < 0)
    return {-1, name};
  return {layer, std::string(end + 1, name.data() + name.size())};
}

/// Tied parameters once, where they come first.
std::vector<Shapes> distinct(const std::vector<Shapes>& blocks) {
  std::set<std::string> seen;
  std::vector<Shapes> kept;
  for (const Shapes& block : blocks) {
    kept.emplace_back();
    for (const NamedShape& parameter : block)
      if (seen.insert(parameter.name).second) kept.back().push_back(parameter);
    if (kept.back().empty()) kept.pop_back();
  }
  return kept;
}

/// By name or without prefixes: takes the model's parameters that are found out of `blocks`.
void match_by_name(const DeepspeedCheckpoint& checkpoint,
                   const std::map<std::string, std::string>& renames, std::vector<Shapes>& blocks,
                   MatchedNames& matched) {
  std::map<std::string, std::string> by_name, by_base;
  const auto add = [&](const std::string& name, const std::string& target) {
    const std::string known = renamed(name, renames);
    by_name.emplace(known, target);
    by_base.emplace(base_name(known), target);
  };
  for (const DeepspeedParameter& parameter : checkpoint.parameters())
    add(parameter.name, parameter.name);
  for (const auto& [alias, name] : checkpoint.facts().aliases) add(alias, name);
  for (Shapes& block : blocks)
    std::erase_if(block, [&](const NamedShape& parameter) {
      auto found = by_name.find(parameter.name);
      if (found == by_name.end()) {
        found = by_base.find(std::string(base_name(parameter.name)));
        if (found == by_base.end()) return false;
      }
      matched.names[parameter.name] = found->second;
      return true;
    });
  std::erase_if(blocks, [](const Shapes& block) { return block.empty(); });
}

/// What is left of a pipeline's layers, by layer.
std::map<int, Shapes> remaining_layers(const DeepspeedCheckpoint& checkpoint,
                                       const MatchedNames& matched) {
  std::set<std::string> used;
  for (const auto& [name, in_checkpoint] : matched.names) used.insert(in_checkpoint);
  std::map<int, Shapes> layers;
  std::set<std::string> placed;
  const auto place = [&](const std::string& name, const std::string& target) {
    const auto [layer, local] = split_layer(name);
    const DeepspeedParameter* parameter = checkpoint.find(target);
    if (layer < 0 || parameter == nullptr || used.contains(target) || !placed.insert(target).second)
      return;
    layers[layer].push_back({name, parameter->shape});
  };
  // Shared parameters stand where their first layer is: the order of numbers, not of texts.
  std::map<std::pair<int, std::string>, std::string> shared;
  for (const auto& [alias, name] : checkpoint.facts().aliases) shared[split_layer(alias)] = name;
  for (const DeepspeedParameter& parameter : checkpoint.parameters())
    place(parameter.name, parameter.name);
  for (const auto& [where, name] : shared) place(concat(where.first, '.', where.second), name);
  return layers;
}

void check_shapes(const DeepspeedCheckpoint& checkpoint, const std::vector<Shapes>& blocks,
                  const MatchedNames& matched) {
  ProblemList problems;
  std::set<std::string> used;
  for (const Shapes& block : blocks) {
    for (const NamedShape& parameter : block) {
      const auto found = matched.names.find(parameter.name);
      if (found == matched.names.end()) {
        problems.add(concat("the model's ", printable(parameter.name), ' ',
                            to_string(parameter.shape), " is not in the checkpoint"));
        continue;
      }
      used.insert(found->second);
      const DeepspeedParameter& there = *checkpoint.find(found->second);
      if (there.shape != parameter.shape)
        problems.add(concat(printable(there.name), " has shape ", to_string(there.shape),
                            " in the checkpoint, the model expects ", to_string(parameter.shape)));
    }
  }
  for (const DeepspeedParameter& parameter : checkpoint.parameters())
    if (parameter.group >= 0 && !used.contains(parameter.name))
      problems.add(concat("the checkpoint's ", printable(parameter.name), ' ',
                          to_string(parameter.shape), " is not in the model"));
  problems.throw_if_any(checkpoint.facts().folder, "the checkpoint is of another model");
}

}  // namespace

std::vector<std::vector<std::string>> match_layers(const std::vector<Shapes>& layers,
                                                   const std::vector<Shapes>& blocks,
                                                   std::vector<std::string>& remarks) {
  std::vector<std::vector<std::string>> names;
  std::size_t next = 0;
  Shapes rest;
  for (const Shapes& layer : layers) {
    if (rest.empty()) {
      if (next == blocks.size())
        throw_invalid(concat("layers are left over where the model's blocks end: ", list(layer)));
      rest = blocks[next++];
    }
    LayerMatch match(layer, rest);
    if (!match.run())
      throw_invalid(concat("cannot tell which parameters of a layer of the pipeline (", list(layer),
                           ") are which of the model's (", list(rest), "); --map OLD=NEW says so"));
    names.push_back(match.names());
    remarks.insert(remarks.end(), match.by_order().begin(), match.by_order().end());
    rest = match.rest();
  }
  if (!rest.empty() || next != blocks.size())
    throw_invalid(concat("the layers of the pipeline end where the model still has ",
                         list(rest.empty() ? blocks[next] : rest), "; --map OLD=NEW names them"));
  return names;
}

MatchedNames match_names(const DeepspeedCheckpoint& checkpoint, const std::vector<Shapes>& blocks,
                         const std::map<std::string, std::string>& renames) {
  MatchedNames matched;
  std::vector<Shapes> left = distinct(blocks);
  match_by_name(checkpoint, renames, left, matched);
  if (checkpoint.facts().pipeline && !left.empty()) {
    std::vector<Shapes> layers;
    for (auto& [layer, parameters] : remaining_layers(checkpoint, matched))
      layers.push_back(std::move(parameters));
    try {
      const auto names = match_layers(layers, left, matched.remarks);
      for (std::size_t i = 0; i < layers.size(); ++i)
        for (std::size_t k = 0; k < layers[i].size(); ++k)
          matched.names[names[i][k]] = checkpoint.find(layers[i][k].name)->name;
    } catch (const Error& error) {
      throw IoError(checkpoint.facts().folder, 0, error.what());
    }
  }
  check_shapes(checkpoint, distinct(blocks), matched);
  return matched;
}

}  // namespace zero3d
