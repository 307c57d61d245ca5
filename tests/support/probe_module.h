// The probe model: named flat parameters whose gradient is exactly the constant we choose per
// (parameter, rank, micro-batch, step), so that sums of small integers are exact in fp32 and
// results can be compared bit for bit. Its loss is the sum of <c, p>.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "zero3d/engine/module.h"
#include "zero3d/kernels/elementwise.h"

namespace zero3d::test {

/// Where a run is; the test moves it on before each forward.
struct ProbeClock {
  int step = 0;
  int micro_batch = 0;
};

/// The gradient of every element of a parameter at a time; per rank, so closed over by the test.
using ProbeGradient = std::function<float(int parameter, const ProbeClock& clock)>;

/// A block of one parameter "p<index>", initially 1. Passes a running loss on; the last block
/// returns it as {sum, 1}.
class ProbeBlock final : public Block {
 public:
  ProbeBlock(int index, std::int64_t size, bool last, const ProbeClock& clock,
             ProbeGradient gradient)
      : index_(index), size_(size), last_(last), clock_(clock), gradient_(std::move(gradient)) {}

  std::string name() const override { return "probe " + std::to_string(index_); }

  std::vector<ParameterSpec> parameters() const override {
    ParameterSpec spec;
    spec.name = "p" + std::to_string(index_);
    spec.shape = Shape{size_};
    spec.initial = constant_values(1.0f);
    return {spec};
  }

  Values forward(BlockContext& context, Values inputs, Saved& saved) override {
    const float c = gradient_(index_, clock_);
    saved.opaque = std::make_shared<float>(c);
    Values outputs;
    outputs.push_back(context.allocate(DType::f32, Shape{last_ ? 2 : 1}));
    const View out = outputs[0].view();
    const ConstView before = index_ == 0 ? ConstView() : ConstView(inputs[0].view());
    const ConstView parameter = context.parameter(0);
    const bool last = last_;
    context.stream().launch("probe forward", {reads(before), reads(parameter), writes(out)}, [=] {
      double sum = before.defined() ? before.as<float>()[0] : 0.0;
      for (std::int64_t i = 0; i < parameter.numel(); ++i) sum += c * value(parameter, i);
      out.as<float>()[0] = static_cast<float>(sum);
      if (last) out.as<float>()[1] = 1.0f;
    });
    return outputs;
  }

  Values backward_inputs(BlockContext& context, Values gradients, Saved&) override {
    Values inputs;
    if (context.wants_input_gradient()) {
      inputs.push_back(context.allocate(DType::f32, Shape{1}));
      context.stream().device().copy(context.stream(), inputs[0], gradients[0]);
    }
    seed_ = std::move(gradients[0]);
    return inputs;
  }

  void backward_weights(BlockContext& context, Saved& saved) override {
    const View gradient = context.gradient(0);
    const float c = *static_cast<float*>(saved.opaque.get());
    if (gradient.defined()) {
      const ConstView seed = seed_.view();
      context.stream().launch("probe gradient", {reads(seed), writes(gradient)}, [=] {
        const float g = c * seed.as<float>()[0];
        for (std::int64_t i = 0; i < gradient.numel(); ++i) store(gradient, i, g);
      });
    }
    seed_.reset();
  }

  ActivationBytes activation_bytes(std::int64_t, std::int64_t, DType) const override {
    return {0, 12, 8};
  }

 private:
  static float value(const ConstView& view, std::int64_t i) {
    switch (view.dtype()) {
      case DType::bf16:
        return to_float(view.as<bf16>()[i]);
      case DType::f16:
        return to_float(view.as<f16>()[i]);
      default:
        return view.as<float>()[i];
    }
  }
  static void store(const View& view, std::int64_t i, float value) {
    switch (view.dtype()) {
      case DType::bf16:
        view.as<bf16>()[i] = to_bf16(value);
        break;
      case DType::f16:
        view.as<f16>()[i] = to_f16(value);
        break;
      default:
        view.as<float>()[i] = value;
    }
  }

  int index_;
  std::int64_t size_;
  bool last_;
  const ProbeClock& clock_;
  ProbeGradient gradient_;
  Tensor seed_;
};

class ProbeModule final : public Module {
 public:
  ProbeModule(const std::vector<std::int64_t>& sizes, const ProbeGradient& gradient) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      blocks_.push_back(std::make_unique<ProbeBlock>(static_cast<int>(i), sizes[i],
                                                     i + 1 == sizes.size(), clock, gradient));
    }
  }
  const std::vector<std::unique_ptr<Block>>& blocks() const override { return blocks_; }

  ProbeClock clock;

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
};

}  // namespace zero3d::test
