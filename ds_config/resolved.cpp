// The resolved configuration as a file, and its fingerprint.
#include <array>

#include "zero3d/ds_config/field.h"
#include "zero3d/ds_config/load.h"

namespace zero3d {

namespace {

/// Drops nulls, what only names the past, and keys of our own that say nothing, so that both zero3d
/// and DeepSpeed load the result.
void make_loadable(JsonValue& value, const config::Section& section) {
  const JsonValue defaults = section.defaults();
  std::erase_if(value.members(), [&](const JsonMember& member) {
    const config::Field* field = section.find(member.name);
    if (member.value.is_null()) return true;
    if (field == nullptr) return false;
    return field->legacy || (field->only_here && *defaults.find(member.name) == member.value);
  });
  for (JsonMember& member : value.members()) {
    const config::Field* field = section.find(member.name);
    if (field != nullptr && field->nested != nullptr && member.value.is_object()) {
      make_loadable(member.value, *field->nested);
    }
  }
}

}  // namespace

JsonValue loadable_json(const Config& config) {
  JsonValue result = config.values;
  make_loadable(result, config::kRoot);
  return result;
}

std::string config_fingerprint(const Config& config) {
  JsonValue all = loadable_json(config);
  JsonValue degrees = JsonValue::make_array();
  for (const int degree : {config.degrees.ranks, config.degrees.dp, config.degrees.tp,
                           config.degrees.pp, config.degrees.sp}) {
    degrees.push_back(JsonValue(degree));
  }
  all.set("degrees", std::move(degrees));
  // FNV-1a, 64 bits: stable over machines and builds, unlike std::hash.
  std::uint64_t hash = 14695981039346656037ull;
  for (const char c : all.dump()) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  }
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text(16, '0');
  for (int i = 15; i >= 0; --i, hash >>= 4) text[static_cast<std::size_t>(i)] = kHex[hash & 15];
  return text;
}

}  // namespace zero3d
