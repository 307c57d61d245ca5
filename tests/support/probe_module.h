// The probe model: flat parameters whose gradient is exactly what the test says per (parameter,
// element, rank, micro-batch, step), so that sums of small integers are exact in fp32 and results
// can be compared bit for bit. Its loss is the sum of <c, p>. Blocks may also be told to call the
// test, on the host or on the compute stream: to throw there, or to wait at a gate.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "zero3d/engine/module.h"

namespace zero3d::test {

/// Where a run is; the test moves it on before each forward.
struct ProbeClock {
  int step = 0;
  int micro_batch = 0;
};

struct ProbeParameter {
  ParameterSpec spec;
  /// Of element `element`; pure. Empty: the loss does not use the parameter.
  std::function<float(const ProbeClock& clock, std::int64_t element)> gradient;
  /// Backward writes only where this says so, and only asks elsewhere. Empty: always.
  std::function<bool(const ProbeClock& clock)> takes_part;
};

struct ProbeBlockSpec {
  std::vector<ProbeParameter> parameters;
  std::function<void(bool forward)> on_host;    ///< When forward or backward is enqueued.
  std::function<void(bool forward)> on_stream;  ///< When it runs.
};

/// A parameter called `name`, initially 1, whose gradient is c everywhere.
inline ProbeParameter probe_parameter(const std::string& name, const Shape& shape,
                                      std::function<float(const ProbeClock&)> c) {
  ProbeParameter parameter;
  parameter.spec.name = name;
  parameter.spec.shape = shape;
  parameter.spec.initial = constant_values(1.0f);
  if (c) {
    parameter.gradient = [c = std::move(c)](const ProbeClock& clock, std::int64_t) {
      return c(clock);
    };
  }
  return parameter;
}

/// Passes a running loss on; the last block returns it as {sum, 1}.
class ProbeBlock final : public Block {
 public:
  ProbeBlock(int index, bool last, ProbeBlockSpec spec, const ProbeClock& clock)
      : index_(index), last_(last), spec_(std::move(spec)), clock_(clock) {}

  std::string name() const override { return "probe " + std::to_string(index_); }

  std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> specs;
    for (const ProbeParameter& parameter : spec_.parameters) specs.push_back(parameter.spec);
    return specs;
  }

  Values forward(BlockContext& context, Values inputs, Saved& saved) override {
    if (spec_.on_host && !context.is_dry_run()) spec_.on_host(true);
    if (context.saves()) saved.opaque = std::make_shared<ProbeClock>(clock_);
    Values outputs;
    outputs.push_back(context.allocate(DType::f32, Shape{last_ ? 2 : 1}));
    const View out = outputs[0].view();
    const ConstView before = index_ == 0 ? ConstView() : ConstView(inputs[0].view());
    std::vector<ConstView> views;
    std::vector<Access> accesses{reads(before), writes(out)};
    for (std::size_t i = 0; i < spec_.parameters.size(); ++i) {
      views.push_back(context.parameter(i));
      ZERO3D_CHECK(views[i].shape() == spec_.parameters[i].spec.shape, "a view keeps its shape");
      accesses.push_back(reads(views[i]));
    }
    context.stream().launch("probe forward", accesses, [this, before, out, views, clock = clock_] {
      if (spec_.on_stream) spec_.on_stream(true);
      double sum = before.defined() ? before.as<float>()[0] : 0.0;
      for (std::size_t p = 0; p < views.size(); ++p) {
        if (!spec_.parameters[p].gradient) continue;
        for (std::int64_t i = 0; i < views[p].numel(); ++i)
          sum += spec_.parameters[p].gradient(clock, i) * value(views[p], i);
      }
      out.as<float>()[0] = static_cast<float>(sum);
      if (last_) out.as<float>()[1] = 1.0f;
    });
    return outputs;
  }

  Values backward_inputs(BlockContext& context, Values gradients, Saved&) override {
    if (spec_.on_host && !context.is_dry_run()) spec_.on_host(false);
    Values inputs;
    if (context.wants_input_gradient()) {
      inputs.push_back(context.allocate(DType::f32, Shape{1}));
      context.stream().device().copy(context.stream(), inputs[0], gradients[0]);
    }
    seed_ = std::move(gradients[0]);
    return inputs;
  }

  void backward_weights(BlockContext& context, Saved& saved) override {
    const ProbeClock clock = *static_cast<ProbeClock*>(saved.opaque.get());
    const ConstView seed = seed_.view();
    if (spec_.on_stream) {
      context.stream().launch("probe backward", {reads(seed)}, [this] { spec_.on_stream(false); });
    }
    for (std::size_t p = 0; p < spec_.parameters.size(); ++p) {
      const ProbeParameter& parameter = spec_.parameters[p];
      if (!parameter.gradient || !context.trains(p)) continue;
      if (parameter.takes_part && !parameter.takes_part(clock)) continue;
      const View gradient = context.write_gradient(p);
      const bool add = context.accumulate_gradient(p);
      context.stream().launch(
          "probe gradient", {reads(seed), writes(gradient)}, [this, p, seed, gradient, add, clock] {
            for (std::int64_t i = 0; i < gradient.numel(); ++i) {
              const float g = spec_.parameters[p].gradient(clock, i) * seed.as<float>()[0];
              store(gradient, i, add ? value(gradient, i) + g : g);
            }
          });
    }
    seed_.reset();
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
  bool last_;
  ProbeBlockSpec spec_;
  const ProbeClock& clock_;
  Tensor seed_;
};

class ProbeModule : public Module {
 public:
  explicit ProbeModule(std::vector<ProbeBlockSpec> blocks) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      blocks_.push_back(std::make_unique<ProbeBlock>(static_cast<int>(i), i + 1 == blocks.size(),
                                                     std::move(blocks[i]), clock));
    }
  }
  const std::vector<std::unique_ptr<Block>>& blocks() const override { return blocks_; }

  ProbeClock clock;

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
};

/// One block per size, each of one parameter "p<index>" whose gradient is c(index, clock).
inline std::vector<ProbeBlockSpec> probe_blocks(
    const std::vector<std::int64_t>& sizes,
    const std::function<float(int parameter, const ProbeClock& clock)>& c) {
  std::vector<ProbeBlockSpec> blocks;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const int index = static_cast<int>(i);
    blocks.push_back(
        {{probe_parameter("p" + std::to_string(i), Shape{sizes[i]},
                          [c, index](const ProbeClock& clock) { return c(index, clock); })}});
  }
  return blocks;
}

}  // namespace zero3d::test
