// Whole parameters for the host: exports, and scopes that read or write parameters by name.
#include <algorithm>
#include <cstring>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/sharded_model.h"

namespace zero3d {
namespace {

/// `value`, in host memory, is on every stage what it is on the one that `has` it.
void tell_stages(Communicator& stages, const View& value, bool has) {
  constexpr std::size_t kPiece = std::size_t{8} << 20;
  auto* const data = reinterpret_cast<char*>(value.data());
  for (std::size_t done = 0; done < value.bytes(); done += kPiece) {
    const std::size_t count = std::min(kPiece, value.bytes() - done);
    const std::vector<std::string> all =
        stages.exchange(has ? std::string(data + done, count) : std::string());
    for (const std::string& part : all)
      if (!has && !part.empty()) std::memcpy(data + done, part.data(), part.size());
  }
}

}  // namespace

void ShardedModel::for_each_parameter(
    const std::function<void(const ParameterSpec&, const ConstView&)>& use) {
  if (plan_.pipeline.whole) return for_each_of_all_stages(use);
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

/// The stage that owns a parameter makes it whole, and tells the others.
void ShardedModel::for_each_of_all_stages(
    const std::function<void(const ParameterSpec&, const ConstView&)>& use) {
  for (const LayoutParameter& global : plan_.pipeline.whole->parameters()) {
    const Shape& shape = global.spec.shape;
    const Tensor value(device_.memory(Tier::pageable), kNoStream, plan_.dtype(), shape,
                       Category::gathered_parameters);
    const int index = plan_.layout.find(global.spec.name);
    const bool owns = index >= 0 && is_first_holder(plan_.layout.parameter(index));
    if (owns) {
      const LayoutParameter& here = plan_.layout.parameter(index);
      store_->with_whole(here.unit, [&](View whole) {
        Tensor copy;
        const View as_global = view_as_global(here.placement, here.view_in(whole),
                                              device_.memory(Tier::pageable), copy);
        std::memcpy(value.view().data(), as_global.data(), as_global.bytes());
      });
    }
    tell_stages(mesh_.group(Axis::pp), value.view(), owns);
    use(global.spec, value.view());
  }
}

bool ShardedModel::is_first_holder(const LayoutParameter& parameter) const {
  return parameter.stages.empty() || parameter.stages.front() == mesh_.rank(Axis::pp);
}

void ShardedModel::with_parameters(const std::vector<std::string>& names, int writer,
                                   const std::function<void(const ParameterSpec&, View)>& edit) {
  std::vector<std::vector<int>> wanted(plan_.layout.units().size());
  for (const std::string& name : names) {
    const int index = plan_.layout.find(name);
    const bool elsewhere = plan_.pipeline.whole && plan_.pipeline.whole->find(name) >= 0;
    if (index < 0 && elsewhere) continue;
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
