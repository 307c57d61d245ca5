// zero3d validate: what becomes of a ds_config file, without any device. For one file the resolved
// configuration with the origin of each value; for many a line each and a summary; --json gives one
// object a line.
#include "validate.h"

#include <iostream>
#include <string>
#include <vector>

#include "command.h"
#include "zero3d/core/text.h"
#include "zero3d/ds_config/load.h"
#include "zero3d/ds_config/trainable.h"

namespace zero3d::tools {

namespace {

JsonValue messages_json(const std::vector<ConfigMessage>& messages) {
  JsonValue list = JsonValue::make_array();
  for (const ConfigMessage& entry : messages) {
    JsonValue object = JsonValue::make_object();
    object.set("path", JsonValue(entry.path));
    object.set("message", JsonValue(entry.message));
    if (entry.position.line > 0) {
      object.set("line", JsonValue(entry.position.line));
      object.set("column", JsonValue(entry.position.column));
    }
    list.push_back(std::move(object));
  }
  return list;
}

JsonValue result_json(const LoadResult& loaded, const TrainCheck& check) {
  JsonValue object = JsonValue::make_object();
  object.set("file", JsonValue(loaded.name));
  object.set("verdict", JsonValue(loaded.ok() ? "accepted" : "refused"));
  object.set("errors", messages_json(loaded.errors));
  std::vector<ConfigMessage> warnings = loaded.warnings;
  warnings.insert(warnings.end(), check.errors.begin(), check.errors.end());
  if (!check.not_implemented.empty()) warnings.push_back({"", check.not_implemented, {}});
  object.set("warnings", messages_json(warnings));
  object.set("resolved", loaded.ok() ? loaded.config.values : JsonValue());
  return object;
}

void print_values(const LoadResult& loaded, const JsonValue& value, const std::string& path) {
  if (value.is_object() && !value.members().empty()) {
    for (const JsonMember& member : value.members()) {
      print_values(loaded, member.value, path.empty() ? member.name : path + "." + member.name);
    }
    return;
  }
  std::string origin = "default";
  const auto entry = loaded.provenance.find(path);
  if (entry != loaded.provenance.end()) {
    origin = concat(name_of(entry->second.source), entry->second.note.empty() ? "" : ": ",
                    entry->second.note);
  }
  std::string line = concat("  ", path, " = ", value.dump());
  if (line.size() < 70) line.resize(70, ' ');
  std::cout << line << "  # " << origin << '\n';
}

std::string mesh(const ParallelDegrees& degrees) {
  std::string text =
      concat(degrees.ranks, " ranks = dp ", degrees.dp, " x tp ", degrees.tp, " x pp ", degrees.pp);
  if (degrees.sp > 1) text += concat(" x sp ", degrees.sp);
  return text;
}

void print_report(const LoadResult& loaded, const TrainCheck& check) {
  for (const ConfigMessage& entry : loaded.errors) {
    std::cout << "error: " << loaded.show(entry) << '\n';
  }
  for (const ConfigMessage& entry : loaded.warnings) {
    std::cout << "warning: " << loaded.show(entry) << '\n';
  }
  for (const ConfigMessage& entry : check.errors) {
    std::cout << "warning (an error in train): " << loaded.show(entry) << '\n';
  }
  if (!check.not_implemented.empty()) std::cout << "warning: " << check.not_implemented << '\n';
  if (!loaded.ok()) {
    std::cout << loaded.name << ": refused, " << loaded.errors.size()
              << (loaded.errors.size() == 1 ? " error\n" : " errors\n");
    return;
  }
  std::cout << loaded.name << ": accepted\n"
            << "mesh: " << mesh(loaded.config.degrees) << '\n'
            << "fingerprint: " << config_fingerprint(loaded.config) << '\n'
            << "resolved configuration:\n";
  print_values(loaded, loaded.config.values, "");
}

void print_line(const LoadResult& loaded, const TrainCheck& check) {
  if (!loaded.ok()) {
    std::cout << loaded.name << ": refused: " << loaded.errors.front().text();
    if (loaded.errors.size() > 1) std::cout << " (and " << loaded.errors.size() - 1 << " more)";
  } else {
    const ParallelDegrees& degrees = loaded.config.degrees;
    std::cout << loaded.name << ": accepted: batch " << loaded.config.integer("train_batch_size")
              << ", stage " << loaded.config.stage() << ", " << mesh(degrees);
    const std::size_t warnings = loaded.warnings.size() + check.errors.size();
    if (warnings > 0) std::cout << ", " << warnings << (warnings == 1 ? " warning" : " warnings");
  }
  std::cout << '\n';
}

}  // namespace

void validate(const ValidateOptions& options) {
  const LoadOptions load = options.config.resolved();
  std::size_t refused = 0;
  for (const std::string& file : options.files) {
    const LoadResult loaded = load_config_file(file, load);
    const TrainCheck check = loaded.ok() ? check_trainable(loaded) : TrainCheck{};
    if (!loaded.ok()) ++refused;
    if (options.json) {
      std::cout << result_json(loaded, check).dump() << '\n';
    } else if (options.files.size() == 1) {
      print_report(loaded, check);
    } else {
      print_line(loaded, check);
    }
  }
  if (!options.json && options.files.size() > 1) {
    std::cout << options.files.size() << " files: " << options.files.size() - refused
              << " accepted, " << refused << " refused\n";
  }
  std::cout.flush();
  if (refused > 0) throw ExitStatus{1};
}

}  // namespace zero3d::tools
