// The kinds of rope scaling by their names in the file, and what each of them reads and writes.
#include "zero3d/models/rope_json.h"

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "zero3d/core/text.h"
#include "zero3d/formats/problem_list.h"

namespace zero3d {
namespace {

using Type = RopeConfig::Type;

constexpr std::array<std::pair<Type, const char*>, 7> kTypes = {
    {{Type::standard, "default"},
     {Type::linear, "linear"},
     {Type::dynamic, "dynamic"},
     {Type::llama3, "llama3"},
     {Type::yarn, "yarn"},
     {Type::longrope, "longrope"},
     {Type::proportional, "proportional"}}};

const char* name_of(Type type) {
  for (const auto& [known, name] : kTypes)
    if (known == type) return name;
  return "";
}

/// The key of the dict that counts; null when the file has none, or an empty one.
const char* rope_key(const JsonSection& file) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const ConfigJson* json = file.find(key);
    if (json == nullptr) continue;
    if (!json->is_object()) file.fail_at(key, "an object");
    if (!json->empty()) return key;
  }
  return nullptr;
}

Type read_type(const JsonSection& section) {
  const char* key = section.has("rope_type") ? "rope_type" : "type";
  if (!section.has(key) && (section.states(key) || section.states("rope_type")) &&
      section.has("factor"))
    section.fail_at(section.states(key) ? key : "rope_type",
                    "the kind of scaling that the factor is of, such as linear or dynamic");
  const std::string type = section.text(key, "default");
  if (section.text("type", type) != type)
    section.fail_at(
        "type", concat("the same as \"rope_type\", ", printable(type), "; one of them is wrong"));
  for (const auto& [known, name] : kTypes)
    if (type == name) return known;
  section.fail_at(key, "default, linear, dynamic, llama3, yarn, longrope or proportional");
}

/// transformers gives yarn and longrope that say null the ratio of the two contexts.
double read_factor(const JsonSection& section, const RopeConfig& rope, std::int64_t max_positions) {
  const bool derives =
      rope.type == Type::longrope || (rope.type == Type::yarn && section.states("factor"));
  if (derives && !section.has("factor"))  // validate() looks at the divisor
    return static_cast<double>(max_positions) / static_cast<double>(rope.original_max_positions);
  if (rope.type != Type::proportional && !section.has("factor"))
    section.fail_at("factor", "the rope scaling's factor");
  return section.number("factor", 1.0);
}

void read_scaling(const JsonSection& file, const JsonSection& section, std::int64_t max_positions,
                  RopeConfig& rope) {
  if (rope.type == Type::llama3 || rope.type == Type::yarn || rope.type == Type::longrope) {
    constexpr const char* kOriginal = "original_max_position_embeddings";
    const JsonSection& from = file.has(kOriginal) ? file : section;
    const std::int64_t other = section.integer(kOriginal, 0);
    if (file.has(kOriginal) && section.has(kOriginal) && file.integer(kOriginal, 0) != other)
      file.fail_at(kOriginal, concat("the same as in the dict of the rope, ", other,
                                     "; one of them is wrong"));
    rope.original_max_positions = from.integer(kOriginal, max_positions);
  }
  rope.factor = read_factor(section, rope, max_positions);
  if (rope.type == Type::llama3) {
    for (const char* needed : {"low_freq_factor", "high_freq_factor"})
      if (!section.has(needed)) section.fail_at(needed, "a number (llama3)");
    rope.low_freq_factor = section.number("low_freq_factor", 1.0);
    rope.high_freq_factor = section.number("high_freq_factor", 4.0);
  }
  if ((rope.type == Type::yarn || rope.type == Type::longrope) && section.has("attention_factor"))
    rope.attention_factor = section.number("attention_factor", 1.0);
  if (rope.type == Type::yarn) {
    const auto or_default = [&](const char* key, double fallback) {
      const double value = section.number(key, fallback);
      return value == 0 ? fallback : value;
    };
    rope.beta_fast = or_default("beta_fast", rope.beta_fast);
    rope.beta_slow = or_default("beta_slow", rope.beta_slow);
    rope.mscale = section.number("mscale", 0.0);
    rope.mscale_all_dim = section.number("mscale_all_dim", 0.0);
    rope.truncate = section.boolean("truncate", true);
  }
  if (rope.type == Type::longrope) {
    rope.short_factor = section.numbers("short_factor");
    rope.long_factor = section.numbers("long_factor");
  }
}

/// Only "proportional" turns a part of a head in these families: transformers reads the factor for
/// no "default" rope of theirs (then it is returned), and fails to run the others.
std::optional<double> read_partial(const JsonSection& file, const char* dict, RopeConfig& rope) {
  constexpr const char* kKey = "partial_rotary_factor";
  const ConfigJson none;
  const JsonSection section(dict == nullptr ? none : *file.find(dict), file.path(),
                            dict == nullptr ? "" : concat(dict, "."));
  const JsonSection& from = dict != nullptr && section.has(kKey) ? section : file;
  const double part = from.number(kKey, 1.0);
  if (part == 1.0) return std::nullopt;
  if (rope.type == Type::proportional) {
    rope.rotated = part;
    return std::nullopt;
  }
  if (rope.type != Type::standard)
    from.fail_at(kKey, concat("1 (a part of a head turns with rope_type proportional, not with ",
                              name_of(rope.type), ")"));
  return part;
}

/// A dict of rope dicts by layer type is for families that we do not have.
void refuse_nested(const JsonSection& file, const char* key) {
  for (const auto& [name, value] : file.find(key)->items())
    if (value.is_object())
      file.fail_at(key,
                   concat("one rope for all layers, not one of its own for ", printable(name)));
}

/// `key` null: no dict. `unread` gets the keys that this kind of rope does not read.
RopeConfig read_dict(const JsonSection& file, const char* key, std::int64_t max_positions,
                     std::vector<std::string>& unread) {
  RopeConfig rope;
  rope.theta = file.number("rope_theta", 10000.0);
  if (key == nullptr) return rope;
  if (!file.find(key)->is_object()) file.fail_at(key, "an object");
  refuse_nested(file, key);
  const JsonSection section(*file.find(key), file.path(), concat(key, "."));
  const double theta = section.number("rope_theta", rope.theta);
  if (file.has("rope_theta") && theta != rope.theta)
    file.fail_at("rope_theta",
                 concat("the same as \"", key, ".rope_theta\", ", theta, "; one of them is wrong"));
  rope.theta = theta;
  rope.type = read_type(section);
  if (rope.type != Type::standard) read_scaling(file, section, max_positions, rope);
  section.find("partial_rotary_factor");  // has a remark of its own
  unread = section.unread();
  return rope;
}

}  // namespace

RopeConfig read_rope(const JsonSection& file, ModelConfig& config) {
  const char* key = rope_key(file);
  std::vector<std::string> unread, of_other;
  RopeConfig rope = read_dict(file, key, config.max_positions, unread);
  if (!unread.empty())
    config.remarks.push_back(concat(name_list(unread), " of ", key,
                                    unread.size() == 1 ? " has" : " have", " no effect: rope_type ",
                                    name_of(rope.type), " does not read ",
                                    unread.size() == 1 ? "it" : "them"));
  if (key != nullptr && std::string_view(key) == "rope_scaling" && file.has("rope_parameters") &&
      read_dict(file, "rope_parameters", config.max_positions, of_other) != rope)
    config.remarks.push_back(concat(
        "rope_parameters has no effect beside rope_scaling, which transformers takes (rope_type ",
        name_of(rope.type), ", rope_theta ", rope.theta, ")"));
  const std::optional<double> ignored = read_partial(file, key, rope);
  if (ignored)
    config.remarks.push_back(concat("partial_rotary_factor ", *ignored,
                                    " has no effect: in this family transformers turns all of a "
                                    "head with the default rope"));
  return rope;
}

ConfigJson rope_json(const RopeConfig& rope, const ConfigJson& source) {
  ConfigJson json = {{"rope_theta", rope.theta}, {"rope_type", name_of(rope.type)}};
  if (rope.type != Type::standard) json["factor"] = rope.factor;
  if (rope.type == Type::llama3) {
    json["low_freq_factor"] = rope.low_freq_factor;
    json["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.type == Type::llama3 || rope.type == Type::yarn || rope.type == Type::longrope)
    json["original_max_position_embeddings"] = rope.original_max_positions;
  if (rope.attention_factor) json["attention_factor"] = *rope.attention_factor;
  if (rope.type == Type::yarn) {
    json["beta_fast"] = rope.beta_fast;
    json["beta_slow"] = rope.beta_slow;
    if (rope.mscale != 0) json["mscale"] = rope.mscale;
    if (rope.mscale_all_dim != 0) json["mscale_all_dim"] = rope.mscale_all_dim;
    json["truncate"] = rope.truncate;
  }
  if (rope.type == Type::longrope) {
    json["short_factor"] = rope.short_factor;
    json["long_factor"] = rope.long_factor;
  }
  if (rope.type == Type::proportional) json["partial_rotary_factor"] = rope.rotated;
  if (source.is_object())
    for (const auto& [key, value] : source.items())
      if (!json.contains(key) && key != "type") json[key] = value;
  return json;
}

}  // namespace zero3d
