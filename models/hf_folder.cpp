#include "zero3d/models/hf_folder.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/problem_list.h"
#include "zero3d/formats/weight_folder.h"
#include "zero3d/models/build.h"
#include "zero3d/models/hf_leftovers.h"

namespace zero3d {
namespace {

constexpr std::string_view kHead = "lm_head.weight";

/// The prefixes of the base model, with which some files are written and some not.
std::string_view base_name(std::string_view name) {
  for (const std::string_view prefix : {"transformer.", "model."}) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return name;
}

bool is_embedding(std::string_view base) {
  return base == "wte.weight" || base == "embed_tokens.weight";
}

using FileTensor = WeightFolder::Tensor;
using Available = std::map<std::string_view, FileTensor>;  ///< By base name.

/// What wrappers put before every name, and larger models before the names of their parts.
struct NamePrefix {
  std::string_view text;
  std::string_view what;  ///< "...: what to do".
  bool of_all = true;     ///< Else of some.
};
constexpr NamePrefix kPrefixes[] = {
    {"base_model.model.",
     "a model wrapped by PEFT (LoRA and its like): merge_and_unload it and save the result"},
    {"module._orig_mod.",
     "a model wrapped by torch.compile and DistributedDataParallel: save the model that they wrap"},
    {"_orig_mod.module.",
     "a model wrapped by DistributedDataParallel and torch.compile: save the model that they wrap"},
    {"module.",
     "a model wrapped by DistributedDataParallel and DeepSpeed: save the model that it wraps"},
    {"_orig_mod.", "a model wrapped by torch.compile: save the model that it wraps"},
    {"language_model.", "a model of text and images: save its language model alone", false},
    {"model.language_model.", "a model of text and images: save its language model alone", false}};

/// The first prefix that says what the folder is of; whether there is one.
bool add_wrapped_names(const WeightFolder& folder, ProblemList& problems) {
  for (const NamePrefix& prefix : kPrefixes) {
    const auto begins = [&](const auto& tensor) { return tensor.first.starts_with(prefix.text); };
    const bool any = std::ranges::any_of(folder.tensors(), begins);
    if (!any || (prefix.of_all && !std::ranges::all_of(folder.tensors(), begins))) continue;
    problems.add(concat(prefix.of_all ? "every name" : "names", " begin", prefix.of_all ? "s" : "",
                        " with \"", prefix.text, "\", as in the state of ", prefix.what));
    return true;
  }
  return false;
}

/// What wrappers and tools leave inside names.
struct NamePart {
  std::string_view text;
  std::string_view what;
};
constexpr NamePart kParts[] = {
    {"._fsdp_wrapped_module.", "a model sharded by FSDP: save its full state"},
    {"._checkpoint_wrapped_module.",
     "a model with wrapped checkpointing of activations: save the model without the wrappers"},
    {"._orig_mod.", "layers compiled by torch.compile: save the model without the wrappers"},
    {".base_layer.", "a model with adapters of PEFT: merge_and_unload it and save the result"},
    {".lora_", "a model with adapters (LoRA): merge_and_unload it and save the result"},
    {".qweight", "quantized weights (GPTQ, AWQ): take the model that was quantized"},
    {".weight_scale", "quantized weights: take the model that was quantized"},
    {".absmax", "weights quantized by bitsandbytes: take the model that was quantized"}};

void add_foreign_parts(const std::vector<std::string>& unexpected, ProblemList& problems) {
  for (const NamePart& part : kParts) {
    const auto has = [&](const std::string& name) {
      return name.find(part.text) != std::string::npos;
    };
    if (std::ranges::any_of(unexpected, has))
      problems.add(concat("names have \"", part.text, "\" inside, as in the state of ", part.what));
  }
}

/// What stands before all names that are missing, whoever put it there; "" when nothing does.
std::string common_prefix(const std::vector<std::string>& missing,
                          const std::vector<std::string>& unexpected) {
  const std::set<std::string_view> names(unexpected.begin(), unexpected.end());
  if (missing.empty()) return "";
  for (const std::string& name : unexpected) {
    for (const std::string_view tail : {std::string_view(missing[0]), base_name(missing[0])}) {
      if (name.size() == tail.size() || !name.ends_with(tail)) continue;
      const std::string prefix = name.substr(0, name.size() - tail.size());
      const auto is_there = [&](const std::string& other) {
        return names.contains(prefix + other) || names.contains(concat(prefix, base_name(other)));
      };
      if (prefix.ends_with('.') && std::ranges::all_of(missing, is_there)) return prefix;
    }
  }
  return "";
}

void add_names(ProblemList& problems, std::string_view what,
               const std::vector<std::string>& names) {
  if (!names.empty()) problems.add(concat(names.size(), " ", what, ": ", name_list(names)));
}

Available by_base_name(const WeightFolder& folder, ProblemList& problems) {
  Available tensors;
  for (const auto& [name, tensor] : folder.tensors()) {
    const auto [other, fresh] = tensors.emplace(base_name(name), tensor);
    if (!fresh) {
      problems.add(concat(printable(other->second.entry->name), " and ", printable(name),
                          " name the same parameter"));
    }
  }
  return tensors;
}

class FolderSource final : public ParameterSource {
 public:
  /// `head_is_equal`: a head that the model ties has been compared. `config` may be null; remarks
  /// get what is left over and doubtful.
  FolderSource(WeightFolder folder, const std::vector<ParameterSpec>& parameters,
               const ModelConfig* config, bool head_is_equal, std::vector<std::string>& remarks)
      : folder_(std::move(folder)) {
    ProblemList problems;
    const bool wrapped = add_wrapped_names(folder_, problems);
    const Available available = by_base_name(folder_, problems);
    std::vector<std::string> missing;
    std::set<std::string_view> used;
    std::set<std::pair<std::string_view, std::string>> declared;
    for (const ParameterSpec& parameter : parameters) {
      // Tied parameters come twice; only those that disagree say something new.
      if (!declared.emplace(parameter.name, to_string(parameter.shape)).second) continue;
      const std::string_view base = base_name(parameter.name);
      auto found = available.find(base);
      if (found == available.end() && is_embedding(base) && !declares_head(parameters))
        found = available.find(kHead);
      if (found == available.end()) {
        missing.push_back(parameter.name);
        continue;
      }
      used.insert(found->first);
      check(parameter, *found->second.entry, problems);
      tensors_.emplace(parameter.name, found->second);
    }
    std::vector<std::string> unexpected =
        examine_rest(available, used, config, head_is_equal, problems, remarks);
    if (const std::string prefix = common_prefix(missing, unexpected); !wrapped && !prefix.empty())
      problems.add(concat("names begin with \"", prefix,
                          "\", without which they are the model's: save that part alone"));
    add_foreign_parts(unexpected, problems);
    add_names(problems, "missing from the folder", missing);
    if (missing == std::vector<std::string>{std::string(kHead)} && unexpected.empty())
      problems.add(
          "where the head is the embedding, config.json says \"tie_word_embeddings\": true");
    add_names(problems, "in the folder but not in the model", unexpected);
    problems.throw_if_any(folder_.path(),
                          "the weights do not fit the model that config.json describes (both must "
                          "be of one model; correct config.json where it is wrong)");
  }

  void read(const ParameterSpec& parameter, std::span<const GlobalRun> runs,
            const View& dst) const override {
    const auto found = tensors_.find(parameter.name);
    if (found == tensors_.end()) {
      throw_invalid(concat(folder_.path(), ": parameter '", parameter.name,
                           "' is not among those the folder was opened for"));
    }
    for (const GlobalRun& run : runs) {
      found->second.file->read(*found->second.entry, run.global_first,
                               dst.flat(run.offset, run.count));
    }
  }

 private:
  static bool declares_head(const std::vector<ParameterSpec>& parameters) {
    return std::ranges::any_of(
        parameters, [](const ParameterSpec& parameter) { return parameter.name == kHead; });
  }

  /// What no parameter takes: the head of a model that ties it, what older releases saved, or
  /// something unexpected, which is returned.
  std::vector<std::string> examine_rest(const Available& available,
                                        const std::set<std::string_view>& used,
                                        const ModelConfig* config, bool head_is_equal,
                                        ProblemList& problems,
                                        std::vector<std::string>& remarks) const {
    std::vector<std::string> unexpected;
    std::map<std::string, std::vector<std::string>> doubtful;  // by the reason
    for (const auto& [base, tensor] : available) {
      if (used.count(base) != 0) continue;
      const std::string& name = tensor.entry->name;
      if (base == kHead && head_is_equal) continue;
      if (base == kHead && check_head(available, tensor, problems)) continue;
      const Leftover leftover = examine_leftover(tensor, config);
      if (!leftover.known) unexpected.push_back(name);
      if (!leftover.doubtful.empty()) doubtful[leftover.doubtful].push_back(name);
    }
    for (const auto& [reason, names] : doubtful)
      remarks.push_back(concat(names.size(), " tensors of the folder have no effect (", reason,
                               "): ", name_list(names)));
    return unexpected;
  }

  /// Against the embedding that the model ties it to; false when there is none.
  static bool check_head(const Available& available, const FileTensor& head,
                         ProblemList& problems) {
    const auto table = std::ranges::find_if(
        available, [](const auto& tensor) { return is_embedding(tensor.first); });
    if (table == available.end()) return false;
    const SafetensorsEntry& embedding = *table->second.entry;
    if (head.entry->shape != embedding.shape) {
      problems.add(concat(printable(head.entry->name), " has shape ", to_string(head.entry->shape),
                          " and ", printable(embedding.name), " ", to_string(embedding.shape),
                          ", and the model ties them (tie_word_embeddings)"));
    } else if (!same_values(head, table->second)) {
      problems.add(concat(printable(head.entry->name), " and ", printable(embedding.name),
                          " differ, and the model ties them (tie_word_embeddings)"));
    }
    return true;
  }

  static void check(const ParameterSpec& parameter, const SafetensorsEntry& entry,
                    ProblemList& problems) {
    if (!same_shape(entry.shape, parameter.shape)) {
      problems.add(concat(printable(entry.name), " has shape ", to_string(entry.shape),
                          ", the model expects ", to_string(parameter.shape)));
    }
    if (!entry.dtype || !is_floating(*entry.dtype)) {
      problems.add(concat(printable(entry.name), " has dtype ", entry.dtype_name,
                          ", expected F32, BF16, F16 or F64"));
    }
  }

  WeightFolder folder_;
  std::map<std::string, FileTensor, std::less<>> tensors_;
};

/// Names the weight files of the folder that no tensor comes from: another shard, an adapter.
void remark_unread_files(const WeightFolder& folder, std::vector<std::string>& remarks) {
  std::set<std::string> read;
  for (const auto& [name, tensor] : folder.tensors())
    read.insert(std::filesystem::path(tensor.file->path()).filename().string());
  std::vector<std::string> others;
  std::error_code code;
  for (std::filesystem::directory_iterator it(folder.path(), code), end; !code && it != end;
       it.increment(code)) {
    const std::string name = it->path().filename().string();
    const bool unread_index = name.ends_with(".safetensors.index.json") && read.size() == 1 &&
                              read.count("model.safetensors") != 0;
    const bool weights = name.starts_with("model") || name.starts_with("adapter_model") ||
                         name.starts_with("consolidated");  // other tensors may lie beside them
    if (unread_index || (weights && name.ends_with(".safetensors") && read.count(name) == 0))
      others.push_back(name);
  }
  if (others.empty()) return;
  std::ranges::sort(others);
  remarks.push_back(
      concat(others.size(), " weight files of the folder are not read: ", name_list(others)));
}

}  // namespace

std::unique_ptr<ParameterSource> open_folder(const std::string& path,
                                             const std::vector<ParameterSpec>& parameters) {
  std::vector<std::string> remarks;
  auto source =
      std::make_unique<FolderSource>(WeightFolder(path), parameters, nullptr, false, remarks);
  for (const std::string& remark : remarks) log_warning(concat(path, ": ", remark));
  return source;
}

std::unique_ptr<ParameterSource> open_model_folder(const std::string& path, ModelConfig& config) {
  WeightFolder folder(path);
  ProblemList ignored;  // FolderSource says it again
  const Available available = by_base_name(folder, ignored);
  const auto head = available.find(kHead);
  const auto table = std::ranges::find_if(
      available, [](const auto& tensor) { return is_embedding(tensor.first); });
  bool equal = false;
  if (config.tied && head != available.end() && table != available.end() &&
      head->second.entry->shape == table->second.entry->shape) {
    equal = same_values(head->second, table->second);
    if (!equal) {
      config.tied = false;
      config.remarks.push_back(concat("tie_word_embeddings is true, but ", head->second.entry->name,
                                      " is not ", table->second.entry->name,
                                      " in the folder: the two are not tied, and an export "
                                      "says so"));
    }
  }
  remark_unread_files(folder, config.remarks);
  return std::make_unique<FolderSource>(std::move(folder), list_parameters(*build_model(config)),
                                        &config, equal, config.remarks);
}

std::vector<TensorDeclaration> exported_tensors(const std::vector<ParameterSpec>& parameters,
                                                DType dtype) {
  std::vector<TensorDeclaration> tensors;
  std::set<std::string_view> names;
  for (const ParameterSpec& parameter : parameters) {
    if (names.insert(parameter.name).second) {
      tensors.push_back({parameter.name, parameter.shape, dtype});
    }
  }
  return tensors;
}

}  // namespace zero3d
