// Whole parameters for the host: exports, and scopes that read or write parameters by name. What
// tensor parallelism cuts is put together here, part by part in host memory, and what a stage of a
// pipeline holds is told to the others.
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

/// `stored`, in host memory: this rank's part of a parameter that is cut. Collective over the
/// tensor-parallel ranks: every one gets the global tensor.
Tensor ShardedModel::join_parts(const LayoutParameter& parameter, const ConstView& stored) {
  Communicator& tensor = mesh_.group(Axis::tp);
  TrackingResource& host = device_.memory(Tier::pageable);
  Tensor global(host, kNoStream, stored.dtype(), parameter.placement.global,
                Category::gathered_parameters);
  Tensor other(host, kNoStream, stored.dtype(), stored.shape(), Category::gathered_parameters);
  for (int rank = 0; rank < tensor.size(); rank += parameter.placement.holders) {
    const bool mine = rank == tensor.rank();
    if (mine) std::memcpy(other.view().data(), stored.data(), stored.bytes());
    broadcast_host(other, tensor, rank);
    PlacementOptions options = plan_.layout.placement();
    options.tensor_parallel_rank = rank;
    copy_to_global(place_parameter(parameter.spec, options), other, global);
  }
  return global;
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
  const Tensor global = join_parts(parameter, stored);
  use(global.view());
}

void ShardedModel::for_each_parameter(
    const std::function<void(const ParameterSpec&, const ConstView&)>& use) {
  require_made();
  if (plan_.pipeline.whole) return for_each_of_all_stages(use);
  const std::vector<LayoutParameter>& parameters = plan_.layout.parameters();
  auto next = parameters.begin();
  while (next != parameters.end()) {
    const int unit = next->unit;  // made anew for each run of its parameters: units may interleave
    store_->with_whole(unit, [&](View whole) {
      for (; next != parameters.end() && next->unit == unit; ++next) {
        with_global(*next, next->view_in(whole),
                    [&](const ConstView& global) { use(next->spec, global); });
      }
    });
  }
}

/// The stage that owns a parameter makes it whole, and tells the others.
void ShardedModel::for_each_of_all_stages(
    const std::function<void(const ParameterSpec&, const ConstView&)>& use) {
  for (const LayoutParameter& global : plan_.pipeline.whole->parameters()) {
    const Tensor value(device_.memory(Tier::pageable), kNoStream, plan_.dtype(), global.spec.shape,
                       Category::gathered_parameters);
    const int index = plan_.layout.find(global.spec.name);
    const bool owns = index >= 0 && is_first_holder(plan_.layout.parameter(index));
    if (owns) {
      const LayoutParameter& here = plan_.layout.parameter(index);
      store_->with_whole(here.unit, [&](View whole) {
        with_global(here, here.view_in(whole), [&](const ConstView& as_global) {
          std::memcpy(value.view().data(), as_global.data(), as_global.bytes());
        });
      });
    }
    tell_stages(mesh_.group(Axis::pp), value.view(), owns);
    use(global.spec, value.view());
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

/// `stored`, whole units in host memory, takes what `edit` makes of the parameter on the rank of
/// the world `writer`, among the tensor-parallel ranks that this one shares layers with.
void ShardedModel::edit_parameter(const LayoutParameter& parameter, const View& stored, int writer,
                                  const std::function<void(const ParameterSpec&, View)>& edit) {
  const bool whole = parameter.placement.whole();
  const Tensor joined = whole ? Tensor() : join_parts(parameter, stored);
  const View global = whole ? stored.reshaped(parameter.placement.global) : joined.view();
  edit(parameter.spec, global);
  Communicator& tensor = mesh_.group(Axis::tp);
  if (writer < 0 || tensor.size() == 1) return;
  const std::vector<int> ranks = mesh_.topology().group(Axis::tp, mesh_.world().rank());
  const auto found = std::find(ranks.begin(), ranks.end(), writer);
  if (found != ranks.end()) broadcast_host(global, tensor, static_cast<int>(found - ranks.begin()));
  if (!whole) copy_from_global(parameter.placement, global, stored);
}

void ShardedModel::with_parameters(const std::vector<std::string>& names, int writer,
                                   const std::function<void(const ParameterSpec&, View)>& edit) {
  require_made();
  if (writer >= 0) writer = at_this_stage(writer);
  if (writer >= 0) flush_updates();
  std::vector<std::vector<int>> wanted(plan_.layout.units().size());
  for (const std::string& name : names) {
    const int index = plan_.layout.find(name);
    const bool elsewhere = plan_.pipeline.whole && plan_.pipeline.whole->find(name) >= 0;
    if (index < 0 && elsewhere) continue;
    if (index < 0) throw_invalid(concat("the model has no parameter named ", name));
    wanted[static_cast<std::size_t>(plan_.layout.parameter(index).unit)].push_back(index);
  }
  int source = 0;  // the writer's place among those that hold the same: its tp ranks have the same
  if (writer >= 0) {
    const std::vector<int> ranks = mesh_.topology().group(Axis::zero, writer);
    source = static_cast<int>(std::find(ranks.begin(), ranks.end(), writer) - ranks.begin());
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
