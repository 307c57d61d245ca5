// The resolved configuration as JSON, and its fingerprint.
#include <array>

#include "zero3d/engine/config/field.h"
#include "zero3d/engine/config/load.h"

namespace zero3d {

namespace {

/// Drops nulls and what only names the past, so that the result loads again.
void make_loadable(JsonValue& value, const config::Section& section) {
  std::erase_if(value.members(), [&](const JsonMember& member) {
    const config::Field* field = section.find(member.name);
    return member.value.is_null() || (field != nullptr && field->legacy);
  });
  for (JsonMember& member : value.members()) {
    const config::Field* field = section.find(member.name);
    if (field != nullptr && field->nested != nullptr && member.value.is_object()) {
      make_loadable(member.value, *field->nested);
    }
  }
}

}  // namespace

JsonValue resolved_json(const Config& config) { return config::root_section().write(&config); }

JsonValue loadable_json(const Config& config) {
  JsonValue result = resolved_json(config);
  make_loadable(result, config::root_section());
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
