// Whole parameters for the host: exports, and scopes that read or write parameters by name. What
// tensor parallelism cuts is put together here, part by part in host memory.
#include <algorithm>
#include <cstring>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/sharded_model.h"

namespace zero3d {

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

void ShardedModel::for_each_parameter(
    const std::function<void(const ParameterSpec&, const ConstView&)>& use) {
  require_made();
  const std::vector<LayoutParameter>& parameters = plan_.layout.parameters();
  auto next = parameters.begin();
  while (next != parameters.end()) {
    const int unit = next->unit;  // made anew for each run of its parameters: units may interleave
    store_->with_whole(unit, [&](View whole) {
      for (; next != parameters.end() && next->unit == unit; ++next) {
        const View stored = next->view_in(whole);
        if (next->placement.whole()) {
          use(next->spec, stored.reshaped(next->placement.global));
        } else {
          const Tensor global = join_parts(*next, stored);
          use(next->spec, global.view());
        }
      }
    });
  }
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
  std::vector<std::vector<int>> wanted(plan_.layout.units().size());
  for (const std::string& name : names) {
    const int index = plan_.layout.find(name);
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
