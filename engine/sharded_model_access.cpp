// Whole parameters for the host: exports, and scopes that read or write parameters by name. What
// tensor parallelism cuts is put together here, part by part in host memory, and what a stage of a
// pipeline holds is told to the others.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

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

/// Units in host memory, each made whole once for all of its parameters, which may interleave with
/// those of others.
class OpenUnits {
 public:
  /// `units`: units_to_export().
  OpenUnits(Device& device, ParameterStore& store, std::vector<int> units)
      : device_(device), store_(store), units_(std::move(units)) {
    for (std::size_t i = 0; i < units_.size(); ++i) last_[units_[i]] = i;
  }

  bool has(std::size_t parameter) const { return units_[parameter] >= 0; }
  /// use(the whole unit of the parameter), one parameter after the other; collective where the unit
  /// is not open yet.
  void with(std::size_t parameter, const std::function<void(View)>& use) {
    const int unit = units_[parameter];
    if (open_.count(unit) == 0) open_.emplace(unit, store_.whole_copy(unit));
    use(device_.host_write(open_.at(unit)));
    if (last_.at(unit) == parameter) open_.erase(unit);
  }

 private:
  Device& device_;
  ParameterStore& store_;
  const std::vector<int> units_;
  std::map<int, std::size_t> last_;
  std::map<int, Tensor> open_;
};

}  // namespace

/// `stored`, in host memory, is this rank's part of a parameter, or of a piece of one. Collective
/// over the tensor-parallel ranks: on every one `global` gets what all of them have of it.
void ShardedModel::join_parts(const LayoutParameter& parameter, const ConstView& stored,
                              const View& global) {
  Communicator& tensor = mesh_.group(Axis::tp);
  if (tensor.size() == 1) return copy_to_global(parameter.placement, stored, global);
  const Tensor other(device_.memory(Tier::pageable), kNoStream, stored.dtype(), stored.shape(),
                     Category::gathered_parameters);
  for (int rank = 0; rank < tensor.size(); rank += parameter.placement.holders) {
    const bool mine = rank == tensor.rank();
    if (mine) std::memcpy(other.view().data(), stored.data(), stored.bytes());
    broadcast_host(other, tensor, rank);
    PlacementOptions options = plan_.layout.placement();
    options.tensor_parallel_rank = rank;
    copy_to_global(place_parameter(parameter.spec, options), other, global);
  }
}

/// Host memory for a whole parameter.
Tensor ShardedModel::global_copy(const ParameterSpec& spec) {
  return Tensor(device_.memory(Tier::pageable), kNoStream, plan_.dtype(), spec.shape,
                Category::gathered_parameters);
}

/// Host memory of `root` to all of `group`, by way of the device.
void ShardedModel::broadcast_host(const View& values, Communicator& group, int root) {
  const std::int64_t elements = std::min(values.numel(), ZeroPlan::kPassingElements);
  const Tensor passing(device_.memory(), compute(), values.dtype(), Shape{elements},
                       Category::gathered_parameters);
  const Tensor staging(device_.memory(Tier::pinned), kNoStream, values.dtype(), Shape{elements},
                       Category::gathered_parameters);
  for (std::int64_t done = 0; done < values.numel(); done += elements) {
    const View piece = values.flat(done, std::min(elements, values.numel() - done));
    const View through = passing.view().flat(0, piece.numel());
    const View here = staging.view().flat(0, piece.numel());
    if (group.rank() == root) {
      std::memcpy(device_.host_write(here).data(), piece.data(), piece.bytes());
      device_.copy(compute(), through, here);
    }
    group.broadcast(compute(), through, root);
    device_.copy(compute(), here, through);
    compute().synchronize();
    std::memcpy(piece.data(), device_.host_read(here).data(), piece.bytes());
  }
}

/// `stored`, of a whole unit, as the global parameter. Collective over the tensor-parallel ranks.
void ShardedModel::with_global(const LayoutParameter& parameter, const View& stored,
                               const std::function<void(const ConstView&)>& use) {
  if (parameter.placement.whole()) return use(stored.reshaped(parameter.placement.global));
  const Tensor global = global_copy(parameter.spec);
  join_parts(parameter, stored, global.view());
  use(global.view());
}

/// A parameter that is in pieces, piece by piece.
Tensor ShardedModel::gather_pieces(const std::vector<int>& pieces) {
  Tensor global = global_copy(plan_.layout.parameter(pieces.front()).spec);
  for (const int piece : pieces) {
    const LayoutParameter& p = plan_.layout.parameter(piece);
    store_->with_whole(p.unit, [&](View whole) { join_parts(p, p.view_in(whole), global.view()); });
  }
  return global;
}

void ShardedModel::for_each_parameter(
    const std::function<void(const ParameterSpec&, const ConstView&)>& use) {
  require_made();
  plan_exports();
  const std::vector<ParameterSpec> specs = plan_.model_layout().whole_parameters();
  OpenUnits units(device_, *store_, units_to_export(plan_));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto with_value = [&](const std::function<void(const ConstView&)>& then) {
      const int index = plan_.layout.find(specs[i].name);
      const LayoutParameter& parameter = plan_.layout.parameter(index);
      if (units.has(i)) {
        units.with(i, [&](View whole) { with_global(parameter, parameter.view_in(whole), then); });
      } else {
        then(gather_pieces(plan_.layout.pieces_of(index)).view());
      }
    };
    if (!plan_.pipeline.whole) {
      with_value([&](const ConstView& global) { use(specs[i], global); });
      continue;
    }
    // The stage that owns a parameter makes it whole, and tells the others.
    const Tensor value = global_copy(specs[i]);
    const int index = plan_.layout.find(specs[i].name);
    const bool owns = index >= 0 && is_first_holder(plan_.layout.parameter(index));
    if (owns)
      with_value([&](const ConstView& global) {
        std::memcpy(value.view().data(), global.data(), global.bytes());
      });
    tell_stages(mesh_.group(Axis::pp), value.view(), owns);
    use(specs[i], value.view());
  }
}

bool ShardedModel::is_first_holder(const LayoutParameter& parameter) const {
  return parameter.stages.empty() || parameter.stages.front() == mesh_.rank(Axis::pp);
}

/// The rank of this stage at the place of `rank`.
int ShardedModel::at_this_stage(int rank) const {
  Topology::Coordinates place = mesh_.topology().coordinates(rank);
  place.pp = mesh_.rank(Axis::pp);
  return mesh_.topology().rank_of(place);
}

/// `global` takes what `edit` makes of the parameter on the rank of the world `writer`, among the
/// tensor-parallel ranks that this one shares layers with.
void ShardedModel::edit_global(const ParameterSpec& spec, const View& global, int writer,
                               const std::function<void(const ParameterSpec&, View)>& edit) {
  edit(spec, global);
  Communicator& tensor = mesh_.group(Axis::tp);
  if (writer < 0 || tensor.size() == 1) return;
  const std::vector<int> ranks = mesh_.topology().group(Axis::tp, mesh_.world().rank());
  const auto found = std::find(ranks.begin(), ranks.end(), writer);
  if (found != ranks.end()) broadcast_host(global, tensor, static_cast<int>(found - ranks.begin()));
}

/// The same of a parameter that is one, `stored` in a whole unit in host memory.
void ShardedModel::edit_parameter(const LayoutParameter& parameter, const View& stored, int writer,
                                  const std::function<void(const ParameterSpec&, View)>& edit) {
  if (parameter.placement.whole())
    return edit_global(parameter.spec, stored.reshaped(parameter.placement.global), writer, edit);
  const Tensor global = global_copy(parameter.spec);
  join_parts(parameter, stored, global.view());
  edit_global(parameter.spec, global.view(), writer, edit);
  if (writer >= 0) copy_from_global(parameter.placement, global.view(), stored);
}

/// And of one that is in pieces, which are stored from the rank `source` of those that hold the
/// same.
void ShardedModel::edit_pieces(const std::vector<int>& pieces, int writer, int source,
                               const std::function<void(const ParameterSpec&, View)>& edit) {
  const Tensor global = gather_pieces(pieces);
  ParameterSpec spec = plan_.layout.parameter(pieces.front()).spec;
  spec.piece = {};
  spec.tile = kEveryTile;
  edit_global(spec, global.view(), writer, edit);
  if (writer < 0) return;
  for (const int piece : pieces) {
    const LayoutParameter& p = plan_.layout.parameter(piece);
    store_->with_whole(p.unit, [&](View whole) {
      copy_from_global(p.placement, global.view(), p.view_in(whole));
      store_->store_whole(p.unit, whole, mesh_.group(Axis::zero), source);
    });
    if (!p.spec.frozen) optimizer_->refresh_master(piece);
  }
}

void ShardedModel::with_parameters(const std::vector<std::string>& names, int writer,
                                   const std::function<void(const ParameterSpec&, View)>& edit) {
  require_made();
  if (writer >= 0) writer = at_this_stage(writer);
  if (writer >= 0) flush_updates();
  const ParamLayout& layout = plan_.layout;
  for (const std::string& name : names) {
    const bool elsewhere = plan_.pipeline.whole && plan_.pipeline.whole->find(name) >= 0;
    if (layout.find(name) < 0 && !elsewhere)
      throw_invalid(concat("the model has no parameter named ", name));
  }
  plan_exports();
  int source = 0;  // the writer's place among those that hold the same: its tp ranks have the same
  if (writer >= 0) {
    const std::vector<int> ranks = mesh_.topology().group(Axis::zero, writer);
    source = static_cast<int>(std::find(ranks.begin(), ranks.end(), writer) - ranks.begin());
  }
  std::vector<std::vector<int>> wanted(layout.units().size());
  for (const std::string& name : names) {
    const int index = layout.find(name);
    if (index < 0) continue;
    if (layout.pieces_of(index).size() > 1) {
      edit_pieces(layout.pieces_of(index), writer, source, edit);
    } else {
      wanted[static_cast<std::size_t>(layout.parameter(index).unit)].push_back(index);
    }
  }
  for (int unit = 0; unit < plan_.layout.unit_count(); ++unit) {
    const std::vector<int>& parameters = wanted[static_cast<std::size_t>(unit)];
    if (parameters.empty()) continue;
    store_->with_whole(unit, [&](View whole) {
      for (int index : parameters) {
        const LayoutParameter& p = plan_.layout.parameter(index);
        edit_parameter(p, p.view_in(whole), writer, edit);
      }
      if (writer >= 0) store_->store_whole(unit, whole, mesh_.group(Axis::zero), source);
    });
    if (writer < 0 || plan_.layout.unit(unit).frozen) continue;
    for (int index : parameters) optimizer_->refresh_master(index);
  }
}

}  // namespace zero3d
