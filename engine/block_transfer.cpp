// What a BlockRunner sends to other stages of a pipeline and gets from them, on streams of their
// own: the compute stream waits for what has come, and nothing waits for what goes.
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/block_runner.h"

namespace zero3d {
namespace {

using Source = BorderValue::Source;

/// `stream` comes after what `other` has been given so far.
void follow(Stream& stream, Stream& other) {
  Event here;
  other.record(here);
  stream.wait(here);
}

/// The values that a dry run saw are those of the run: other ranks count on it.
void require_as_planned(const Border& border, const Values& values, bool gradients) {
  bool same = values.size() == border.size();
  for (std::size_t i = 0; same && i < border.size(); ++i) {
    const BorderValue& planned = border[i];
    if (gradients ? !planned.has_gradient : planned.source != Source::sent) continue;
    same = values[i].defined() && values[i].shape() == planned.shape &&
           values[i].dtype() == (gradients ? planned.gradient_dtype : planned.dtype);
  }
  if (same) return;
  throw_invalid(concat(
      "a block at the end of a pipeline's stage gave other ", gradients ? "gradients" : "values",
      " than in the dry run that told the next stage what comes: shapes and dtypes may depend on "
      "the shape of the batch alone"));
}

}  // namespace

/// What is given to block number `block` of the model.
const Border& BlockRunner::border(int block, const MicroBatchRun& run) const {
  ZERO3D_CHECK(run.input.borders != nullptr, "a stage with neighbours has borders");
  return run.input.borders->at(block);
}

/// The bytes may have had another use on the compute stream, which the stream that fills them comes
/// after: tasks before the one that waits for them are still to be enqueued there.
void BlockRunner::receive(const Op& op, MicroBatchRun& run) {
  const Chunk& chunk = options_.stage.chunk(op.chunk);
  const bool gradients = op.kind == OpKind::receive_gradients;
  const int next = chunk.first_block + chunk.end - chunk.begin;
  Arrival arrival;
  for (const BorderValue& value : border(gradients ? next : chunk.first_block, run)) {
    Tensor& tensor = arrival.values.emplace_back();
    if (!gradients && value.used)
      tensor = load(value.source == Source::tokens ? run.input.tokens : run.input.targets, run);
    if (gradients ? value.has_gradient : value.source == Source::sent)
      tensor = Tensor(device_.memory(), compute_, gradients ? value.gradient_dtype : value.dtype,
                      value.shape, Category::activations);
  }
  StageLinks& links = *options_.links;
  follow(links.receiving(), compute_);
  const Border& planned = border(gradients ? next : chunk.first_block, run);
  for (std::size_t i = 0; i < planned.size(); ++i) {
    if (gradients ? planned[i].has_gradient : planned[i].source == Source::sent)
      links.receive(op, arrival.values[i]);
  }
  links.receiving().record(arrival.arrived);
  (gradients ? run.coming_gradients : run.coming_values)
      .insert_or_assign(op.chunk, std::move(arrival));
}

void BlockRunner::send(const Op& op, MicroBatchRun& run) {
  const Chunk& chunk = options_.stage.chunk(op.chunk);
  const bool gradients = op.kind == OpKind::send_gradients;
  const Border& planned =
      border(gradients ? chunk.first_block : chunk.first_block + chunk.end - chunk.begin, run);
  Values& values = gradients ? run.gradients : run.values;
  require_as_planned(planned, values, gradients);
  StageLinks& links = *options_.links;
  follow(links.sending(), compute_);
  for (std::size_t i = 0; i < planned.size(); ++i) {
    if (gradients ? planned[i].has_gradient : planned[i].source == Source::sent)
      links.send(op, values[i]);
  }
  Event sent;
  links.sending().record(sent);
  for (Tensor& value : values)
    if (value.defined()) value.used_on(sent);
  values.clear();
  if (gradients) end_if_over(op.micro_batch);
}

/// At the first operation of a chunk: what other stages sent for it takes the place of what the
/// chunk before left, unless that is on this rank.
void BlockRunner::take_arrivals(const Op& op, MicroBatchRun& run) {
  const bool forward = op.kind == OpKind::forward;
  if (options_.stage.chunks.empty()) return;
  const Chunk& chunk = options_.stage.chunk(op.chunk);
  if (op.block != (forward ? chunk.begin : chunk.end - 1)) return;
  auto& coming = forward ? run.coming_values : run.coming_gradients;
  const auto found = coming.find(op.chunk);
  if (found == coming.end()) return;
  compute_.wait(found->second.arrived);
  (forward ? run.values : run.gradients) = std::move(found->second.values);
  coming.erase(found);
}

/// After a step that failed: what the compute stream has not waited for is still being filled.
void BlockRunner::abandon_arrivals(MicroBatchRun& run) {
  for (auto* coming : {&run.coming_values, &run.coming_gradients}) {
    for (auto& [chunk, arrival] : *coming) {
      for (Tensor& value : arrival.values)
        if (value.defined()) value.used_on(arrival.arrived);
    }
    coming->clear();
  }
}

}  // namespace zero3d
