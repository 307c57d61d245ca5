#include "zero3d/models/model_size.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/hjson.h"
#include "zero3d/formats/input_file.h"
#include "zero3d/models/model_config.h"

namespace zero3d {

namespace {

std::optional<std::int64_t> positive(const JsonValue* value) {
  if (value == nullptr || !value->is_integer() || value->as_integer() < 1) return std::nullopt;
  return value->as_integer();
}

std::optional<std::int64_t> stated_size(const JsonValue& config) {
  if (const auto size = positive(config.find("hidden_size"))) return size;
  std::optional<std::int64_t> largest;
  if (const JsonValue* sizes = config.find("hidden_sizes")) {
    for (const JsonValue& item : sizes->items()) {
      if (const auto size = positive(&item)) largest = std::max(largest.value_or(0), *size);
    }
  }
  return largest;
}

}  // namespace

std::int64_t model_hidden_size(const std::string& model) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (means_built_in(model)) return built_in_model_config(model).hidden_size;
  const std::string path =
      fs::is_directory(model, ignored) ? (fs::path(model) / "config.json").string() : model;
  std::vector<HjsonProblem> duplicates;
  const JsonValue config = parse_hjson(InputFile(path).read_all(1u << 20), path, duplicates);
  std::optional<std::int64_t> size = stated_size(config);
  const JsonValue* text = config.find("text_config");
  if (!size && text != nullptr) size = stated_size(*text);
  for (const char* name : {"n_embd", "d_model"}) {
    if (!size) size = positive(config.find(name));
  }
  if (size) return *size;
  throw Error(ErrorKind::kConfig, concat(path,
                                         ": no hidden_size, hidden_sizes, n_embd or d_model; "
                                         "give --hidden-size instead"));
}

}  // namespace zero3d
