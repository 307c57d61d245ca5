// A model of our own in two blocks: the vector of a byte, and from it the next byte's
// probabilities.
#pragma once

#include <zero3d/engine/module.h>
#include <zero3d/kernels/embedding.h>
#include <zero3d/kernels/gemm.h>
#include <zero3d/kernels/loss.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

constexpr std::int64_t kBytes = 256;
constexpr std::int64_t kWidth = 32;

inline std::vector<zero3d::ParameterSpec> matrix(const char* name) {
  zero3d::ParameterSpec spec;
  spec.name = name;
  spec.shape = {kBytes, kWidth};
  spec.initial = zero3d::normal_values(name, 0.1f);
  return {spec};
}

/// tokens -> one vector each; the targets pass through.
class Lookup final : public zero3d::Block {
 public:
  std::string name() const override { return "lookup"; }
  std::vector<zero3d::ParameterSpec> parameters() const override { return matrix("table"); }

  zero3d::Values forward(zero3d::BlockContext& context, zero3d::Values values,
                         zero3d::Saved& saved) override {
    zero3d::Tensor vectors = context.allocate({values[0].numel(), kWidth});
    zero3d::kernels::embedding_forward(context.stream(), values[0], context.parameter(0), {},
                                       vectors);
    std::swap(values[0], vectors);
    saved.tensors.push_back(std::move(vectors));  // by now the tokens
    return values;
  }
  zero3d::Values backward_inputs(zero3d::BlockContext& context, zero3d::Values gradients,
                                 zero3d::Saved& saved) override {
    zero3d::kernels::embedding_backward(context.stream(), saved.tensors[0], gradients[0],
                                        context.write_gradient(0), false);
    return {};
  }
  void backward_weights(zero3d::BlockContext&, zero3d::Saved&) override {}
};

/// A vector -> scores of all bytes -> the loss against the byte that follows.
class Guess final : public zero3d::Block {
 public:
  std::string name() const override { return "guess"; }
  std::vector<zero3d::ParameterSpec> parameters() const override { return matrix("output"); }

  zero3d::Values forward(zero3d::BlockContext& context, zero3d::Values values,
                         zero3d::Saved& saved) override {
    zero3d::Stream& stream = context.stream();
    const std::int64_t rows = values[0].shape().rows();
    zero3d::Tensor scores = context.allocate({rows, kBytes});
    zero3d::kernels::gemm(stream, {.a = values[0],
                                   .b = context.parameter(0),
                                   .trans_b = zero3d::kernels::Transpose::yes,
                                   .c = scores,
                                   .what = "scores"});
    zero3d::Tensor normaliser = context.allocate(zero3d::DType::f32, {rows});
    zero3d::Tensor loss = context.allocate(zero3d::DType::f32, {2});
    zero3d::Tensor count = context.allocate(zero3d::DType::f32, {2});
    zero3d::kernels::cross_entropy_forward(stream, scores, values[1], normaliser, loss);
    stream.device().copy(stream, count, loss);
    for (zero3d::Tensor* kept : {&values[0], &values[1], &scores, &normaliser, &count})
      saved.tensors.push_back(std::move(*kept));
    zero3d::Values outputs;
    outputs.push_back(std::move(loss));
    return outputs;
  }
  zero3d::Values backward_inputs(zero3d::BlockContext& context, zero3d::Values gradients,
                                 zero3d::Saved& saved) override {
    auto& kept = saved.tensors;
    zero3d::kernels::cross_entropy_backward(context.stream(), kept[kScores], kept[kTargets],
                                            kept[kNormaliser], kept[kCount], gradients[0]);
    zero3d::Values inputs(2);  // none for the targets
    inputs[0] = context.allocate(kept[kVectors].shape());
    zero3d::kernels::gemm(context.stream(), {.a = kept[kScores],  // by now their gradient
                                             .b = context.parameter(0),
                                             .c = inputs[0],
                                             .what = "gradient of vectors"});
    return inputs;
  }
  void backward_weights(zero3d::BlockContext& context, zero3d::Saved& saved) override {
    zero3d::kernels::gemm(context.stream(), {.a = saved.tensors[kScores],
                                             .trans_a = zero3d::kernels::Transpose::yes,
                                             .b = saved.tensors[kVectors],
                                             .c = context.write_gradient(0),
                                             .what = "gradient of output"});
  }

 private:
  enum Slot : std::size_t { kVectors, kTargets, kScores, kNormaliser, kCount };
};

class NextByte final : public zero3d::Module {
 public:
  NextByte() {
    blocks_.push_back(std::make_unique<Lookup>());
    blocks_.push_back(std::make_unique<Guess>());
  }
  const std::vector<std::unique_ptr<zero3d::Block>>& blocks() const override { return blocks_; }

 private:
  std::vector<std::unique_ptr<zero3d::Block>> blocks_;
};
