#include "zero3d/formats/torch_weights.h"

#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/problem_list.h"

namespace zero3d {

TorchWeightFile::TorchWeightFile(std::string path) : archive_(std::move(path)) {
  const PickleValue root = archive_.root();
  if (!root.is(PickleKind::dict))
    throw IoError(archive_.path(), 0,
                  concat("expected a module's state (state_dict()), found ", root.describe()));
  ProblemList problems;
  std::map<std::string_view, const PickleTensor*> seen;
  for (std::size_t i = 0; i < root.size(); ++i) {
    const std::string* name = root.key(i).text();
    const PickleTensor* tensor = root[i].tensor();
    if (name == nullptr || tensor == nullptr) {
      problems.add(concat(name == nullptr ? root.key(i).describe() : printable(*name),
                          ": expected a tensor, found ", root[i].describe()));
      continue;
    }
    if (!seen.emplace(*name, tensor).second) {
      problems.add(concat("tensor ", printable(*name), " is there twice"));
      continue;
    }
    if (tensor->expanded()) {
      problems.add(concat("tensor ", printable(*name), " repeats its elements (a stride of 0)"));
      continue;
    }
    SafetensorsEntry entry;
    entry.name = *name;
    entry.dtype_name = tensor->type->name;
    entry.dtype = tensor->type->dtype;
    entry.shape = tensor->shape;
    tensors_.push_back(std::move(entry));
  }
  problems.throw_if_any(archive_.path(), "no file of a model's weights (its state_dict() alone)");
  for (const SafetensorsEntry& entry : tensors_) sources_.emplace(entry.name, seen.at(entry.name));
}

void TorchWeightFile::read(const SafetensorsEntry& entry, std::int64_t first,
                           const View& dst) const {
  archive_.read(*sources_.at(entry.name), first, dst);
}

}  // namespace zero3d
