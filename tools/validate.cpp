// zero3d validate: what becomes of a ds_config file, without any device. For one file what it sets,
// what follows from that and what has no effect, or with --all every value with its origin; for
// many files a line each, or with --all all that, and a summary; --json gives one object a line.
// The verdict is that of DeepSpeed's reader; what stops a training run beyond it is told as train
// errors.
#include "validate.h"

#include <iostream>
#include <string>
#include <vector>

#include "command.h"
#include "zero3d/core/text.h"
#include "zero3d/ds_config/load.h"
#include "zero3d/ds_config/settings.h"
#include "zero3d/ds_config/trainable.h"
#include "zero3d/engine/mesh_problems.h"
#include "zero3d/models/build.h"
#include "zero3d/models/mesh_fit.h"
#include "zero3d/parallel/topology.h"

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

/// What a run would warn of, by the configuration itself or when it starts.
std::vector<ConfigMessage> all_warnings(const LoadResult& loaded, const TrainCheck& check) {
  std::vector<ConfigMessage> all = loaded.warnings;
  all.insert(all.end(), loaded.train_warnings.begin(), loaded.train_warnings.end());
  if (!check.not_implemented.empty()) all.push_back({"", check.not_implemented, {}});
  return all;
}

JsonValue result_json(const LoadResult& loaded, const TrainCheck& check) {
  JsonValue object = JsonValue::make_object();
  object.set("file", JsonValue(loaded.name));
  object.set("verdict", JsonValue(loaded.ok() ? "accepted" : "refused"));
  object.set("errors", messages_json(loaded.errors));
  object.set("train_errors", messages_json(check.errors));
  object.set("warnings", messages_json(all_warnings(loaded, check)));
  object.set("resolved", loaded.ok() ? loaded.config.values : JsonValue());
  return object;
}

/// A value of the resolved configuration that holds no others.
struct Leaf {
  std::string path;
  const JsonValue* value;
  Provenance origin;
};

void collect_leaves(const LoadResult& loaded, const JsonValue& value, const std::string& path,
                    std::vector<Leaf>& leaves) {
  if (value.is_object() && !value.members().empty()) {
    for (const JsonMember& member : value.members()) {
      collect_leaves(loaded, member.value, path.empty() ? member.name : path + "." + member.name,
                     leaves);
    }
    return;
  }
  const auto entry = loaded.provenance.find(path);
  leaves.push_back({path, &value, entry == loaded.provenance.end() ? Provenance{} : entry->second});
}

std::string origin_of(const Leaf& leaf) {
  return concat(name_of(leaf.origin.source), leaf.origin.note.empty() ? "" : ": ",
                leaf.origin.note);
}

void print_value(const Leaf& leaf, const std::string& remark) {
  constexpr std::size_t kColumn = 70;
  std::string line = concat("  ", leaf.path, " = ", leaf.value->dump());
  if (line.size() < kColumn) line.resize(kColumn, ' ');
  std::cout << line << "  # " << remark << '\n';
}

/// The leaves that `belongs` says of, under a heading unless there are none.
template <typename Belongs>
std::size_t print_group(const LoadResult& loaded, const std::vector<Leaf>& leaves,
                        const char* heading, const Belongs& belongs) {
  std::size_t count = 0;
  for (const Leaf& leaf : leaves) {
    const std::string why = why_without_effect(loaded.config, leaf.path);
    if (!belongs(leaf, !why.empty())) continue;
    if (count++ == 0) std::cout << heading << ":\n";
    print_value(leaf, why.empty() ? origin_of(leaf) : concat(origin_of(leaf), "; ", why));
  }
  return count;
}

void print_values(const LoadResult& loaded, bool all) {
  std::vector<Leaf> leaves;
  collect_leaves(loaded, loaded.config.values, "", leaves);
  if (all) {
    std::cout << "resolved configuration:\n";
    for (const Leaf& leaf : leaves) print_value(leaf, origin_of(leaf));
    return;
  }
  using enum ValueSource;
  std::size_t told =
      print_group(loaded, leaves, "set by the file",
                  [](const Leaf& leaf, bool idle) { return leaf.origin.source == file && !idle; });
  told += print_group(
      loaded, leaves, "derived, from options, or for \"auto\"", [](const Leaf& leaf, bool idle) {
        return leaf.origin.source != file && leaf.origin.source != default_value && !idle;
      });
  told += print_group(loaded, leaves, "without effect", [](const Leaf& leaf, bool idle) {
    return leaf.origin.source != default_value && idle;
  });
  std::cout << leaves.size() - told << " more have their defaults; --all shows them\n";
}

Topology topology_of(const ParallelDegrees& degrees) {
  return Topology(degrees.ranks, {degrees.dp, degrees.tp, degrees.pp, degrees.sp});
}

std::string mesh(const ParallelDegrees& degrees) {
  return concat(degrees.ranks, " ranks = ", topology_of(degrees).factors());
}

std::string counted(std::size_t count, const char* what) {
  return concat(count, " ", what, count == 1 ? "" : "s");
}

void print_report(const LoadResult& loaded, const TrainCheck& check, bool all) {
  const auto print = [&](const char* kind, const std::vector<ConfigMessage>& entries) {
    for (const ConfigMessage& entry : entries)
      std::cout << kind << ": " << loaded.show(entry) << '\n';
  };
  print("error", loaded.errors);
  print("train error", check.errors);
  print("warning", all_warnings(loaded, check));
  if (!loaded.ok()) {
    std::cout << loaded.name << ": refused, " << counted(loaded.errors.size(), "error") << '\n';
    return;
  }
  std::cout << loaded.name << ": accepted";
  if (!check.ok())
    std::cout << " by DeepSpeed's reader; zero3d train refuses it, "
              << counted(check.errors.size(), "error");
  std::cout << '\n' << "mesh: " << mesh(loaded.config.degrees) << '\n';
  if (loaded.config.degrees.dp < loaded.config.degrees.ranks)
    for (const std::string& line : topology_of(loaded.config.degrees).table())
      std::cout << "mesh: " << line << '\n';
  std::cout << "fingerprint: " << config_fingerprint(loaded.config) << '\n';
  if (check.ok()) {
    for (const std::string& line : describe_offload(read_settings(loaded.config).settings.offload))
      std::cout << "offload: " << line << '\n';
    const DelayedUpdateSettings delayed = read_settings(loaded.config).settings.delayed_updates;
    if (delayed.on()) std::cout << "updates: " << describe_updates(delayed) << '\n';
  }
  print_values(loaded, all);
}

void print_line(const LoadResult& loaded, const TrainCheck& check) {
  if (!loaded.ok()) {
    std::cout << loaded.name << ": refused: " << loaded.errors.front().text();
    if (loaded.errors.size() > 1) std::cout << " (and " << loaded.errors.size() - 1 << " more)";
  } else {
    const ParallelDegrees& degrees = loaded.config.degrees;
    std::cout << loaded.name << ": accepted: batch " << loaded.config.integer("train_batch_size")
              << ", stage " << loaded.config.stage() << ", " << mesh(degrees);
    if (!check.ok()) std::cout << ", " << counted(check.errors.size(), "train error");
    const std::size_t warnings = all_warnings(loaded, check).size();
    if (warnings > 0) std::cout << ", " << counted(warnings, "warning");
  }
  std::cout << '\n';
}

}  // namespace

namespace {

/// What of the model, where its family is known, the mesh cannot cut: train would not start.
void check_mesh(const std::string& model, const LoadResult& loaded, TrainCheck& check) {
  if (model.empty() || !loaded.ok()) return;
  ModelConfig config;
  try {
    config = means_built_in(model) ? built_in_model_config(model) : read_model_config(model);
  } catch (const Error&) {  // "auto" needs its hidden size alone, of whatever family
    return;
  }
  const auto& [ranks, dp, tp, pp, sp] = loaded.config.degrees;
  const GridDegrees degrees{dp, tp, pp, sp};
  // Settings that train refuses cannot be asked about the pipeline.
  const std::vector<std::string> problems =
      check.ok() ? mesh_problems(*build_model(config), train_settings(loaded.config), degrees)
                 : mesh_problems(config, degrees);
  for (const std::string& problem : problems)
    check.errors.push_back({"", concat(model, ": ", problem), {}});
}

}  // namespace

void validate(const ValidateOptions& options) {
  const LoadOptions load = options.config.resolved();
  std::size_t refused = 0;
  for (const std::string& file : options.files) {
    const LoadResult loaded = load_config_file(file, load);
    TrainCheck check = loaded.ok() ? check_trainable(loaded) : TrainCheck{};
    check_mesh(options.config.model, loaded, check);
    if (!loaded.ok()) ++refused;
    if (options.json) {
      std::cout << result_json(loaded, check).dump() << '\n';
    } else if (options.files.size() == 1 || options.all) {
      print_report(loaded, check, options.all);
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
