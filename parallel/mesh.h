// The ranks of a run as a grid, and the groups that it makes. Who reads which samples, whose loss
// counts, who holds a copy of what: all of it is asked here, so that "all ranks" and "all replicas
// of the model" are two things also where they are the same ranks.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "zero3d/parallel/comm/communicator.h"
#include "zero3d/parallel/topology.h"

namespace zero3d {

class Mesh {
 public:
  /// Collective over `world`, all ranks of the run, which must outlive this. Throws as Topology.
  Mesh(Communicator& world, const GridDegrees& degrees);
  /// All of them data parallel.
  explicit Mesh(Communicator& world) : Mesh(world, {.dp = world.size()}) {}

  const Topology& topology() const { return topology_; }
  Communicator& world() const { return world_; }
  /// This rank's group along `axis`, in the order of world ranks. Axes along which the same ranks
  /// meet share one communicator, which may be world(): it is for the compute stream and the host;
  /// for another stream split one off.
  Communicator& group(Axis axis) const { return *groups_[static_cast<std::size_t>(axis)]; }
  int rank(Axis axis) const { return group(axis).rank(); }
  int size(Axis axis) const { return group(axis).size(); }

  /// Tells and writes what is told and written once.
  bool leads() const { return world_.rank() == 0; }
  /// Of the ranks of a stage that read the same samples, this is the first: what they all have
  /// counts here.
  bool first_of_its_batch() const;
  /// A rank of the world, as Topology::describe.
  std::string describe(int rank) const { return topology_.describe(rank); }

 private:
  Topology topology_;
  Communicator& world_;
  std::vector<std::unique_ptr<Communicator>> made_;
  std::array<Communicator*, kAxes.size()> groups_{};
};

}  // namespace zero3d
