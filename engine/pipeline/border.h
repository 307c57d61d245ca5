// What passes between the stages of a pipeline, found by running the whole model once on a device
// that only counts: no shape is configured, and nobody is sent what it can read itself.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "zero3d/engine/module.h"
#include "zero3d/engine/zero/layout.h"

namespace zero3d {

/// One of the values that a block gives to the next one.
struct BorderValue {
  enum class Source {
    nothing,  ///< Undefined.
    tokens,   ///< The batch's, as they are: read where they are used, not sent.
    targets,  ///< The same.
    sent
  };
  Source source = Source::nothing;
  /// Of tokens and targets: the segment after the border looks at them, rather than hand them on.
  bool used = false;
  DType dtype = DType::f32;
  Shape shape;
  bool has_gradient = false;  ///< One comes back, of the same shape.
  DType gradient_dtype = DType::f32;
};
using Border = std::vector<BorderValue>;
/// By the number of the block that the values are for.
using Borders = std::map<int, Border>;

/// `layout`: of all blocks of the module, whole but for tensor parallelism. `first_blocks`: of each
/// segment, the first block of all not among them; ascending. For micro-batches of [batch,
/// sequence], on such a rank. What blocks throw for such batches goes on.
Borders infer_borders(const Module& module, const ParamLayout& layout,
                      const std::vector<int>& first_blocks, DType dtype, const TensorParallel& tp,
                      const SequenceParallel& sp, std::int64_t batch, std::int64_t sequence);

/// Whether a segment that begins with `border` looks at tokens or targets.
bool uses_batch(const Border& border);

}  // namespace zero3d
