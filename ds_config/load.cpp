#include "zero3d/ds_config/load.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/ds_config/field.h"
#include "zero3d/ds_config/rules.h"
#include "zero3d/formats/hjson.h"
#include "zero3d/formats/input_file.h"
#include "zero3d/formats/lfs_pointer.h"

namespace zero3d {

namespace {

namespace fs = std::filesystem;

/// Above this a file is no configuration.
constexpr std::uint64_t kMaxBytes = 1u << 20;

LoadResult failed(std::string name, std::string message) {
  LoadResult result;
  result.name = std::move(name);
  result.errors.push_back({"", std::move(message), {}});
  return result;
}

/// URL-safe base64, padding optional; nothing when `text` is anything else.
std::optional<std::string> decode_base64(std::string_view text) {
  while (!text.empty() && (text.back() == '=' || text.back() == '\n')) text.remove_suffix(1);
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string out;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const std::size_t digit = kDigits.find(c == '+' ? '-' : c == '/' ? '_' : c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = (bits << 6) | static_cast<std::uint32_t>(digit);
    if (++count % 4 != 1)
      out.push_back(static_cast<char>((bits >> (6 - 2 * ((count - 1) % 4))) & 255));
  }
  return out;
}

bool looks_like_object(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

/// Sorts by place in the file; what has none stays in order at the end.
void sort_by_place(std::vector<ConfigMessage>& messages) {
  std::stable_sort(
      messages.begin(), messages.end(), [](const ConfigMessage& a, const ConfigMessage& b) {
        const auto key = [](const ConfigMessage& m) {
          return std::pair(m.position.line == 0 ? INT32_MAX : m.position.line, m.position.column);
        };
        return key(a) < key(b);
      });
}

void read_tree(LoadResult& result, JsonValue& root, const LoadOptions& options) {
  config::Reader reader(result);
  reader.strict_top_level = options.strict;
  config::replace_old_keys(reader, root);
  Config& config = result.config;
  const config::Draft draft{reader, root, config};
  config.degrees = config::resolve_degrees(reader, root, options);
  const auto& [ranks, dp, tp, pp, sp] = config.degrees;
  const std::set<std::string> unfilled = config::resolve_autos(reader, root, options.autos, dp);
  const std::size_t before = result.errors.size();
  config.values = config::kRoot.defaults();
  reader.read_section(config::kRoot, root, config.values, "");
  const auto overrule = [&](const char* path, const auto& value, const char* option) {
    if (!value) return;
    config.set(path, JsonValue(*value));
    reader.record(path, ValueSource::command_line, option);
  };
  /// Of a key that is only ours, and that contradicts a stated one.
  const auto overrule_loudly = [&](const char* path, const auto& value, const char* option) {
    const JsonValue* const stated = root.find_path(path);
    if (value && stated != nullptr && !(*stated == JsonValue(*value)))
      draft.warning(path, concat("is ", stated->dump(), ", and ", option, " says ", *value, ": ",
                                 option, " is heeded"));
    overrule(path, value, option);
  };
  config::state_degrees(draft, options);
  overrule_loudly("zero3d.schedule", options.schedule, "--schedule");
  overrule_loudly("zero3d.virtual_stages", options.virtual_stages, "--virtual-stages");
  overrule_loudly("zero3d.partition", options.partition, "--partition");
  overrule("pipeline.activation_checkpoint_interval", options.recompute, "--recompute");
  config::finish_zero(draft);
  config::finish_precision(draft);
  const auto faulty = [&](const std::string& key) {
    return unfilled.count(key) > 0 ||
           std::any_of(result.errors.begin(), result.errors.end(),
                       [&](const ConfigMessage& message) { return message.path == key; });
  };
  // A wrong value of the triple is reported already; the arithmetic would only add noise.
  if (dp * tp * pp * sp == ranks && !faulty("train_batch_size") &&
      !faulty("train_micro_batch_size_per_gpu") && !faulty("gradient_accumulation_steps")) {
    config::finish_batch(draft);
  }
  if (result.errors.size() == before) config::finish_rest(draft);
  config::check_optimizer(draft);
  config::check_scheduler(draft);
  if (result.ok()) config::check_training(draft, result);
}

}  // namespace

std::string_view name_of(ValueSource source) {
  constexpr std::string_view kNames[] = {"default", "file", "auto", "command line", "derived"};
  return kNames[static_cast<std::size_t>(source)];
}

void LoadResult::require_ok() const {
  if (ok()) return;
  if (errors.size() == 1) throw ConfigError("", show(errors.front()));
  std::string message = concat(name, ": ", errors.size(), " errors");
  for (const ConfigMessage& entry : errors) message += concat("\n", show(entry));
  throw ConfigError("", message);
}

std::string ConfigMessage::text() const { return concat(path, path.empty() ? "" : ": ", message); }

std::string LoadResult::show(const ConfigMessage& entry) const {
  if (entry.position.line == 0)  // what cannot be read says so itself
    return entry.text().starts_with(name) ? entry.text() : concat(name, ": ", entry.text());
  return locate(text, name, entry.position, entry.text());
}

LoadResult load_config_text(std::string_view text, std::string_view name,
                            const LoadOptions& options) {
  LoadResult result;
  result.name = name;
  result.text = text.substr(0, kMaxBytes);
  const auto refused = [&](std::string path, std::string message, TextPosition position) {
    result.errors.push_back({std::move(path), std::move(message), position});
    return result;
  };
  if (options.ranks < 1)
    return refused("", concat("a run has at least 1 rank, found --ranks ", options.ranks), {});
  std::vector<HjsonProblem> duplicates;
  JsonValue root;
  try {
    root = parse_hjson(text, name, duplicates, {.max_bytes = kMaxBytes});
  } catch (const HjsonError& error) {
    return refused("", error.problem(), error.position());
  }
  for (const HjsonProblem& duplicate : duplicates)
    result.errors.push_back({duplicate.path, duplicate.message, duplicate.position});
  if (!root.is_object())
    return refused("$", concat("a configuration is an object { ... }, found ", root.excerpt()),
                   root.position());
  read_tree(result, root, options);
  sort_by_place(result.errors);
  sort_by_place(result.warnings);
  sort_by_place(result.train_errors);
  sort_by_place(result.train_warnings);
  return result;
}

LoadResult load_config_file(const std::string& path, const LoadOptions& options) {
  std::string text;
  try {
    text = InputFile(path).read_all(kMaxBytes);
  } catch (const Error& problem) {
    return failed(path, problem.what());
  }
  if (is_lfs_pointer(text)) return failed(path, concat(path, " ", kIsLfsPointer));
  return load_config_text(text, path, options);
}

LoadResult load_config(std::string_view source, const LoadOptions& options) {
  if (looks_like_object(source)) return load_config_text(source, "<config>", options);
  std::error_code ignored;
  const std::string path(source.substr(0, 4096));
  if (!fs::exists(path, ignored)) {
    const auto decoded = decode_base64(source);
    if (decoded && looks_like_object(*decoded)) {
      return load_config_text(*decoded, "<base64>", options);
    }
  }
  return load_config_file(path, options);
}

}  // namespace zero3d
