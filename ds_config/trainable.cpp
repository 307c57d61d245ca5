#include "zero3d/ds_config/trainable.h"

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/ds_config/field.h"
#include "zero3d/ds_config/reader.h"

namespace zero3d {

void TrainCheck::require_ok(const LoadResult& loaded) const {
  if (ok()) return;
  std::string message =
      errors.size() == 1 ? "" : concat(loaded.name, ": ", errors.size(), " errors");
  for (const ConfigMessage& entry : errors) append_item(message, "\n", loaded.show(entry));
  throw ConfigError("", message);
}

namespace {

bool asked_for(const Config& config, const config::Field& field, const std::string& path) {
  if (field.active != nullptr) return field.active(config);
  if (!field.heeded_at(config.stage())) return false;
  if (field.absent) return config.has(path);
  return config.flag(field.nested == nullptr ? path : path + ".enabled");
}

void check_support(const Config& config, const config::Section& section, const std::string& prefix,
                   bool allow_unsupported, TrainCheck& check) {
  for (const config::Field& field : section.fields) {
    const std::string path = config::join_path(prefix, field.name);
    const config::Support support = field.support;
    if (support == config::Support::implemented) {
      if (field.nested != nullptr && config.has(path))
        check_support(config, *field.nested, path, allow_unsupported, check);
      continue;
    }
    if (support == config::Support::no_effect || !asked_for(config, field, path)) continue;
    if (support == config::Support::refused) {
      check.errors.push_back(
          {path,
           concat("not implemented yet: it would ", field.would, "; run with a degree of 1"),
           {}});
    } else if (support == config::Support::changes_result && !allow_unsupported) {
      check.errors.push_back(
          {path,
           concat("not implemented yet, and the result would differ: it would ", field.would,
                  ". Remove it, or train without it by --allow-unsupported"),
           {}});
    } else {
      append_item(check.not_implemented, "; ", path, " (would ", field.would, ")");
    }
  }
}

std::string stages_of(const config::Field& field) {
  if (field.first_stage == field.last_stage) return concat("only at stage ", field.first_stage);
  return concat("only at stages ", field.first_stage, " to ", field.last_stage);
}

/// Of one key; what is in it is another matter.
std::string why_without_effect(const Config& config, const config::Field& field,
                               const std::string& path) {
  if (!field.heeded_at(config.stage())) return stages_of(field);
  const bool conditional = field.support == config::Support::implemented && field.active != nullptr;
  if (conditional && !field.active(config)) return std::string(field.would);
  if (field.support == config::Support::no_effect) return "nothing to do for it here";
  if (field.support != config::Support::implemented && !field.in_part &&
      asked_for(config, field, path))
    return "not implemented yet";
  return "";
}

}  // namespace

std::string why_without_effect(const Config& config, std::string_view path) {
  const config::Section* section = &config::kRoot;
  std::string here;
  for (std::string_view rest = path; section != nullptr && !rest.empty();) {
    const std::size_t dot = rest.find('.');
    const config::Field* field = section->find(rest.substr(0, dot));
    if (field == nullptr) return "";
    here = config::join_path(here, field->name);
    if (std::string why = why_without_effect(config, *field, here); !why.empty()) return why;
    section = field->nested;
    rest = dot == std::string_view::npos ? "" : rest.substr(dot + 1);
    const bool optional = section != nullptr && section->find("enabled") != nullptr;
    if (optional && !rest.empty() && rest != "enabled" && !config.flag(here + ".enabled"))
      return concat(here, " is not enabled");
  }
  return "";
}

TrainCheck check_trainable(const LoadResult& loaded, const TrainOptions& options) {
  TrainCheck check;
  check.errors = loaded.train_errors;
  check_support(loaded.config, config::kRoot, "", options.allow_unsupported, check);
  if (!check.not_implemented.empty())
    check.not_implemented = "accepted, but not implemented yet: " + check.not_implemented;
  return check;
}

}  // namespace zero3d
