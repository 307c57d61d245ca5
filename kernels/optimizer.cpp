// Slices of an update, checked and handed to the back end with what they read and write.
#include "zero3d/kernels/optimizer.h"

#include <algorithm>
#include <cmath>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/kernels/cpu/optimizer.h"
#include "zero3d/kernels/cuda/bodies.h"
#include "zero3d/kernels/dispatch.h"

namespace zero3d::kernels {
namespace {

/// What a rule touches of each slice.
struct Touched {
  std::size_t states = 0;
  enum class Master { none, read, update } master = Master::update;
};

Array array_of(const View& view, std::int64_t numel, const char* role) {
  ZERO3D_CHECK(view.numel() == numel, concat("update slice: ", role, " has ", view.numel(),
                                             " elements where its slice has ", numel));
  ZERO3D_CHECK(view.dtype() == DType::f32 || is_16bit(view.dtype()),
               concat("update slice: ", role, " is ", name_of(view.dtype()),
                      "; expected fp32, bf16 or fp16"));
  return {view.data(), view.dtype()};
}

/// `output`, when given, is written as the state after the slice's own.
ElementArrays arrays_of(const Touched& touched, const UpdateSlice& slice, const View* output) {
  const ConstView& gradient = slice.gradient;
  ElementArrays arrays;
  arrays.numel = gradient.numel();
  if (touched.master != Touched::Master::none)
    arrays.master = array_of(slice.master, arrays.numel, "master");
  // The loops only read it; Array has one kind of pointer.
  arrays.gradient =
      array_of(View(const_cast<std::byte*>(gradient.data()), gradient.dtype(), gradient.shape()),
               arrays.numel, "gradient");
  ZERO3D_CHECK(slice.states.size() >= touched.states,
               concat("update slice: ", slice.states.size(), " states where the rule keeps ",
                      touched.states));
  for (std::size_t s = 0; s < touched.states; ++s)
    arrays.states[s] = array_of(slice.states[s], arrays.numel, "state");
  if (output != nullptr) arrays.states[touched.states] = array_of(*output, arrays.numel, "output");
  if (slice.copy.defined() && touched.master == Touched::Master::update)
    arrays.copy = array_of(slice.copy, arrays.numel, "copy");
  return arrays;
}

void add_accesses(std::vector<Access>& accesses, const Touched& touched, const UpdateSlice& slice,
                  const View* output) {
  if (touched.master == Touched::Master::read) accesses.push_back(reads(slice.master));
  if (touched.master == Touched::Master::update) {
    accesses.push_back(writes(slice.master));
    accesses.push_back(writes(slice.copy));
  }
  accesses.push_back(reads(slice.gradient));
  for (std::size_t s = 0; s < touched.states; ++s) accesses.push_back(writes(slice.states[s]));
  if (output != nullptr) accesses.push_back(writes(*output));
}

struct Checked {
  std::vector<ElementArrays> arrays;
  std::vector<Access> accesses;
};

Checked checked(const Touched& touched, Slices slices, std::span<const View> outputs) {
  ZERO3D_CHECK(outputs.empty() || outputs.size() == slices.size(), "one output per slice");
  Checked result;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const View* output = outputs.empty() ? nullptr : &outputs[i];
    result.arrays.push_back(arrays_of(touched, slices[i], output));
    add_accesses(result.accesses, touched, slices[i], output);
  }
  return result;
}

template <typename Constants>
void launch(Stream& stream, const char* what, const Touched& touched, Slices slices,
            std::span<const View> outputs, const Constants& constants, Isa isa) {
  Checked all = checked(touched, slices, outputs);
  dispatch(stream, what, std::span<const Access>(all.accesses),
           {.cpu = cpu::update<Constants>, .cuda = cuda::update<Constants>},
           UpdateArgs<Constants>{std::move(all.arrays), constants, isa});
}

}  // namespace

void adam(Stream& stream, Slices slices, const AdamConstants& constants, Isa isa) {
  launch(stream, "adam", {.states = 2}, slices, {}, constants, isa);
}

void lion(Stream& stream, Slices slices, const LionConstants& constants, Isa isa) {
  launch(stream, "lion", {.states = 1}, slices, {}, constants, isa);
}

void adagrad(Stream& stream, Slices slices, const AdagradConstants& constants, Isa isa) {
  launch(stream, "adagrad", {.states = 1}, slices, {}, constants, isa);
}

void sgd(Stream& stream, Slices slices, const SgdConstants& constants, Isa isa) {
  launch(stream, "sgd", {.states = constants.has_momentum ? 1u : 0u}, slices, {}, constants, isa);
}

void rmsprop(Stream& stream, Slices slices, const RmspropConstants& constants, Isa isa) {
  const std::size_t states =
      1u + (constants.has_momentum ? 1u : 0u) + (constants.centered ? 1u : 0u);
  launch(stream, "rmsprop", {.states = states}, slices, {}, constants, isa);
}

void descent(Stream& stream, Slices slices, const DescentConstants& constants, Isa isa) {
  launch(stream, "descent", {}, slices, {}, constants, isa);
}

void null_update(Stream& stream, Slices slices, const NullConstants& constants, Isa isa) {
  launch(stream, "null update", {.states = 2}, slices, {}, constants, isa);
}

void lamb_direction(Stream& stream, Slices slices, std::span<const View> directions,
                    const LambConstants& constants, Isa isa) {
  launch(stream, "lamb direction", {.states = 2, .master = Touched::Master::read}, slices,
         directions, constants, isa);
}

void muon_blend(Stream& stream, Slices slices, std::span<const View> blended,
                const BlendConstants& constants, Isa isa) {
  launch(stream, "muon blend", {.states = 1, .master = Touched::Master::none}, slices, blended,
         constants, isa);
}

double trust_ratio(const LambStepConstants& constants, double parameter_squares,
                   double direction_squares) {
  const double parameter = std::sqrt(parameter_squares);
  const double direction = std::sqrt(direction_squares);
  if (parameter == 0 || direction == 0) return 1;
  return std::clamp(parameter / direction, constants.min_coeff, constants.max_coeff);
}

void lamb_step(Stream& stream, Slices slices, std::span<const ConstView> norms,
               const LambStepConstants& constants, Isa isa) {
  ZERO3D_CHECK(norms.size() == slices.size(), "one pair of norms per slice");
  Checked all = checked({}, slices, {});
  LambStepArgs args{std::move(all.arrays), {}, constants, isa};
  for (const ConstView& pair : norms) {
    ZERO3D_CHECK(pair.numel() == 2, "two sums of squares per slice");
    args.squares.push_back(pair.as<double>());
    all.accesses.push_back(reads(pair));
  }
  dispatch(stream, "lamb step", std::span<const Access>(all.accesses),
           {.cpu = cpu::lamb_step, .cuda = cuda::lamb_step}, std::move(args));
}

}  // namespace zero3d::kernels
