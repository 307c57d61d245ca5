// What the ranks tell each other once a step: the squared gradient norm, the first parameter with a
// non-finite gradient, the loss. The one place where the host waits within a step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "zero3d/core/exact_sum.h"
#include "zero3d/device/device.h"
#include "zero3d/engine/zero/model_part.h"
#include "zero3d/kernels/exact_sums.h"

namespace zero3d {

struct StepReport {
  double gradient_norm = 0;  ///< Of the averaged gradients as they are: still times the loss scale.
                             ///< inf or NaN if any element is.
  double loss = 0;  ///< Mean, over the micro-batches of all data-parallel ranks that have a target,
                    ///< of each one's mean; NaN when none has.
  std::int64_t losses = 0;  ///< How many have.
  bool finite = true;       ///< Every gradient element is.
  int bad_parameter = -1;   ///< Place in ModelPart::names of the first that is not.
  int bad_rank = -1;        ///< The first rank of the world whose shard holds it.
  bool bad_is_nan = false;  ///< NaN rather than inf.
  int bad_loss_rank = -1;   ///< The first rank whose loss is not finite: where it came from.
};

/// Collects this rank's part on streams and exchanges it with all ranks of the mesh. The norm is
/// summed over owners (ModelPart), the loss over the ranks whose losses count there. Squares
/// are added in fp64 by blocks of 1,024 and those exactly (ExactSum), so the norm is the same bits
/// however units are cut.
class StepReporter {
 public:
  /// The referred objects must outlive this.
  StepReporter(Device& device, const ParamLayout& layout, const ModelPart& part);

  /// Device bytes.
  static std::int64_t exchange_bytes(int ranks);

  /// Enqueues on `stream`: adds this micro-batch's mean loss, loss[0] / loss[1], if a token
  /// counted.
  void add_loss(Stream& stream, const ConstView& loss);
  /// Enqueues the exchange, then waits for the result. Resets for the next step. `squares`: the
  /// block sums of the reduced gradients of all trainable units; undefined leaves the norm NaN, and
  /// they count as finite.
  StepReport exchange(Stream& stream, const ConstView& squares);

 private:
  struct Part;
  StepReport merge(const ConstView& all) const;
  void add_ranges(int unit, std::int64_t first_block);
  View field(std::size_t offset, DType dtype, std::int64_t elements) const;

  Device& device_;
  const ParamLayout& layout_;
  const ModelPart& model_part_;
  const Mesh& mesh_;
  /// The blocks of trainable parameters that are this rank's to count, by parameter.
  std::vector<kernels::SumRange> counted_;
  Tensor mine_;  ///< Part, as bytes: with the mean losses so far.
  Tensor all_;   ///< Parts of all ranks.
  bool losses_started_ = false;
};

}  // namespace zero3d
