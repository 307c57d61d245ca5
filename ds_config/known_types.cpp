#include "zero3d/ds_config/known_types.h"

#include <array>

namespace zero3d::config {

namespace {

using enum ParamKind;

constexpr std::array kAdam = {
    KnownParam{"lr", number, "1e-3", "Learning rate."},
    KnownParam{"betas", pair, "[0.9, 0.999]", "Decay rates of the two moments."},
    KnownParam{"eps", number, "1e-8", "Added to the denominator."},
    KnownParam{"weight_decay", number, "0", "Decay of the weights."},
    KnownParam{"bias_correction", flag, "true", "Correct the moments for their start at zero."},
    KnownParam{"adam_w_mode", flag, "true",
               "Decoupled decay (AdamW) also for the type Adam; false adds it to the gradient."},
    KnownParam{"torch_adam", flag, "false", "PyTorch's own class: AdamW then decays by 1e-2."},
    KnownParam{"amsgrad", flag, "false", "Refused when true."},
    KnownParam{"fp32_optimizer_states", flag, "true", "Moments in fp32 (offloaded states)."},
    KnownParam{"set_grad_none", flag, "true", "A PyTorch matter."},
    KnownParam{"foreach", flag, "null", "A PyTorch matter; only with torch_adam."},
    KnownParam{"maximize", flag, "false", "Only with torch_adam."},
    KnownParam{"capturable", flag, "false", "A PyTorch matter; only with torch_adam."},
    KnownParam{"differentiable", flag, "false", "A PyTorch matter; only with torch_adam."},
    KnownParam{"fused", flag, "null", "A PyTorch matter; only with torch_adam."}};

constexpr std::array kAdagrad = {
    KnownParam{"lr", number, "1e-2", "Learning rate."},
    KnownParam{"eps", number, "1e-10", "Added to the denominator."},
    KnownParam{"weight_decay", number, "0", "Decay, added to the gradient."},
    KnownParam{"lr_decay", number, "0", "Decay of the learning rate."},
    KnownParam{"initial_accumulator_value", number, "0", "Start of the sum of squares."},
    KnownParam{"amsgrad", flag, "false", "Refused when true."},
    KnownParam{"fp32_optimizer_states", flag, "true", "States in fp32 (offloaded states)."},
    KnownParam{"foreach", flag, "null", "A PyTorch matter."},
    KnownParam{"maximize", flag, "false", "Ascend instead of descend."},
    KnownParam{"differentiable", flag, "false", "A PyTorch matter."},
    KnownParam{"fused", flag, "null", "A PyTorch matter."}};

constexpr std::array kLion = {
    KnownParam{"lr", number, "1e-3", "Learning rate."},
    KnownParam{"betas", pair, "[0.9, 0.999]", "Rates of the update and of the momentum."},
    KnownParam{"weight_decay", number, "0", "Decoupled decay of the weights."},
    KnownParam{"fp32_optimizer_states", flag, "true", "Momentum in fp32 (offloaded states)."},
    KnownParam{"set_grad_none", flag, "true", "A PyTorch matter."}};

constexpr std::array kLamb = {
    KnownParam{"lr", number, "1e-3", "Learning rate."},
    KnownParam{"betas", pair, "[0.9, 0.999]", "Decay rates of the two moments."},
    KnownParam{"eps", number, "1e-8", "Added to the denominator."},
    KnownParam{"weight_decay", number, "0", "Decay of the weights."},
    KnownParam{"bias_correction", flag, "true", "Correct the moments for their start at zero."},
    KnownParam{"eps_inside_sqrt", flag, "false", "Add eps under the square root."},
    KnownParam{"max_coeff", number, "10.0", "Largest trust ratio."},
    KnownParam{"min_coeff", number, "0.01", "Smallest trust ratio."},
    KnownParam{"amsgrad", flag, "false", "Refused when true."}};

constexpr std::array kMuon = {
    KnownParam{"lr", number, "0.02", "Learning rate; the Adam half's is 3e-4 by default."},
    KnownParam{"muon_lr", number, "lr", "Learning rate of the matrices."},
    KnownParam{"adam_lr", number, "lr", "Learning rate of the other parameters."},
    KnownParam{"momentum", number, "0.95", "Momentum of the matrices."},
    KnownParam{"weight_decay", number, "0", "Decoupled decay."},
    KnownParam{"betas", pair, "[0.9, 0.95]", "Of the Adam half."},
    KnownParam{"eps", number, "1e-10", "Of the Adam half."},
    KnownParam{"ns_method", text, "\"gram\"", "gram or standard Newton-Schulz iteration."},
    KnownParam{"per_head_muon", flag, "false", "Orthogonalise attention projections by head."},
    KnownParam{"adam_w_mode", flag, "true", "Of the Adam half."},
    KnownParam{"torch_adam", flag, "false", "Of the Adam half."},
    KnownParam{"fp32_optimizer_states", flag, "true", "Of the Adam half."}};

constexpr std::array kSgd = {
    KnownParam{"lr", number, "1e-3", "Learning rate."},
    KnownParam{"momentum", number, "0", "Momentum."},
    KnownParam{"dampening", number, "0", "Dampening of the momentum."},
    KnownParam{"weight_decay", number, "0", "Decay, added to the gradient."},
    KnownParam{"nesterov", flag, "false", "Nesterov momentum."},
    KnownParam{"maximize", flag, "false", "Ascend instead of descend."},
    KnownParam{"foreach", flag, "null", "A PyTorch matter."},
    KnownParam{"differentiable", flag, "false", "A PyTorch matter."},
    KnownParam{"fused", flag, "null", "A PyTorch matter."}};

constexpr std::array kRmsprop = {
    KnownParam{"lr", number, "1e-2", "Learning rate."},
    KnownParam{"alpha", number, "0.99", "Decay rate of the mean square."},
    KnownParam{"eps", number, "1e-8", "Added to the denominator."},
    KnownParam{"weight_decay", number, "0", "Decay, added to the gradient."},
    KnownParam{"momentum", number, "0", "Momentum."},
    KnownParam{"centered", flag, "false", "Normalise by the variance."},
    KnownParam{"maximize", flag, "false", "Ascend instead of descend."},
    KnownParam{"capturable", flag, "false", "A PyTorch matter."},
    KnownParam{"foreach", flag, "null", "A PyTorch matter."},
    KnownParam{"differentiable", flag, "false", "A PyTorch matter."}};

constexpr std::array kOptimizers = {
    KnownType{"Adam", kAdam, "Decoupled decay unless adam_w_mode is false.", true, true},
    KnownType{"AdamW", kAdam, "Decoupled decay always; adam_w_mode is ignored.", true, true},
    KnownType{"Adagrad", kAdagrad, "", true, true},
    KnownType{"Lion", kLion, "", true, true},
    KnownType{"Lamb", kLamb, "Needs fp16.loss_scale 0.", true, true, false},
    KnownType{"Muon", kMuon, "Matrices by Muon, the rest by Adam.", true, true, true, true},
    KnownType{"SGD", kSgd, "PyTorch's; exact case.", true, false, false},
    KnownType{"RMSprop", kRmsprop, "PyTorch's; exact case.", true, false, false}};

constexpr std::array kWarmup = {
    KnownParam{"warmup_min_lr", numbers, "0", "Rate at the start."},
    KnownParam{"warmup_max_lr", numbers, "the optimizer's lr", "Rate after the warm-up."},
    KnownParam{"warmup_num_steps", integer, "1000", "Steps of the warm-up, > 0."},
    KnownParam{"warmup_type", text, "\"log\"", "log or linear."},
    KnownParam{"last_batch_iteration", integer, "-1", "Where to start."}};

constexpr std::array kWarmupDecay = {
    KnownParam{"total_num_steps", integer, "required", "Steps of the whole run."},
    KnownParam{"warmup_min_lr", numbers, "0", "Rate at the start and at the end."},
    KnownParam{"warmup_max_lr", numbers, "0.001", "Rate after the warm-up."},
    KnownParam{"warmup_num_steps", integer, "1000", "Steps of the warm-up, > 0."},
    KnownParam{"warmup_type", text, "\"log\"", "log or linear."},
    KnownParam{"last_batch_iteration", integer, "-1", "Where to start."}};

constexpr std::array kWarmupCosine = {
    KnownParam{"total_num_steps", integer, "required", "Steps of the whole run."},
    KnownParam{"warmup_min_ratio", number, "0", "Of the optimizer's lr, at the start."},
    KnownParam{"warmup_num_steps", integer, "1000", "Steps of the warm-up, > 0."},
    KnownParam{"cos_min_ratio", number, "0.0001", "Of the optimizer's lr, at the end."},
    KnownParam{"warmup_type", text, "\"log\"", "log or linear."},
    KnownParam{"last_batch_iteration", integer, "-1", "Where to start."}};

constexpr std::array kRangeTest = {
    KnownParam{"lr_range_test_min_lr", numbers, "1e-3", "Rate at the start."},
    KnownParam{"lr_range_test_step_size", integer, "2000", "Steps of a stretch, > 0."},
    KnownParam{"lr_range_test_step_rate", number, "1", "Rise over a stretch."},
    KnownParam{"lr_range_test_staircase", flag, "false", "Rise in steps."},
    KnownParam{"last_batch_iteration", integer, "-1", "Where to start."}};

constexpr std::array kOneCycle = {
    KnownParam{"cycle_min_lr", numbers, "required", "Lowest rate."},
    KnownParam{"cycle_max_lr", numbers, "required", "Highest rate."},
    KnownParam{"decay_lr_rate", number, "0", "Decay after the cycle."},
    KnownParam{"cycle_first_step_size", integer, "2000", "Steps up, > 0."},
    KnownParam{"cycle_second_step_size", integer, "as the first", "Steps down."},
    KnownParam{"cycle_first_stair_count", integer, "0", "Stairs up."},
    KnownParam{"cycle_second_stair_count", integer, "as the first", "Stairs down."},
    KnownParam{"decay_step_size", integer, "0", "Steps of the decay; 0 is none."},
    KnownParam{"cycle_momentum", flag, "true", "Drive beta1 against the rate."},
    KnownParam{"cycle_min_mom", number, "0.8", "Lowest momentum."},
    KnownParam{"cycle_max_mom", number, "0.9", "Highest momentum."},
    KnownParam{"decay_mom_rate", number, "0", "Growth of the momentum after the cycle."},
    KnownParam{"last_batch_iteration", integer, "-1", "Where to start."}};

constexpr std::array kSchedules = {
    KnownType{"WarmupLR", kWarmup, ""},
    KnownType{"WarmupDecayLR", kWarmupDecay, "Linear decay to warmup_min_lr."},
    KnownType{"WarmupCosineLR", kWarmupCosine, ""}, KnownType{"LRRangeTest", kRangeTest, ""},
    KnownType{"OneCycle", kOneCycle, ""}};

}  // namespace

std::span<const KnownType> known_optimizers() { return kOptimizers; }
std::span<const KnownType> known_schedules() { return kSchedules; }

std::string_view describe(ParamKind kind) {
  switch (kind) {
    case number:
      return "a number";
    case integer:
      return "an integer";
    case flag:
      return "true or false";
    case pair:
      return "a list of two numbers";
    case text:
      return "a string";
    case numbers:
      return "a number or a list of numbers";
  }
  return "";
}

}  // namespace zero3d::config
