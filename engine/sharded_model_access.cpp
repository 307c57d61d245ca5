// Whole parameters for the host: exports, and scopes that read or write parameters by name.
#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/sharded_model.h"

namespace zero3d {

void ShardedModel::for_each_parameter(
    const std::function<void(const ParameterSpec&, const ConstView&)>& use) {
  require_made();
  const std::vector<LayoutParameter>& parameters = plan_.layout.parameters();
  auto next = parameters.begin();
  while (next != parameters.end()) {
    const int unit = next->unit;  // made anew for each run of its parameters: units may interleave
    store_->with_whole(unit, [&](View whole) {
      for (; next != parameters.end() && next->unit == unit; ++next) {
        Tensor copy;
        use(next->spec, view_as_global(next->placement, next->view_in(whole),
                                       device_.memory(Tier::pageable), copy));
      }
    });
  }
}

void ShardedModel::with_parameters(const std::vector<std::string>& names, int writer,
                                   const std::function<void(const ParameterSpec&, View)>& edit) {
  require_made();
  if (writer >= 0) flush_updates();
  std::vector<std::vector<int>> wanted(plan_.layout.units().size());
  for (const std::string& name : names) {
    const int index = plan_.layout.find(name);
    if (index < 0) throw_invalid(concat("the model has no parameter named ", name));
    wanted[static_cast<std::size_t>(plan_.layout.parameter(index).unit)].push_back(index);
  }
  for (int unit = 0; unit < plan_.layout.unit_count(); ++unit) {
    const std::vector<int>& parameters = wanted[static_cast<std::size_t>(unit)];
    if (parameters.empty()) continue;
    store_->with_whole(unit, [&](View whole) {
      for (int index : parameters) {
        const LayoutParameter& p = plan_.layout.parameter(index);
        Tensor moved;
        const View stored = p.view_in(whole);
        const View global =
            view_as_global(p.placement, stored, device_.memory(Tier::pageable), moved);
        edit(p.spec, global);
        if (moved.defined()) copy_from_global(p.placement, global, stored);
      }
      if (writer >= 0) store_->store_whole(unit, whole, mesh_.group(Axis::zero), writer);
    });
    if (writer < 0 || plan_.layout.unit(unit).frozen) continue;
    for (int index : parameters) optimizer_->refresh_master(index);
  }
}

}  // namespace zero3d
