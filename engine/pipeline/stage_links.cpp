#include "zero3d/engine/pipeline/stage_links.h"

#include <algorithm>
#include <set>

#include "zero3d/core/error.h"
#include "zero3d/device/device.h"

namespace zero3d {

std::vector<std::vector<StageFlow>> flow_rounds(const PipelineShape& shape) {
  std::set<StageFlow> flows;
  for (int segment = 0; segment + 1 < shape.segments(); ++segment) {
    const int below = shape.stage_of(segment);
    const int above = shape.stage_of(segment + 1);
    if (below == above) continue;
    flows.insert({false, below, above});
    flows.insert({true, above, below});
  }
  std::vector<std::vector<StageFlow>> rounds;
  for (const StageFlow& flow : flows) {
    const auto free = [&flow](const std::vector<StageFlow>& round) {
      return std::none_of(round.begin(), round.end(), [&flow](const StageFlow& other) {
        return other.from == flow.from || other.from == flow.to || other.to == flow.from ||
               other.to == flow.to;
      });
    };
    auto round = std::find_if(rounds.begin(), rounds.end(), free);
    if (round == rounds.end()) round = rounds.emplace(rounds.end());
    round->push_back(flow);
  }
  return rounds;
}

StageLinks::StageLinks(Stream& sending, Stream& receiving, const PipelineShape& shape,
                       const Mesh& mesh)
    : sending_(sending), receiving_(receiving), connected_(true) {
  Communicator& stages = mesh.group(Axis::pp);
  const int mine = stages.rank();
  std::map<StageFlow, Communicator*> by_flow;
  for (const std::vector<StageFlow>& round : flow_rounds(shape)) {
    const auto flow = std::find_if(round.begin(), round.end(), [mine](const StageFlow& one) {
      return one.from == mine || one.to == mine;
    });
    // Those of a flow by its first stage; everybody else alone.
    const int color = flow == round.end() ? shape.stages + mine : flow->from;
    made_.push_back(stages.split(color, mine));
    if (flow != round.end()) by_flow[*flow] = made_.back().get();
  }
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    const int segment = shape.segment_of(mine, chunk);
    const auto join = [&](OpKind kind, const StageFlow& flow) {
      if (flow.from != flow.to) links_[{kind, chunk}] = by_flow.at(flow);
    };
    if (segment > 0) {
      const int below = shape.stage_of(segment - 1);
      join(OpKind::receive_values, {false, below, mine});
      join(OpKind::send_gradients, {true, mine, below});
    }
    if (segment + 1 < shape.segments()) {
      const int above = shape.stage_of(segment + 1);
      join(OpKind::send_values, {false, mine, above});
      join(OpKind::receive_gradients, {true, above, mine});
    }
  }
}

Communicator* StageLinks::link(const Op& op) const {
  const auto found = links_.find({op.kind, op.chunk});
  ZERO3D_CHECK(found != links_.end(), "a transfer between stages that are not linked");
  return found->second;
}

void StageLinks::send(const Op& op, const ConstView& data) {
  if (!connected_) return;
  Communicator& pair = *link(op);
  pair.send(sending_, data, 1 - pair.rank());
}

void StageLinks::receive(const Op& op, const View& data) {
  if (!connected_) {
    receiving_.device().fill_zero(receiving_, data);
    return;
  }
  Communicator& pair = *link(op);
  pair.recv(receiving_, data, 1 - pair.rank());
}

}  // namespace zero3d
