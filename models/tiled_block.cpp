#include "zero3d/models/tiled_block.h"

#include <algorithm>
#include <utility>

#include "zero3d/kernels/elementwise.h"

namespace zero3d {
namespace {

/// Beside a transformer block's slots.
enum TiledSlot : std::size_t {
  kNormed1 = kSlots,  ///< What the input projections of a sublayer read.
  kNormed2,
  kProduct,        ///< Of an output projection, as its tiles make it.
  kInputGradient,  ///< Of a layer, as its tiles add to it: fp32.
  kResidual,       ///< The gradient that passes by a sublayer, where output_gradient is another.
  kTiledSlots
};

BatchShape batch_shape(const Shape& hidden) { return {hidden[0], hidden[1]}; }

/// What differs between the two sublayers.
struct Sublayer {
  const Norm& norm;
  const std::vector<Linear>& inputs;
  const Linear& output;
  const Dropout& dropout;
  Slot x, mean, rstd;  ///< What enters, and its norm's statistics.
  std::size_t normed;
  std::size_t projections;      ///< What `inputs` make.
  std::size_t gradients;        ///< Of those.
  std::size_t activated;        ///< What `output` reads.
  std::size_t output_gradient;  ///< Of what it makes.
};

Sublayer attention_of(const TransformerParts& parts) {
  const Attention& attention = parts.attention;
  return {parts.norm1,      attention.inputs,
          attention.output, attention.output_dropout,
          kInput,           kMean1,
          kRstd1,           kNormed1,
          kProjections,     kProjectionGradients,
          kAttended,        kMiddleGradient};
}

Sublayer mlp_of(const TransformerParts& parts) {
  const Mlp& mlp = parts.mlp;
  return {parts.norm2, mlp.inputs, mlp.output, mlp.output_dropout, kMiddle,    kMean2,
          kRstd2,      kNormed2,   kUps,       kUpGradients,       kActivated, kOutputGradient};
}

Tensor normed(BlockContext& context, const Norm& norm, const Tensor& x, const View& mean,
              const View& rstd) {
  Tensor y = context.allocate(x.shape());
  norm.forward(context, x, y, mean, rstd);
  return y;
}

bool any_trains(const BlockContext& context, const std::vector<Linear>& linears) {
  return std::any_of(linears.begin(), linears.end(),
                     [&](const Linear& linear) { return linear.trains_weight(context); });
}

}  // namespace

std::unique_ptr<Block> make_transformer_block(TransformerParts parts, int tiles) {
  if (tiles <= 1) return std::make_unique<TransformerBlock>(std::move(parts));
  return std::make_unique<TiledTransformerBlock>(std::move(parts), tiles);
}

TiledTransformerBlock::TiledTransformerBlock(TransformerParts parts, int tiles)
    : tiles_(tiles), parts_(std::move(parts)) {
  const ParameterList whole = std::exchange(parts_.parameters, {});
  std::vector<std::pair<std::size_t, std::size_t*>> norms;  // old indices, and where they are
  const auto note = [&](Norm& norm) {
    norms.emplace_back(norm.weight, &norm.weight);
    if (norm.bias) norms.emplace_back(*norm.bias, &*norm.bias);
  };
  note(parts_.norm1);
  note(parts_.norm2);
  for (Norm& norm : parts_.attention.norms) note(norm);
  std::vector<std::pair<Linear*, Layer>> linears;
  for (Linear& linear : parts_.attention.inputs) linears.emplace_back(&linear, kAttentionInputs);
  linears.emplace_back(&parts_.attention.output, kAttentionOutput);
  for (Linear& linear : parts_.mlp.inputs) linears.emplace_back(&linear, kMlpInputs);
  linears.emplace_back(&parts_.mlp.output, kMlpOutput);

  for (std::size_t index = 0; index < whole.specs().size(); ++index) {  // the order of exports
    for (const auto& [old, where] : norms)
      if (old == index) *where = parts_.parameters.add(whole.specs()[index]);
    const auto found = std::find_if(linears.begin(), linears.end(), [&](const auto& entry) {
      return entry.first->weight == index;
    });
    if (found == linears.end()) continue;
    const auto [linear, layer] = *found;
    linears.erase(found);  // it names a piece from now on
    linears_[layer].emplace_back(*linear, whole, tiles, layer * tiles, parts_.parameters);
  }
}

TiledTransformerBlock::Place TiledTransformerBlock::place(const BlockContext& context) const {
  const int tile = context.tile() % tiles_;
  return {static_cast<Layer>(context.tile() / tiles_), tile, tile == 0, tile + 1 == tiles_};
}

bool TiledTransformerBlock::trains_attention(const BlockContext& context) const {
  return context.wants_input_gradient() || parts_.norm1.trains(context) ||
         parts_.attention.trains(context);
}

Values TiledTransformerBlock::forward(BlockContext& context, Values inputs, Saved& saved) {
  Slots& slots = saved.tensors;
  const Place at = place(context);
  if (context.tile() == 0) {
    slots.resize(kTiledSlots);
    slots[kInput] = std::move(inputs[0]);
  }
  if (at.layer == kAttentionInputs || at.layer == kMlpInputs) {
    project(context, at, slots);
    return inputs;
  }
  add_output(context, at, slots);
  if (at.layer == kMlpOutput && at.last) inputs[0] = std::move(slots[kProduct]);
  if (at.layer == kAttentionOutput && at.last) slots[kMiddle] = std::move(slots[kProduct]);
  return inputs;
}

/// A tile of a sublayer's input projections.
void TiledTransformerBlock::project(BlockContext& context, const Place& at, Slots& slots) const {
  const Sublayer part = at.layer == kMlpInputs ? mlp_of(parts_) : attention_of(parts_);
  const BatchShape shape = batch_shape(slots[part.x].shape());
  if (at.first) {
    if (context.saves()) {
      if (part.norm.has_mean()) slots[part.mean] = context.allocate(DType::f32, {shape.rows()});
      slots[part.rstd] = context.allocate(DType::f32, {shape.rows()});
    }
    slots[part.normed] =
        normed(context, part.norm, slots[part.x], slots[part.mean], slots[part.rstd]);
    for (std::size_t i = 0; i < part.inputs.size(); ++i)
      slots[part.projections + i] = context.allocate({shape.batch, shape.seq, part.inputs[i].out});
  }
  for (std::size_t i = 0; i < part.inputs.size(); ++i)
    linears(at.layer)[i].forward(context, at.tile, slots[part.normed], slots[part.projections + i]);
  if (at.last) slots[part.normed].reset();
}

/// A tile of a sublayer's output projection; after the last one slots[kProduct] has the residual.
void TiledTransformerBlock::add_output(BlockContext& context, const Place& at, Slots& slots) const {
  const bool is_mlp = at.layer == kMlpOutput;
  const Sublayer part = is_mlp ? mlp_of(parts_) : attention_of(parts_);
  const BatchShape shape = batch_shape(slots[part.x].shape());
  if (at.first) {
    if (is_mlp) {
      slots[kActivated] = parts_.mlp.activated(context, slots);
      if (!context.saves()) slots[kUps].reset(), slots[kUps + 1].reset();
    } else {
      parts_.attention.attend(context, shape, slots);
    }
    slots[kProduct] = context.allocate(slots[part.x].shape());
  }
  linears(at.layer)[0].forward(context, at.tile, slots[part.activated], slots[kProduct]);
  if (!at.last) return;
  if (is_mlp || !context.saves()) slots[part.activated].reset();
  if (part.dropout.active(context)) {
    Tensor product = std::move(slots[kProduct]);
    slots[kProduct] = context.allocate(product.shape());
    part.dropout.apply(context, product, slots[part.x], slots[kProduct]);
  } else {
    kernels::add(context.stream(), slots[part.x], slots[kProduct]);
  }
  if (!context.saves()) slots[part.x].reset();
}

Values TiledTransformerBlock::backward_inputs(BlockContext& context, Values output_gradients,
                                              Saved& saved) {
  Slots& slots = saved.tensors;
  const Place at = place(context);
  const bool wants_attention = trains_attention(context);
  const bool wants_norm2 = wants_attention || parts_.norm2.trains(context);
  if (at.layer == kMlpOutput && at.last) slots[kResidual] = std::move(output_gradients[0]);
  if (at.layer == kMlpOutput) output_backward(context, at, slots);
  if (at.layer == kMlpInputs) project_backward(context, at, slots, wants_norm2);
  if (at.layer == kAttentionOutput && wants_attention) output_backward(context, at, slots);
  if (at.layer == kAttentionInputs && wants_attention) project_backward(context, at, slots, true);
  if (context.tile() == 0 && wants_attention && context.wants_input_gradient())
    output_gradients[0] = std::move(slots[kResidual]);
  return output_gradients;
}

/// A tile of a sublayer's output projection; after the last of them (tile 0), the gradients of what
/// its inputs made.
void TiledTransformerBlock::output_backward(BlockContext& context, const Place& at,
                                            Slots& slots) const {
  const bool is_mlp = at.layer == kMlpOutput;
  const Sublayer part = is_mlp ? mlp_of(parts_) : attention_of(parts_);
  const BatchShape shape = batch_shape(slots[part.x].shape());
  if (at.last) {
    Tensor& entering = slots[part.output_gradient];
    if (part.dropout.active(context)) {
      entering = context.allocate(slots[kResidual].shape());
      part.dropout.apply(context, slots[kResidual], {}, entering);
    } else {
      entering = std::move(slots[kResidual]);  // one tensor goes both ways
    }
    if (is_mlp) slots[kActivated] = parts_.mlp.activated(context, slots);
    slots[kInputGradient] = context.allocate(DType::f32, slots[part.activated].shape());
  }
  const TiledLinear& linear = linears(at.layer)[0];
  linear.backward_bias(context, at.tile, slots[part.output_gradient]);
  linear.backward_input(context, at.tile, slots[part.output_gradient], slots[kInputGradient],
                        at.last);
  if (!at.first) return;
  Tensor gradient = rounded_sum(context, std::move(slots[kInputGradient]));
  if (is_mlp) {
    parts_.mlp.activate_backward(context, std::move(gradient), slots);
  } else {
    parts_.attention.attend_backward(context, shape, std::move(gradient), slots);
  }
}

/// A tile of a sublayer's input projections; after the last of them the gradient of what entered
/// the sublayer is in kResidual. Unless it is `wanted`, biases get their gradients, and no more.
void TiledTransformerBlock::project_backward(BlockContext& context, const Place& at, Slots& slots,
                                             bool wanted) const {
  const Sublayer part = at.layer == kMlpInputs ? mlp_of(parts_) : attention_of(parts_);
  if (at.last) {
    if (any_trains(context, part.inputs))
      slots[part.normed] = normed(context, part.norm, slots[part.x], {}, {});
    if (wanted) slots[kInputGradient] = context.allocate(DType::f32, slots[part.x].shape());
  }
  for (std::size_t i = 0; i < part.inputs.size(); ++i) {
    const TiledLinear& linear = linears(at.layer)[i];
    const Tensor& gradient = slots[part.gradients + i];
    linear.backward_bias(context, at.tile, gradient);
    if (wanted)
      linear.backward_input(context, at.tile, gradient, slots[kInputGradient], at.last && i == 0);
  }
  if (!at.first || !wanted) return;
  const Tensor dnormed = rounded_sum(context, std::move(slots[kInputGradient]));
  part.norm.backward_weight(context, dnormed, slots[part.x], slots[part.mean], slots[part.rstd]);
  const bool goes_on =
      at.layer == kMlpInputs ? trains_attention(context) : context.wants_input_gradient();
  if (goes_on) {
    Tensor dx = context.allocate(dnormed.shape());
    const Tensor& residual =
        slots[kResidual].defined() ? slots[kResidual] : slots[part.output_gradient];
    part.norm.backward_input(context, dnormed, slots[part.x], slots[part.mean], slots[part.rstd],
                             residual, dx);
    slots[kResidual] = std::move(dx);
  }
  slots[part.mean].reset();
  slots[part.rstd].reset();
  slots[part.x].reset();
}

void TiledTransformerBlock::backward_weights(BlockContext& context, Saved& saved) {
  Slots& slots = saved.tensors;
  const Place at = place(context);
  const bool is_mlp = at.layer == kMlpInputs || at.layer == kMlpOutput;
  const Sublayer part = is_mlp ? mlp_of(parts_) : attention_of(parts_);
  if (at.layer == kMlpOutput || at.layer == kAttentionOutput) {
    linears(at.layer)[0].backward_weight(context, at.tile, slots[part.activated],
                                         slots[part.output_gradient]);
    if (!at.first) return;
    slots[part.activated].reset();
    Tensor gradient = std::move(slots[part.output_gradient]);
    if (!slots[kResidual].defined()) slots[kResidual] = std::move(gradient);
    return;
  }
  for (std::size_t i = 0; i < part.inputs.size(); ++i) {
    linears(at.layer)[i].backward_weight(context, at.tile, slots[part.normed],
                                         slots[part.gradients + i]);
    if (at.first) slots[part.gradients + i].reset();
  }
  if (at.first) slots[part.normed].reset();
}

}  // namespace zero3d
