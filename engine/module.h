// What the engine asks of a model: an ordered list of blocks with explicit forward and backward.
// Blocks own no tensors: they declare parameters and get views of them while those are acquired.
// models/ implements this as a user's own model would.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/core/random.h"
#include "zero3d/core/view.h"
#include "zero3d/device/memory.h"
#include "zero3d/device/stream.h"
#include "zero3d/engine/sequence_parallel.h"
#include "zero3d/engine/tensor_parallel.h"
#include "zero3d/parallel/topology.h"

namespace zero3d {

/// Fills values[0..count) with elements [first, first + count) of the initial value of a parameter,
/// in fp32.
using InitialValues =
    std::function<void(std::uint64_t seed, std::int64_t first, std::int64_t count, float* values)>;

/// Mean 0 and deviation `stddev`, a pure function of (seed, name, element).
InitialValues normal_values(std::string name, float stddev);
InitialValues constant_values(float value);

/// How tensor parallelism may cut a parameter: along `dim`, each of `parts` (ranges of it, which
/// add up to it) by itself; engine/zero/placement.h has the rule.
struct TensorParallelSplit {
  int dim = -1;                     ///< None: every rank has all of it.
  std::vector<std::int64_t> parts;  ///< A fused q, k, v has three; empty: one of all.
  std::int64_t grain = 1;           ///< What is never cut, and divides the parts: a head's size.
  bool shares_grains = false;  ///< With fewer grains than ranks, ranks in a row hold the same one
                               ///< (key and value heads); otherwise some ranks hold none.
  friend bool operator==(const TensorParallelSplit&, const TensorParallelSplit&) = default;
};

/// What tensor-parallel ranks that hold the same of a parameter write as its gradient.
enum class SharedGradient {
  whole,     ///< Each all of it: they are equal.
  of_heads,  ///< Each what its columns (heads) add to it: the engine sums them.
  of_rows    ///< The same of rows where the sequence is split (TensorParallel), else all of it.
};

/// What a block that works tile by tile declares of a parameter: positions [first, first + count)
/// of `dim`. The pieces of a parameter cover it, and blocks that share it cut it alike.
struct ParameterPiece {
  int dim = -1;  ///< None: all of it.
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool whole() const { return dim < 0; }
  friend bool operator==(const ParameterPiece&, const ParameterPiece&) = default;
};

/// A parameter that is there in every tile of its block.
inline constexpr int kEveryTile = -1;

struct ParameterSpec {
  std::string name;  ///< As exported: "transformer.h.0.attn.c_attn.weight". Two blocks that name
                     ///< the same one share it (tied), and declare it alike but for how each
                     ///< writes its gradient.
  Shape shape;       ///< Of the whole parameter, however it is cut and padded: as exported.
  InitialValues initial;
  TensorParallelSplit split;
  SharedGradient shared_gradient = SharedGradient::whole;
  bool frozen = false;  ///< No gradient, no optimizer state.
  bool decay = true;    ///< Weight decay applies.
  /// The block adds its gradient to what is there when context.accumulate_gradient() says so (a
  /// scatter-add is cheaper so); otherwise it always writes, and the engine adds.
  bool adds_gradient = false;
  /// backward_inputs does not write its gradient. Where a schedule puts other work between the two
  /// halves of backward, no memory is kept for it meanwhile.
  bool gradient_in_weights = false;
  ParameterPiece piece;   ///< Of it; each piece is gathered, reduced and updated by itself.
  int tile = kEveryTile;  ///< Of the block: the only one that uses it.

  /// Elements of what is declared: of the piece, or of all of it.
  std::int64_t declared_numel() const {
    Shape declared = shape;
    if (!piece.whole() && piece.dim < shape.rank()) declared[piece.dim] = piece.count;
    return declared.numel();
  }
};

using Values = std::vector<Tensor>;

/// What a block's forward keeps for its backward, and backward_inputs for backward_weights: tensors
/// that may be moved to another tier meanwhile, and an opaque holder for state that may not
/// (foreign autograd). Belongs to (block, micro-batch). Release a tensor once it is used up.
struct Saved {
  std::vector<Tensor> tensors;
  std::shared_ptr<void> opaque;
};

/// What a block may use while it runs. All work goes on stream(); memory comes from allocate() and
/// is free for reuse, in stream order, as soon as its Tensor is gone. Views of parameters are not
/// valid after the call returns.
class BlockContext {
 public:
  virtual ~BlockContext() = default;

  Stream& stream() const { return *stream_; }
  /// The dtype activations and parameters have in this run.
  DType dtype() const { return dtype_; }
  /// Training: dropout on, targets present. Otherwise evaluation or generation.
  bool training() const { return training_; }
  /// False when no backward follows this forward, or forward runs again before it: save nothing.
  /// What forward gives is the same either way, to the bit, however often it runs.
  bool saves() const { return saves_; }
  /// Names random numbers: key.sample is the global index of this micro-batch's first row; set
  /// key.layer per site.
  const RandomKey& random() const { return random_; }
  /// Which tile of the block runs; 0 in a block that has one.
  int tile() const { return tile_; }

  /// The ranks that share this block's layers. A block that has no part in that works on what they
  /// all hold alike, and declares no split.
  const TensorParallel& tp() const { return tp_; }
  /// The ranks that have the other positions of these samples. Where it is not alone, tensors
  /// [B, T, ...] are of this rank's part of each sample.
  const SequenceParallel& sp() const { return sp_; }
  /// Where the first of `rows` rows outside of parallel regions is in its sample, counted over all
  /// ranks that have rows of it.
  std::int64_t first_row(std::int64_t rows) const { return sp_.first() + tp_.first_row(rows); }
  /// Into a parallel region: what it reads of `x` [B, T, ...], all rows of it.
  Tensor enter(Tensor x) const;
  /// Of `x` outside of one: the shape in it, and where the sequence is split, the rows of all
  /// ranks.
  Shape shape_inside(Shape x) const;
  Tensor all_rows(Tensor& x) const;
  /// Other ranks read `x` in what has been enqueued: whoever gets its bytes next comes after that.
  void read_by_others(Tensor& x) const;
  /// Out of one: the sum over ranks of `y` [B, T, ...], of this rank's rows. Of a gradient: into
  /// what came by enter, as enter is into the gradient of what leave gave.
  Tensor leave(Tensor y) const;
  /// The same of what `product` writes to rows [first, first + y.shape().rows()) of `y`, as a
  /// matrix: where sums overlap products, it is asked for them part by part.
  using ProductOfRows = std::function<void(std::int64_t first, const View& y)>;
  Tensor leave(Tensor y, const ProductOfRows& product) const;

  Tensor allocate(DType dtype, const Shape& shape,
                  Category category = Category::activations) const {
    return Tensor(*memory_, *stream_, dtype, shape, category);
  }
  Tensor allocate(const Shape& shape) const { return allocate(dtype_, shape); }

  /// The i-th declared parameter in dtype(), not sharded: of its declared shape, or what tensor
  /// parallelism leaves of that here, padded (Placement::stored), or of its piece. One of another
  /// tile is not there: Error(kInvalid).
  ConstView parameter(std::size_t index) const {
    require_declared(index);
    if (!parameters_[index].defined()) throw_other_tile(index);
    return parameters_[index];
  }
  /// Whether the i-th parameter has a gradient, to ask before the work for it is done; false when
  /// it is frozen.
  bool trains(std::size_t index) const {
    require_backward(index);
    return trains_[index];
  }
  /// Where the i-th parameter's gradient goes, in its shape and dtype(); undefined when it is
  /// frozen. Who takes it writes all of it, in the same call. A gradient that nobody takes is zero:
  /// the parameter took no part. Only in backward, as trains().
  View write_gradient(std::size_t index) const {
    if (trains(index) && !gradients_[index].defined()) throw_early(index);
    written_[index] = true;
    return gradients_[index];
  }
  /// Only for parameters that declared adds_gradient: add to the gradient rather than write it.
  bool accumulate_gradient(std::size_t index) const {
    require_backward(index);
    return accumulate_[index];
  }
  /// Nothing enqueued will run, and memory has no bytes: for blocks that hand their work to other
  /// code, which then must not run either. What is allocated is planned for.
  bool is_dry_run() const { return dry_run_; }
  /// False when nothing upstream needs the input's gradient (a first block, frozen blocks below).
  bool wants_input_gradient() const { return wants_input_gradient_; }

 protected:
  friend class BlockRunner;
  void require_declared(std::size_t index) const {
    if (index >= parameters_.size()) throw_undeclared(index);
  }
  void require_backward(std::size_t index) const {
    require_declared(index);
    if (index >= trains_.size()) throw_not_backward(index);
  }
  Tensor rows_that_leave(const Tensor& y) const;
  Tensor leave(Tensor y, Tensor mine) const;
  // Error(kInvalid), by the block's name.
  [[noreturn]] void throw_undeclared(std::size_t index) const;
  [[noreturn]] void throw_other_tile(std::size_t index) const;
  [[noreturn]] void throw_not_backward(std::size_t index) const;
  [[noreturn]] void throw_early(std::size_t index) const;

  const class Block* block_ = nullptr;  ///< Whose context it is.
  Stream* stream_ = nullptr;
  TrackingResource* memory_ = nullptr;
  DType dtype_ = DType::f32;
  bool training_ = true;
  bool saves_ = true;
  bool wants_input_gradient_ = true;
  bool dry_run_ = false;
  TensorParallel tp_;
  SequenceParallel sp_;
  int tile_ = 0;
  RandomKey random_;
  std::vector<ConstView> parameters_;
  std::vector<View> gradients_;
  std::vector<bool> trains_;
  std::vector<bool> accumulate_;
  mutable std::vector<bool> written_;  ///< Gradients that the block took to write.
};

/// forward and backward allocate and enqueue; they never look at values on the host. The engine
/// relies on it: before the first step it runs the blocks once on a device that only counts
/// (context.is_dry_run()), and plans memory by what they allocate there.
///
/// A block whose parameters name tiles runs in as many: forward is called for one after the other,
/// the backward calls from the last to the first, each with the parameters of its tile alone on the
/// device. `saved` is one for all of them, there in every pass until its last tile is done; what is
/// said of inputs, outputs and their gradients holds for the first and the last call, and between
/// tiles a block passes what it likes.
class Block {
 public:
  virtual ~Block() = default;
  virtual std::string name() const = 0;
  virtual std::vector<ParameterSpec> parameters() const = 0;

  /// Any number of tensors of any dtype in and out; what a block does not use it passes through
  /// (moves). The first block gets {tokens i32 [B, T], targets i32 [B, T]} (targets undefined in
  /// generation); the last gives {loss fp32 [2] = (sum, count)} when it got targets, else {logits
  /// [B*T, V]}, or [B, V] of the last token of each sequence. With context.sp() the first block
  /// gets this rank's part of the tokens and targets, and the loss is of whole samples, on every
  /// rank; logits are asked for of whole samples only.
  virtual Values forward(BlockContext& context, Values inputs, Saved& saved) = 0;
  /// Gradients of the inputs, one for each, from gradients of the outputs (the last block's is fp32
  /// [1]: of the mean loss). Undefined tensors stand for inputs without one; where
  /// context.wants_input_gradient() is false, what is returned is not looked at. May write weight
  /// gradients that are at hand, but of parameters declared gradient_in_weights; keeps in `saved`,
  /// and nowhere else, what backward_weights needs.
  virtual Values backward_inputs(BlockContext& context, Values output_gradients, Saved& saved) = 0;
  /// The remaining weight gradients. Called once: right after backward_inputs or, in a schedule
  /// that splits backward, after other blocks and micro-batches.
  virtual void backward_weights(BlockContext& context, Saved& saved) = 0;
};

class Module {
 public:
  virtual ~Module() = default;
  /// In order of execution; fixed for the life of the module.
  virtual const std::vector<std::unique_ptr<Block>>& blocks() const = 0;
  /// Writes into a folder, which is there, what a model folder has beside weights of this dtype
  /// (config.json, tokenizer files). Engine::save_16bit_model calls it on the rank that writes.
  virtual void write_beside_weights(const std::string& /*folder*/, DType /*dtype*/) const {}
  /// Why its layers cannot be cut over such a mesh, each with what would work; the engine refuses
  /// to start where there is anything.
  /// Unless it says otherwise, its blocks work on whole samples: sequences are not cut over ranks.
  virtual std::vector<std::string> mesh_problems(const GridDegrees& degrees) const;
};

}  // namespace zero3d
