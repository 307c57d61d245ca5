// Runs the blocks of a module on one CPU device with plain buffers: what an engine does for one
// rank without sharding, and no more, so that tests see a block's arithmetic and memory alone.
// Gradients start as NaN: a block that does not write one is found out.
#pragma once

#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "zero3d/device/device.h"
#include "zero3d/engine/module.h"
#include "zero3d/tests/support/host_access.h"

namespace zero3d::test {

/// Passes a device's memory on to a resource that counts apart from it.
class Lent final : public MemoryResource {
 public:
  Lent(TrackingResource& lender, Stream& stream) : lender_(lender), stream_(stream) {}
  void* allocate(std::size_t bytes) override {
    return lender_.allocate(bytes, Category::activations, stream_);
  }
  void deallocate(void* data, std::size_t bytes) noexcept override {
    lender_.deallocate(data, bytes, Category::activations, stream_, {});
  }

 private:
  TrackingResource& lender_;
  Stream& stream_;
};

struct HarnessOptions {
  int threads = 1;
  DType dtype = DType::f32;
  bool training = true;
  bool saves = true;
  bool wants_input_gradient = true;  ///< Of blocks other than the first.
  bool weights_last = false;         ///< All backward_weights after all backward_inputs.
  RandomKey random;
  std::function<bool(const std::string& parameter)> frozen;
};

class BlockHarness {
 public:
  explicit BlockHarness(const Module& module, HarnessOptions options = {})
      : options_(std::move(options)), blocks_(module.blocks()) {
    CpuDeviceOptions device;
    device.threads = options_.threads;
    device_ = make_cpu_device(device);
    stream_ = device_->create_stream("compute");
    lent_ = std::make_unique<Lent>(device_->memory(), *stream_);
    memory_ = std::make_unique<TrackingResource>(*lent_, "blocks under test");
    for (const auto& block : blocks_) {
      specs_.push_back(block->parameters());
      for (const ParameterSpec& spec : specs_.back()) declare(spec);
    }
  }
  ~BlockHarness() {
    try {
      stream_->synchronize();
    } catch (...) {  // the test has seen it
    }
  }

  TrackingResource& memory() { return *memory_; }
  void synchronize() { stream_->synchronize(); }
  const HarnessOptions& options() const { return options_; }
  HarnessOptions& options() { return options_; }

  void initialise(std::uint64_t seed) {
    std::set<std::string> done;
    for (const auto& specs : specs_)
      for (const ParameterSpec& spec : specs) {
        if (!done.insert(spec.name).second) continue;
        std::vector<float> values(static_cast<std::size_t>(spec.shape.numel()));
        spec.initial(seed, 0, spec.shape.numel(), values.data());
        set_parameter(spec.name, values);
      }
  }
  void set_parameter(const std::string& name, const std::vector<float>& values) {
    write(parameters_.at(name), values);
  }
  std::vector<float> parameter(const std::string& name) { return read(parameters_.at(name)); }
  /// Of the last backward; empty for frozen parameters.
  std::vector<float> gradient(const std::string& name) {
    return gradients_.contains(name) ? read(gradients_.at(name)) : std::vector<float>();
  }
  std::vector<std::string> parameter_names() const {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : parameters_) names.push_back(name);
    return names;
  }

  Tensor upload(const std::vector<float>& values, const Shape& shape, DType dtype) {
    Tensor tensor(*memory_, *stream_, dtype, shape, Category::activations);
    write(tensor, values);
    return tensor;
  }
  Tensor upload(const std::vector<std::int32_t>& values, const Shape& shape) {
    Tensor tensor(*memory_, *stream_, DType::i32, shape, Category::activations);
    test::upload(*stream_, tensor,
                 [&](const View& host) { std::memcpy(host.data(), values.data(), host.bytes()); });
    return tensor;
  }
  std::vector<float> read(const Tensor& tensor) {
    const Readback copy = read_back(*stream_, tensor);
    const ConstView host = copy.wait();
    std::vector<float> values(static_cast<std::size_t>(host.numel()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (host.dtype() == DType::f32) values[i] = host.as<float>()[i];
      if (host.dtype() == DType::bf16) values[i] = to_float(host.as<bf16>()[i]);
      if (host.dtype() == DType::f16) values[i] = to_float(host.as<f16>()[i]);
    }
    return values;
  }

  Values forward(std::size_t block, Values inputs) {
    saved_.resize(blocks_.size());
    saved_[block] = {};
    Context context(*this, block);
    return blocks_[block]->forward(context, std::move(inputs), saved_[block]);
  }
  Values backward_inputs(std::size_t block, Values gradients) {
    Context context(*this, block);
    return blocks_[block]->backward_inputs(context, std::move(gradients), saved_[block]);
  }
  void backward_weights(std::size_t block) {
    Context context(*this, block);
    blocks_[block]->backward_weights(context, saved_[block]);
    for (const ParameterSpec& spec : specs_[block]) written_.insert(spec.name);
  }
  Saved& saved(std::size_t block) { return saved_[block]; }

  /// Forgets gradients, as the start of a micro-batch does.
  void clear_gradients() {
    written_.clear();
    for (auto& [name, gradient] : gradients_)
      write(gradient, std::vector<float>(static_cast<std::size_t>(gradient.numel()),
                                         std::numeric_limits<float>::quiet_NaN()));
  }

  /// All blocks, forward. Targets may be empty: the last value is the logits then.
  Values forward_model(const std::vector<std::int32_t>& tokens,
                       const std::vector<std::int32_t>& targets, std::int64_t batch) {
    const Shape shape{batch, static_cast<std::int64_t>(tokens.size()) / batch};
    Values values;
    values.push_back(upload(tokens, shape));
    values.push_back(targets.empty() ? Tensor() : upload(targets, shape));
    for (std::size_t block = 0; block < blocks_.size(); ++block)
      values = forward(block, std::move(values));
    return values;
  }
  /// Forward and backward of the mean loss; returns {sum, count}.
  std::vector<float> train(const std::vector<std::int32_t>& tokens,
                           const std::vector<std::int32_t>& targets, std::int64_t batch) {
    clear_gradients();
    const std::vector<float> loss = read(forward_model(tokens, targets, batch)[0]);
    Values gradients;
    gradients.push_back(upload(std::vector<float>{1.0f}, Shape{1}, DType::f32));
    for (std::size_t block = blocks_.size(); block-- > 0;) {
      gradients = backward_inputs(block, std::move(gradients));
      if (!options_.weights_last) backward_weights(block);
    }
    if (options_.weights_last)
      for (std::size_t block = blocks_.size(); block-- > 0;) backward_weights(block);
    return loss;
  }

 private:
  class Context final : public BlockContext {
   public:
    Context(BlockHarness& harness, std::size_t block) {
      const HarnessOptions& options = harness.options_;
      stream_ = harness.stream_.get();
      memory_ = harness.memory_.get();
      dtype_ = options.dtype;
      training_ = options.training;
      saves_ = options.saves;
      wants_input_gradient_ = options.wants_input_gradient && block > 0;
      random_ = options.random;
      for (const ParameterSpec& spec : harness.specs_[block]) {
        parameters_.push_back(harness.parameters_.at(spec.name));
        const auto gradient = harness.gradients_.find(spec.name);
        gradients_.push_back(gradient == harness.gradients_.end() ? View()
                                                                  : gradient->second.view());
        trains_.push_back(gradients_.back().defined());
        written_.push_back(false);
        accumulate_.push_back(spec.adds_gradient && harness.written_.contains(spec.name));
      }
    }
  };

  void declare(const ParameterSpec& spec) {
    if (parameters_.contains(spec.name)) return;
    parameters_.try_emplace(spec.name, Tensor(device_->memory(), kNoStream, options_.dtype,
                                              spec.shape, Category::parameters));
    if (options_.frozen && options_.frozen(spec.name)) return;
    gradients_.try_emplace(spec.name, Tensor(device_->memory(), kNoStream, options_.dtype,
                                             spec.shape, Category::gradients));
  }
  void write(const Tensor& tensor, const std::vector<float>& values) {
    ZERO3D_CHECK(static_cast<std::int64_t>(values.size()) == tensor.numel(),
                 "harness: sizes differ");
    test::upload(*stream_, tensor, [&](const View& host) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (host.dtype() == DType::f32) host.as<float>()[i] = values[i];
        if (host.dtype() == DType::bf16) host.as<bf16>()[i] = to_bf16(values[i]);
        if (host.dtype() == DType::f16) host.as<f16>()[i] = to_f16(values[i]);
      }
    });
  }

  HarnessOptions options_;
  const std::vector<std::unique_ptr<Block>>& blocks_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Lent> lent_;
  std::unique_ptr<TrackingResource> memory_;
  std::vector<std::vector<ParameterSpec>> specs_;
  std::map<std::string, Tensor> parameters_;
  std::map<std::string, Tensor> gradients_;
  std::set<std::string> written_;
  std::vector<Saved> saved_;
};

}  // namespace zero3d::test
