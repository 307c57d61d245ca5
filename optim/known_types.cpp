#include "zero3d/optim/known_types.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "zero3d/core/text.h"

namespace zero3d {

namespace {

using enum ParamKind;
using enum Bound;
using enum Taken;

constexpr std::string_view kNoAmsgrad = "the AMSGrad variant is not supported";
constexpr std::string_view kNoMaximize = "maximising is not supported; negate the loss";

constexpr std::array kAdam = {
    KnownParam{"lr", number, "1e-3", "Learning rate.", not_negative},
    KnownParam{"betas", pair, "[0.9, 0.999]", "Decay rates of the two moments.", fraction},
    KnownParam{"eps", number, "1e-8", "Added to the denominator.", not_negative},
    KnownParam{"weight_decay", number, "0", "Decay of the weights.", not_negative},
    KnownParam{"bias_correction", flag, "true", "Correct the moments for their start at zero.",
               none, not_by_torch},
    KnownParam{"adam_w_mode", flag, "true",
               "Decoupled decay (AdamW) also for the type Adam; false adds it to the gradient."},
    KnownParam{"torch_adam", flag, "false", "PyTorch's own class: AdamW then decays by 1e-2."},
    KnownParam{"amsgrad", flag, "false", "Refused when true.", none, always, kNoAmsgrad},
    KnownParam{"fp32_optimizer_states", flag, "true", "Moments in fp32 (offloaded states)."},
    KnownParam{"set_grad_none", flag, "true", "A PyTorch matter.", none, not_by_torch},
    KnownParam{"foreach", flag, "null", "A PyTorch matter; only with torch_adam.", none, by_torch},
    KnownParam{"maximize", flag, "false", "Only with torch_adam.", none, by_torch, kNoMaximize},
    KnownParam{"capturable", flag, "false", "A PyTorch matter; only with torch_adam.", none,
               by_torch},
    KnownParam{"differentiable", flag, "false", "A PyTorch matter; only with torch_adam.", none,
               by_torch},
    KnownParam{"fused", flag, "null", "A PyTorch matter; only with torch_adam.", none, by_torch}};

constexpr std::array kAdagrad = {
    KnownParam{"lr", number, "1e-2", "Learning rate.", not_negative},
    KnownParam{"eps", number, "1e-10", "Added to the denominator.", not_negative},
    KnownParam{"weight_decay", number, "0", "Decay, added to the gradient.", not_negative},
    KnownParam{"lr_decay", number, "0", "Decay of the learning rate.", not_negative, on_device},
    KnownParam{"initial_accumulator_value", number, "0", "Start of the sum of squares.",
               not_negative, on_device},
    KnownParam{"amsgrad", flag, "false", "Refused when true.", none, offloaded, kNoAmsgrad},
    KnownParam{"fp32_optimizer_states", flag, "true", "States in fp32 (offloaded states).", none,
               offloaded},
    KnownParam{"foreach", flag, "null", "A PyTorch matter.", none, on_device},
    KnownParam{"maximize", flag, "false", "Ascend instead of descend.", none, on_device,
               kNoMaximize},
    KnownParam{"differentiable", flag, "false", "A PyTorch matter.", none, on_device},
    KnownParam{"fused", flag, "null", "A PyTorch matter.", none, on_device}};

constexpr std::array kLion = {
    KnownParam{"lr", number, "1e-3", "Learning rate.", not_negative},
    KnownParam{"betas", pair, "[0.9, 0.999]", "Rates of the update and of the momentum.", fraction},
    KnownParam{"weight_decay", number, "0", "Decoupled decay of the weights.", not_negative},
    KnownParam{"fp32_optimizer_states", flag, "true", "Momentum in fp32 (offloaded states)."},
    KnownParam{"set_grad_none", flag, "true", "A PyTorch matter."}};

constexpr std::array kLamb = {
    KnownParam{"lr", number, "1e-3", "Learning rate.", not_negative},
    KnownParam{"betas", pair, "[0.9, 0.999]", "Decay rates of the two moments.", fraction},
    KnownParam{"eps", number, "1e-8", "Added to the denominator.", not_negative},
    KnownParam{"weight_decay", number, "0", "Decay of the weights.", not_negative},
    KnownParam{"bias_correction", flag, "true", "Correct the moments for their start at zero."},
    KnownParam{"eps_inside_sqrt", flag, "false", "Add eps under the square root."},
    KnownParam{"max_coeff", number, "10.0", "Largest trust ratio.", not_negative},
    KnownParam{"min_coeff", number, "0.01", "Smallest trust ratio.", not_negative},
    KnownParam{"amsgrad", flag, "false", "Refused when true.", none, always, kNoAmsgrad}};

constexpr std::array kMuon = {
    KnownParam{"lr", number, "0.02", "Learning rate; the Adam half's is 3e-4 by default.",
               not_negative},
    KnownParam{"muon_lr", number, "lr", "Learning rate of the matrices.", not_negative},
    KnownParam{"adam_lr", number, "lr", "Learning rate of the other parameters.", not_negative},
    KnownParam{"momentum", number, "0.95", "Momentum of the matrices.", fraction},
    KnownParam{"weight_decay", number, "0", "Decoupled decay.", not_negative},
    KnownParam{"betas", pair, "[0.9, 0.95]", "Of the Adam half.", fraction},
    KnownParam{"eps", number, "1e-10", "Of the Adam half.", not_negative},
    KnownParam{"ns_method", text, "\"gram\"", "gram or standard Newton-Schulz iteration."},
    KnownParam{"per_head_muon", flag, "false", "Orthogonalise attention projections by head.", none,
               always, "orthogonalising attention heads apart is not supported"},
    KnownParam{"adam_w_mode", flag, "true", "Of the Adam half."},
    KnownParam{"torch_adam", flag, "false", "Of the Adam half."},
    KnownParam{"fp32_optimizer_states", flag, "true", "Of the Adam half."}};

constexpr std::array kSgd = {
    KnownParam{"lr", number, "1e-3", "Learning rate.", not_negative},
    KnownParam{"momentum", number, "0", "Momentum.", not_negative},
    KnownParam{"dampening", number, "0", "Dampening of the momentum."},
    KnownParam{"weight_decay", number, "0", "Decay, added to the gradient.", not_negative},
    KnownParam{"nesterov", flag, "false", "Nesterov momentum."},
    KnownParam{"maximize", flag, "false", "Ascend instead of descend.", none, always, kNoMaximize},
    KnownParam{"foreach", flag, "null", "A PyTorch matter."},
    KnownParam{"differentiable", flag, "false", "A PyTorch matter."},
    KnownParam{"fused", flag, "null", "A PyTorch matter."}};

constexpr std::array kRmsprop = {
    KnownParam{"lr", number, "1e-2", "Learning rate.", not_negative},
    KnownParam{"alpha", number, "0.99", "Decay rate of the mean square.", not_negative},
    KnownParam{"eps", number, "1e-8", "Added to the denominator.", not_negative},
    KnownParam{"weight_decay", number, "0", "Decay, added to the gradient.", not_negative},
    KnownParam{"momentum", number, "0", "Momentum.", not_negative},
    KnownParam{"centered", flag, "false", "Normalise by the variance."},
    KnownParam{"maximize", flag, "false", "Ascend instead of descend.", none, always, kNoMaximize},
    KnownParam{"capturable", flag, "false", "A PyTorch matter."},
    KnownParam{"foreach", flag, "null", "A PyTorch matter."},
    KnownParam{"differentiable", flag, "false", "A PyTorch matter."}};

constexpr std::array kOptimizers = {
    KnownType{"Adam", kAdam, "Decoupled decay unless adam_w_mode is false.", true},
    KnownType{"AdamW", kAdam, "Decoupled decay always; adam_w_mode is ignored.", true},
    KnownType{"Adagrad", kAdagrad, "", true},
    KnownType{"Lion", kLion, "", true},
    KnownType{"Lamb", kLamb, "Needs fp16.loss_scale 0.", true, false},
    KnownType{"Muon", kMuon, "Matrices by Muon, the rest by Adam.", true, true, true},
    KnownType{"SGD", kSgd, "PyTorch's; exact case.", false, false},
    KnownType{"RMSprop", kRmsprop, "PyTorch's; exact case.", false, false}};

constexpr std::array kWarmup = {
    KnownParam{"warmup_min_lr", numbers, "0", "Rate at the start.", not_negative},
    KnownParam{"warmup_max_lr", numbers, "the optimizer's lr", "Rate after the warm-up.",
               not_negative},
    KnownParam{"warmup_num_steps", integer, "1000", "Steps of the warm-up, > 0.", positive},
    KnownParam{"warmup_type", text, "\"log\"", "log or linear."},
    KnownParam{"last_batch_iteration", integer, "-1", "Where to start."}};

constexpr std::array kWarmupDecay = {
    KnownParam{"total_num_steps", integer, "required", "Steps of the whole run."},
    KnownParam{"warmup_min_lr", numbers, "0", "Rate at the start and at the end.", not_negative},
    KnownParam{"warmup_max_lr", numbers, "0.001", "Rate after the warm-up.", not_negative},
    KnownParam{"warmup_num_steps", integer, "1000", "Steps of the warm-up, > 0.", positive},
    KnownParam{"warmup_type", text, "\"log\"", "log or linear."},
    KnownParam{"last_batch_iteration", integer, "-1", "Where to start."}};

constexpr std::array kWarmupCosine = {
    KnownParam{"total_num_steps", integer, "required", "Steps of the whole run."},
    KnownParam{"warmup_min_ratio", number, "0", "Of the optimizer's lr, at the start.",
               not_negative},
    KnownParam{"warmup_num_steps", integer, "1000", "Steps of the warm-up, > 0.", positive},
    KnownParam{"cos_min_ratio", number, "0.0001", "Of the optimizer's lr, at the end.",
               not_negative},
    KnownParam{"warmup_type", text, "\"log\"", "log or linear."},
    KnownParam{"last_batch_iteration", integer, "-1", "Where to start."}};

constexpr std::array kRangeTest = {
    KnownParam{"lr_range_test_min_lr", numbers, "1e-3", "Rate at the start.", not_negative},
    KnownParam{"lr_range_test_step_size", integer, "2000", "Steps of a stretch, > 0.", positive},
    KnownParam{"lr_range_test_step_rate", number, "1", "Rise over a stretch."},
    KnownParam{"lr_range_test_staircase", flag, "false", "Rise in steps."},
    KnownParam{"last_batch_iteration", integer, "-1", "Where to start."}};

constexpr std::array kOneCycle = {
    KnownParam{"cycle_min_lr", numbers, "required", "Lowest rate.", not_negative},
    KnownParam{"cycle_max_lr", numbers, "required", "Highest rate.", not_negative},
    KnownParam{"decay_lr_rate", number, "0", "Decay after the cycle.", not_negative},
    KnownParam{"cycle_first_step_size", integer, "2000", "Steps up, > 0.", positive},
    KnownParam{"cycle_second_step_size", integer, "as the first", "Steps down.", not_negative},
    KnownParam{"cycle_first_stair_count", integer, "0", "Stairs up."},
    KnownParam{"cycle_second_stair_count", integer, "as the first", "Stairs down."},
    KnownParam{"decay_step_size", integer, "0", "Steps of the decay; 0 is none.", not_negative},
    KnownParam{"cycle_momentum", flag, "true", "Drive beta1 against the rate."},
    KnownParam{"cycle_min_mom", number, "0.8", "Lowest momentum.", fraction},
    KnownParam{"cycle_max_mom", number, "0.9", "Highest momentum.", fraction},
    KnownParam{"decay_mom_rate", number, "0", "Growth of the momentum after the cycle.",
               not_negative},
    KnownParam{"last_batch_iteration", integer, "-1", "Where to start."}};

constexpr KnownParam kPlainWarmup = {"warmup_num_steps", integer, "0", "Steps of the warm-up.",
                                     not_negative};
constexpr std::array kConstantWarmup = {kPlainWarmup};
constexpr std::array kPlainDecay = {
    kPlainWarmup, KnownParam{"total_num_steps", integer, "required", "Steps of the whole run."},
    KnownParam{"min_ratio", number, "0", "Of the optimizer's lr, at the end.", not_negative}};

constexpr std::array kSchedules = {
    KnownType{"WarmupLR", kWarmup, ""},
    KnownType{"WarmupDecayLR", kWarmupDecay, "Linear decay to warmup_min_lr."},
    KnownType{"WarmupCosineLR", kWarmupCosine, ""},
    KnownType{"LRRangeTest", kRangeTest, ""},
    KnownType{"OneCycle", kOneCycle, ""},
    KnownType{.name = "constant", .own = true},
    KnownType{.name = "constant_with_warmup", .params = kConstantWarmup, .own = true},
    KnownType{.name = "linear", .params = kPlainDecay, .own = true},
    KnownType{.name = "cosine", .params = kPlainDecay, .own = true}};

}  // namespace

std::span<const KnownType> known_optimizers() { return kOptimizers; }
std::span<const KnownType> known_schedules() { return kSchedules; }

const KnownParam* KnownType::find(std::string_view param) const {
  const auto found = std::find_if(params.begin(), params.end(),
                                  [&](const KnownParam& p) { return p.name == param; });
  return found == params.end() ? nullptr : &*found;
}

const KnownType* find_type(std::span<const KnownType> types, std::string_view name) {
  for (const KnownType& type : types) {
    if (type.name == name) return &type;
    if (type.any_case && lower_case(type.name) == lower_case(name)) return &type;
  }
  return nullptr;
}

bool KnownParam::may_be_null() const {
  constexpr std::string_view kStarts = "-0123456789[\"";  // of a default that is a value
  if (default_value == "required" || default_value == "true" || default_value == "false")
    return false;
  return kind == numbers || kStarts.find(default_value.front()) == std::string_view::npos;
}

bool KnownParam::accepts(const ParameterValue& value) const {
  if (std::holds_alternative<std::monostate>(value)) return may_be_null();
  const auto* integral = std::get_if<std::int64_t>(&value);
  const auto* real = std::get_if<double>(&value);
  const auto* list = std::get_if<std::vector<double>>(&value);
  const auto all_finite = [&] {
    return list != nullptr &&
           std::all_of(list->begin(), list->end(), [](double item) { return std::isfinite(item); });
  };
  const bool is_number = integral != nullptr || (real != nullptr && std::isfinite(*real));
  switch (kind) {
    case number:
      return is_number;
    case integer:
      return integral != nullptr;
    case flag:
      return std::holds_alternative<bool>(value) ||
             (integral != nullptr && (*integral == 0 || *integral == 1));
    case pair:
      return all_finite() && list->size() == 2;
    case text:
      return std::holds_alternative<std::string>(value);
    case numbers:
      return is_number || (all_finite() && !list->empty());
  }
  return false;
}

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

}  // namespace zero3d
