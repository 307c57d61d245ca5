#include "zero3d/engine/zero/model_part.h"

#include <numeric>

namespace zero3d {

ModelPart find_model_part(const ParamLayout& layout, const Mesh& mesh, const ZeroGroups& groups) {
  ModelPart part;
  part.mesh = &mesh;
  part.shard = groups.shard->rank();
  for (const LayoutParameter& parameter : layout.parameters())
    part.names.push_back(parameter.spec.name);
  part.numbers.resize(part.names.size());
  std::iota(part.numbers.begin(), part.numbers.end(), 0);
  for (const Unit& unit : layout.units())
    part.owner.push_back(groups.replica->rank() == 0 && unit.owned);
  return part;
}

}  // namespace zero3d
