#include "zero3d/models/hf_folder.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/problem_list.h"
#include "zero3d/formats/safetensors.h"

namespace zero3d {
namespace {

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

/// The name without the prefix of the base model, with which some files are written and some not.
std::string_view base_name(std::string_view name) {
  for (const std::string_view prefix : {"transformer.", "model."}) {
    if (name.substr(0, prefix.size()) == prefix) return name.substr(prefix.size());
  }
  return name;
}

/// Tensors that a file may hold beside the model's parameters: causal masks and rotary tables of
/// older versions of transformers, and the head of a model that ties it to the embedding.
bool is_ignorable(std::string_view name) {
  return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias") ||
         ends_with(name, ".rotary_emb.inv_freq") || name == "lm_head.weight";
}

void add_names(ProblemList& problems, std::string_view what,
               const std::vector<std::string>& names) {
  if (!names.empty()) problems.add(concat(names.size(), " ", what, ": ", name_list(names)));
}

class FolderSource final : public ParameterSource {
 public:
  FolderSource(const std::string& path, const std::vector<ParameterSpec>& parameters)
      : folder_(path) {
    ProblemList problems;
    const auto available = tensors_by_base_name(problems);
    std::vector<std::string> missing;
    std::set<std::string_view> used;
    std::set<std::pair<std::string_view, std::string>> declared;
    for (const ParameterSpec& parameter : parameters) {
      // Tied parameters come twice; only those that disagree say something new.
      if (!declared.emplace(parameter.name, to_string(parameter.shape)).second) continue;
      const std::string_view base = base_name(parameter.name);
      used.insert(base);
      const auto found = available.find(base);
      if (found == available.end()) {
        missing.push_back(parameter.name);
        continue;
      }
      check(parameter, *found->second.entry, problems);
      tensors_.emplace(parameter.name, found->second);
    }
    std::vector<std::string> unexpected;
    for (const auto& [base, tensor] : available) {
      if (!used.count(base) && !is_ignorable(tensor.entry->name)) {
        unexpected.push_back(tensor.entry->name);
      }
    }
    add_names(problems, "missing from the folder", missing);
    add_names(problems, "in the folder but not in the model", unexpected);
    problems.throw_if_any(path, "the weights do not fit the model that config.json describes");
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
  using Tensor = SafetensorsFolder::Tensor;

  std::map<std::string_view, Tensor> tensors_by_base_name(ProblemList& problems) const {
    std::map<std::string_view, Tensor> tensors;
    for (const auto& [name, tensor] : folder_.tensors()) {
      const auto [other, fresh] = tensors.emplace(base_name(name), tensor);
      if (!fresh) {
        problems.add(concat(printable(other->second.entry->name), " and ", printable(name),
                            " name the same parameter"));
      }
    }
    return tensors;
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

  SafetensorsFolder folder_;
  std::map<std::string, Tensor, std::less<>> tensors_;
};

}  // namespace

std::unique_ptr<ParameterSource> open_folder(const std::string& path,
                                             const std::vector<ParameterSpec>& parameters) {
  return std::make_unique<FolderSource>(path, parameters);
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
