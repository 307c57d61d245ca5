// What tests of update rules share: a CPU device with one stream, and a parameter with its
// gradient, states and copy there. Offsets put views at any alignment.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "zero3d/core/half.h"
#include "zero3d/device/device.h"
#include "zero3d/optim/update_rule.h"
#include "zero3d/tests/support/host_access.h"

namespace zero3d::test {

inline float element_of(const ConstView& view, std::int64_t i) {
  if (view.dtype() == DType::bf16) return to_float(view.as<bf16>()[i]);
  if (view.dtype() == DType::f16) return to_float(view.as<f16>()[i]);
  return view.as<float>()[i];
}

inline void set_element(const View& view, std::int64_t i, float value) {
  if (view.dtype() == DType::bf16)
    view.as<bf16>()[i] = to_bf16(value);
  else if (view.dtype() == DType::f16)
    view.as<f16>()[i] = to_f16(value);
  else
    view.as<float>()[i] = value;
}

class Rig {
 public:
  explicit Rig(int threads = 1) {
    CpuDeviceOptions options;
    options.threads = threads;
    device_ = make_cpu_device(options);
    stream_ = device_->create_stream("compute");
  }
  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }

  void write(const View& view, const std::vector<float>& values) {
    upload(*stream_, view, [&](const View& host) {
      for (std::int64_t i = 0; i < view.numel(); ++i)
        set_element(host, i, values[static_cast<std::size_t>(i)]);
    });
  }
  std::vector<float> read(const ConstView& view) {
    const Readback copy = read_back(*stream_, view);
    const ConstView host = copy.wait();
    std::vector<float> values;
    for (std::int64_t i = 0; i < view.numel(); ++i) values.push_back(element_of(host, i));
    return values;
  }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

/// dtypes of a parameter's arrays; states all of one.
struct Kinds {
  DType master = DType::f32;
  DType gradient = DType::f32;
  DType state = DType::f32;
  bool has_copy = false;
  DType copy = DType::bf16;
};

class Parameter {
 public:
  Parameter(Rig& rig, const UpdateRule& rule, const std::vector<float>& initial, Kinds kinds = {})
      : rig_(rig), numel_(static_cast<std::int64_t>(initial.size())) {
    slice_.master = add(kinds.master, initial);
    gradient_ = add(kinds.gradient, std::vector<float>(initial.size(), 0.0f));
    slice_.gradient = gradient_;
    for (const StateSpec& spec : rule.states())
      slice_.states.push_back(add(kinds.state, std::vector<float>(initial.size(), spec.initial)));
    if (kinds.has_copy) slice_.copy = add(kinds.copy, std::vector<float>(initial.size(), 0.0f));
  }

  void set_gradient(const std::vector<float>& values) {
    rig_.stream().synchronize();
    rig_.write(gradient_, values);
  }
  const UpdateSlice& slice() const { return slice_; }
  UpdateSlice part(std::int64_t begin, std::int64_t count) const {
    UpdateSlice part = slice_;
    part.master = slice_.master.flat(begin, count);
    part.gradient = slice_.gradient.flat(begin, count);
    for (View& state : part.states) state = state.flat(begin, count);
    if (slice_.copy.defined()) part.copy = slice_.copy.flat(begin, count);
    return part;
  }
  std::vector<float> master() { return rig_.read(slice_.master); }
  std::vector<float> state(std::size_t s) { return rig_.read(slice_.states[s]); }
  std::vector<float> copy() { return rig_.read(slice_.copy); }
  const View& gradient() const { return gradient_; }

 private:
  View add(DType dtype, const std::vector<float>& values) {
    tensors_.emplace_back(rig_.device().memory(), kNoStream, dtype, Shape{numel_}, Category::other);
    rig_.write(tensors_.back().view(), values);
    return tensors_.back().view();
  }

  Rig& rig_;
  std::int64_t numel_;
  std::vector<Tensor> tensors_;
  UpdateSlice slice_;
  View gradient_;
};

inline void step(Rig& rig, const UpdateRule& rule, const GroupSettings& group, std::int64_t number,
                 const UpdateSlice& slice, float factor = 1.0f) {
  const UpdateSlice slices[] = {slice};
  rule.update(rig.stream(), group, {number, factor}, slices);
}

inline std::vector<float> random_values(std::int64_t count, unsigned seed, double scale = 1.0) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0.0, scale);
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(normal(generator)));
  return values;
}

}  // namespace zero3d::test
