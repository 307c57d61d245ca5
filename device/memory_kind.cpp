#include "zero3d/device/memory_kind.h"

namespace zero3d {

std::string_view name_of(Tier tier) {
  switch (tier) {
    case Tier::device:
      return "device memory";
    case Tier::pinned:
      return "pinned host memory";
    case Tier::pageable:
      break;
  }
  return "pageable host memory";
}

std::string_view name_of(Category category) {
  switch (category) {
    case Category::activations:
      return "activations";
    case Category::batches:
      return "batches";
    case Category::gathered_parameters:
      return "gathered parameters";
    case Category::gradient_buckets:
      return "gradient buckets";
    case Category::gradients:
      return "gradients";
    case Category::norm_workspace:
      return "norm workspace";
    case Category::optimizer_states:
      return "optimizer states";
    case Category::optimizer_workspace:
      return "optimizer workspace";
    case Category::other:
      return "other";
    case Category::parameters:
      return "parameters";
    case Category::workspace:
      break;
  }
  return "workspace";
}

}  // namespace zero3d
