// What a stage of a pipeline sends to its neighbours and receives from them: a communicator of two
// for each flow (values or gradients, from one stage to another), and the two streams that they are
// used from, beside the compute stream and ordered with it by events. A send is buffered by its
// communicator and never waits for who receives.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "zero3d/engine/pipeline/pipeline_schedule.h"
#include "zero3d/engine/schedule.h"
#include "zero3d/parallel/mesh.h"

namespace zero3d {

class StageLinks {
 public:
  /// Leads nowhere, and brings zeros: for dry runs, and blocks that are measured alone.
  StageLinks(Stream& sending, Stream& receiving) : sending_(sending), receiving_(receiving) {}
  /// Collective over the mesh's pp groups.
  StageLinks(Stream& sending, Stream& receiving, const PipelineShape& shape, const Mesh& mesh);

  Stream& sending() { return sending_; }
  Stream& receiving() { return receiving_; }
  /// Enqueues on sending(): to where the operation's chunk gives its values or gradients.
  void send(const Op& op, const ConstView& data);
  /// Enqueues on receiving().
  void receive(const Op& op, const View& data);

 private:
  Communicator* link(const Op& op) const;

  Stream& sending_;
  Stream& receiving_;
  bool connected_ = false;
  std::vector<std::unique_ptr<Communicator>> made_;
  std::map<std::pair<OpKind, int>, Communicator*> links_;  ///< By kind of operation and chunk.
};

/// A flow of messages: `gradients` or values, between two stages.
struct StageFlow {
  bool gradients = false;
  int from = 0;
  int to = 0;
  friend auto operator<=>(const StageFlow&, const StageFlow&) = default;
};
/// All flows of a pipeline, in rounds in which each stage has one at most: as many splits make the
/// communicators.
std::vector<std::vector<StageFlow>> flow_rounds(const PipelineShape& shape);

}  // namespace zero3d
