#include "zero3d/engine/checkpoint/saved_state.h"

namespace zero3d {

void SavedState::set_parameters(std::vector<SavedParameter> parameters) {
  parameters_ = std::move(parameters);
  index_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) index_.emplace(parameters_[i].name, i);
}

const SavedParameter* SavedState::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &parameters_[found->second];
}

}  // namespace zero3d
