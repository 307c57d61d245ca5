#include "zero3d/engine/zero/model_part.h"

#include <unordered_map>
#include <utility>

namespace zero3d {

ModelPart find_model_part(const ParamLayout& layout, std::vector<std::string> names,
                          bool ends_model, const Mesh& mesh, const ZeroGroups& groups) {
  ModelPart part;
  part.mesh = &mesh;
  part.shard = groups.shard->rank();
  part.counts_loss = ends_model && mesh.first_of_its_batch();
  part.names = std::move(names);
  std::unordered_map<std::string, int> numbers;
  for (std::size_t i = 0; i < part.names.size(); ++i)
    numbers.emplace(part.names[i], static_cast<int>(i));
  for (const LayoutParameter& parameter : layout.parameters())
    part.numbers.push_back(numbers.at(parameter.spec.name));
  for (const Unit& unit : layout.units()) {
    const bool first = groups.replica->rank() == 0;
    part.owner.push_back(first && unit.owned);
    // A copy is owned by the ranks at the same places of another stage.
    const bool copy = !unit.stages.empty() && unit.stages.front() != mesh.rank(Axis::pp);
    const bool whole_holder = mesh.rank(Axis::tp) % unit.holders == 0;
    part.stage_owner.push_back(first && (copy ? whole_holder : unit.owned));
  }
  return part;
}

}  // namespace zero3d
