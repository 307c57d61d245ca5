// Whole parameters for the host: exports, and scopes that read or write parameters by name.
#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/sharded_model.h"

namespace zero3d {

void ShardedModel::for_each_parameter(
    const std::function<void(const ParameterSpec&, const ConstView&)>& use) {
  const ParamLayout& layout = plan_.layout;
  const std::vector<std::vector<int>>& wholes = layout.wholes();
  const std::vector<ParameterSpec> specs = layout.whole_parameters();
  for (std::size_t next = 0; next < wholes.size();) {
    if (wholes[next].size() > 1) {
      Tensor value;
      gather_pieces(wholes[next], value);
      use(specs[next++], value.view());
      continue;
    }
    const auto unit_of = [&](std::size_t i) { return layout.parameter(wholes[i].front()).unit; };
    const int unit =
        unit_of(next);  // made anew for each run of its parameters: units may interleave
    store_->with_whole(unit, [&](View whole) {
      for (; next < wholes.size() && wholes[next].size() == 1 && unit_of(next) == unit; ++next) {
        const LayoutParameter& p = layout.parameter(wholes[next].front());
        Tensor copy;
        use(specs[next],
            view_as_global(p.placement, p.view_in(whole), device_.memory(Tier::pageable), copy));
      }
    });
  }
}

/// The whole parameter in host memory, piece by piece.
void ShardedModel::gather_pieces(const std::vector<int>& pieces, Tensor& value) {
  const LayoutParameter& first = plan_.layout.parameter(pieces.front());
  value = Tensor(device_.memory(Tier::pageable), kNoStream, plan_.dtype(), first.spec.shape,
                 Category::gathered_parameters);
  for (const int piece : pieces) {
    const LayoutParameter& p = plan_.layout.parameter(piece);
    store_->with_whole(
        p.unit, [&](View whole) { copy_to_global(p.placement, p.view_in(whole), value.view()); });
  }
}

/// with_parameters() for one that is in pieces.
void ShardedModel::edit_pieces(const std::vector<int>& pieces, int writer,
                               const std::function<void(const ParameterSpec&, View)>& edit) {
  Tensor value;
  gather_pieces(pieces, value);
  const LayoutParameter& first = plan_.layout.parameter(pieces.front());
  edit(plan_.layout.whole_parameters()[static_cast<std::size_t>(first.whole)], value.view());
  if (writer < 0) return;
  for (const int piece : pieces) {
    const LayoutParameter& p = plan_.layout.parameter(piece);
    store_->with_whole(p.unit, [&](View whole) {
      copy_from_global(p.placement, value.view(), p.view_in(whole));
      store_->store_whole(p.unit, whole, mesh_.group(Axis::zero), writer);
    });
    if (!p.spec.frozen) optimizer_->refresh_master(piece);
  }
}

void ShardedModel::with_parameters(const std::vector<std::string>& names, int writer,
                                   const std::function<void(const ParameterSpec&, View)>& edit) {
  std::vector<std::vector<int>> wanted(plan_.layout.units().size());
  for (const std::string& name : names) {
    const int index = plan_.layout.find(name);
    if (index < 0) throw_invalid(concat("the model has no parameter named ", name));
  }
  for (const std::string& name : names) {
    const int index = plan_.layout.find(name);
    if (plan_.layout.pieces_of(index).size() > 1) {
      edit_pieces(plan_.layout.pieces_of(index), writer, edit);
      continue;
    }
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
