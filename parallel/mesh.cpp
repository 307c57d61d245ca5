#include "zero3d/parallel/mesh.h"

namespace zero3d {

Mesh::Mesh(Communicator& world, const GridDegrees& degrees)
    : topology_(world.size(), degrees), world_(world) {
  const int rank = world.rank();
  for (const Axis axis : kAxes) {
    Communicator*& group = groups_[static_cast<std::size_t>(axis)];
    if (topology_.degree(axis) == world.size()) group = &world;
    for (const Axis earlier : kAxes) {
      if (earlier == axis || group != nullptr) break;
      if (topology_.group(earlier, rank) == topology_.group(axis, rank))
        group = groups_[static_cast<std::size_t>(earlier)];
    }
    if (group != nullptr) continue;
    made_.push_back(topology_.degree(axis) == 1 ? make_self_communicator()
                                                : world.split(topology_.color(axis, rank), rank));
    group = made_.back().get();
  }
}

bool Mesh::first_of_its_batch() const {
  const Topology::Coordinates place = topology_.coordinates(world_.rank());
  return place.tp == 0 && place.sp == 0;
}

}  // namespace zero3d
