#include "zero3d/optim/make_rule.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/optim/adagrad.h"
#include "zero3d/optim/adam.h"
#include "zero3d/optim/lamb.h"
#include "zero3d/optim/lion.h"
#include "zero3d/optim/muon.h"
#include "zero3d/optim/rmsprop.h"
#include "zero3d/optim/sgd.h"

namespace zero3d {
namespace {

std::string lowercase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

/// A parameter map being read into rules.
struct Maker {
  const OptimizerChoice& choice;
  ParameterReader reader;
  OptimizerRules made;

  explicit Maker(const OptimizerChoice& c) : choice(c), reader(c.params, c.path + ".params") {}

  double not_negative(const char* key, double fallback) {
    const double value = reader.number(key, fallback);
    if (value < 0) reader.fail(key, concat("must not be negative, found ", value));
    return value;
  }

  double fraction(const char* key, double fallback) {
    const double value = reader.number(key, fallback);
    if (value < 0 || value >= 1)
      reader.fail(key, concat("must be at least 0 and below 1, found ", value));
    return value;
  }

  void betas(GroupSettings& settings, double beta1, double beta2) {
    std::tie(settings.beta1, settings.beta2) = reader.pair("betas", {beta1, beta2});
    for (const double beta : {settings.beta1, settings.beta2})
      if (beta < 0 || beta >= 1)
        reader.fail("betas", concat("must be at least 0 and below 1, found ", beta));
    made.has_betas = true;
  }

  void refuse_flag(const char* key, const char* why) {
    if (reader.flag(key, false)) reader.fail(key, why);
  }

  void refuse_amsgrad() { refuse_flag("amsgrad", "the AMSGrad variant is not supported"); }

  /// What torch's classes take to choose among implementations of one formula.
  void ignore_torch_switches() {
    for (const char* key : {"foreach", "capturable", "differentiable", "fused"}) reader.ignore(key);
    refuse_flag("maximize", "maximising is not supported; negate the loss");
  }

  /// DeepSpeed's CPU classes keep their states in bf16 when told to; others drop the parameter.
  void read_state_precision() {
    const bool fp32_states = reader.flag("fp32_optimizer_states", true);
    made.bf16_states = choice.bf16_states || (choice.offloaded && !fp32_states);
  }

  /// adam_w_mode and torch_adam: true for decoupled decay.
  bool read_decay_mode(bool is_adamw) {
    const bool flag = reader.flag("adam_w_mode", true);
    if (is_adamw && !flag)
      made.warnings.push_back(
          concat(reader.path(),
                 ".adam_w_mode: false has no effect on type AdamW, which "
                 "always decays decoupled; use type Adam for classic (L2) decay"));
    return is_adamw || flag;
  }

  void make_adam(bool is_adamw) {
    AdamOptions options;
    options.name = is_adamw ? "AdamW" : "Adam";
    options.decoupled = read_decay_mode(is_adamw);
    const bool torch = reader.flag("torch_adam", false);
    GroupSettings& settings = made.settings;
    settings.lr = not_negative("lr", 1e-3);
    betas(settings, 0.9, 0.999);
    settings.eps = not_negative("eps", 1e-8);
    settings.weight_decay = not_negative("weight_decay", torch && options.decoupled ? 1e-2 : 0);
    if (torch) {
      ignore_torch_switches();
    } else {
      options.bias_correction = reader.flag("bias_correction", true);
      reader.ignore("set_grad_none");
    }
    refuse_amsgrad();
    read_state_precision();
    made.rule = std::make_unique<Adam>(options);
    made.tested_with_zero = true;
  }

  void make_adagrad() {
    AdagradOptions options;
    made.settings.lr = not_negative("lr", 1e-2);
    made.settings.eps = not_negative("eps", 1e-10);
    made.settings.weight_decay = not_negative("weight_decay", 0);
    if (choice.offloaded) {
      options.state_name = "exp_avg_sq";
      options.may_be_bf16 = true;
      refuse_amsgrad();
      read_state_precision();
    } else {
      options.lr_decay = not_negative("lr_decay", 0);
      options.initial_accumulator_value = not_negative("initial_accumulator_value", 0);
      ignore_torch_switches();
    }
    made.rule = std::make_unique<Adagrad>(options);
    made.tested_with_zero = true;
  }

  void make_lion() {
    made.settings.lr = not_negative("lr", 1e-3);
    betas(made.settings, 0.9, 0.999);
    made.settings.weight_decay = not_negative("weight_decay", 0);
    reader.ignore("set_grad_none");
    read_state_precision();
    made.rule = std::make_unique<Lion>();
    made.tested_with_zero = true;
  }

  void make_lamb() {
    LambOptions options;
    made.settings.lr = not_negative("lr", 1e-3);
    options.bias_correction = reader.flag("bias_correction", true);
    betas(made.settings, 0.9, 0.999);
    made.settings.eps = not_negative("eps", 1e-8);
    options.eps_inside_sqrt = reader.flag("eps_inside_sqrt", false);
    made.settings.weight_decay = not_negative("weight_decay", 0);
    options.max_coeff = not_negative("max_coeff", 10.0);
    options.min_coeff = not_negative("min_coeff", 0.01);
    if (options.min_coeff > options.max_coeff)
      reader.fail("min_coeff", concat("must not exceed max_coeff (", options.max_coeff, "), found ",
                                      options.min_coeff));
    refuse_amsgrad();
    made.rule = std::make_unique<Lamb>(options);
  }

  void make_sgd() {
    SgdOptions options;
    made.settings.lr = not_negative("lr", 1e-3);
    made.settings.momentum = not_negative("momentum", 0);
    made.settings.weight_decay = not_negative("weight_decay", 0);
    options.has_momentum = made.settings.momentum != 0;
    options.dampening = reader.number("dampening", 0);
    options.nesterov = reader.flag("nesterov", false);
    if (options.nesterov && (!options.has_momentum || options.dampening != 0))
      reader.fail("nesterov", "requires a momentum and zero dampening");
    ignore_torch_switches();
    made.rule = std::make_unique<Sgd>(options);
  }

  void make_rmsprop() {
    RmspropOptions options;
    made.settings.lr = not_negative("lr", 1e-2);
    options.alpha = not_negative("alpha", 0.99);
    made.settings.eps = not_negative("eps", 1e-8);
    made.settings.weight_decay = not_negative("weight_decay", 0);
    made.settings.momentum = not_negative("momentum", 0);
    options.has_momentum = made.settings.momentum != 0;
    options.centered = reader.flag("centered", false);
    ignore_torch_switches();
    made.rule = std::make_unique<Rmsprop>(options);
  }

  void make_muon() {
    MuonOptions options;
    const std::string method = reader.text("ns_method", "gram");
    if (method != "gram" && method != "standard")
      reader.fail("ns_method", concat("expected \"gram\" or \"standard\", found \"", method, "\""));
    options.method = method == "gram" ? NewtonSchulz::gram : NewtonSchulz::standard;
    refuse_flag("per_head_muon", "orthogonalising attention heads apart is not supported");
    made.settings.lr = not_negative("muon_lr", not_negative("lr", 0.02));
    made.settings.momentum = fraction("momentum", 0.95);
    made.settings.weight_decay = not_negative("weight_decay", 0);
    made.rule = std::make_unique<Muon>(options);

    AdamOptions aux;
    aux.name = "Muon's Adam";
    aux.decoupled = reader.flag("adam_w_mode", true);
    reader.ignore("torch_adam");
    made.aux_settings.lr = not_negative("adam_lr", not_negative("lr", 3e-4));
    betas(made.aux_settings, 0.9, 0.95);
    made.aux_settings.eps = not_negative("eps", 1e-10);
    made.aux_settings.weight_decay = made.settings.weight_decay;
    read_state_precision();
    made.aux_rule = std::make_unique<Adam>(aux);
    made.tested_with_zero = true;
    for (const std::string& key : reader.unread()) {
      made.warnings.push_back(
          concat(reader.path(), ".", key, ": Muon has no such parameter; ignored"));
      reader.ignore(key);
    }
  }
};

constexpr std::array<std::string_view, 8> kTypes = {"Adam", "AdamW", "Adagrad", "Lion",
                                                    "Lamb", "Muon",  "SGD",     "RMSprop"};

[[noreturn]] void refuse_type(const OptimizerChoice& choice) {
  std::string nearest = nearest_name(choice.type, kTypes.data(), kTypes.size());
  for (const std::string_view type : kTypes)
    if (lowercase(choice.type) == lowercase(type)) nearest = type;
  std::string known;
  for (const std::string_view type : kTypes) known += concat(known.empty() ? "" : ", ", type);
  throw ConfigError(choice.path + ".type",
                    concat("unknown optimizer \"", choice.type, "\"",
                           nearest.empty() ? "" : concat("; did you mean \"", nearest, "\"?"),
                           " Known: ", known, " (SGD and RMSprop in exactly this case)"));
}

}  // namespace

std::vector<std::string> optimizer_types() { return {kTypes.begin(), kTypes.end()}; }

bool muon_takes(std::string_view name, const Shape& shape) {
  const std::string lower = lowercase(name);
  return shape.rank() >= 2 && lower.find("embed") == std::string::npos &&
         lower.find("lm_head") == std::string::npos;
}

OptimizerRules make_update_rule(const OptimizerChoice& choice) {
  Maker maker(choice);
  if (choice.params.count("max_grad_norm"))
    maker.reader.fail("max_grad_norm", "is not an optimizer parameter; set gradient_clipping");
  const std::string lower = lowercase(choice.type);
  if (lower == "adam" || lower == "adamw")
    maker.make_adam(lower == "adamw");
  else if (lower == "adagrad")
    maker.make_adagrad();
  else if (lower == "lion")
    maker.make_lion();
  else if (lower == "lamb")
    maker.make_lamb();
  else if (lower == "muon")
    maker.make_muon();
  else if (choice.type == "SGD")
    maker.make_sgd();
  else if (choice.type == "RMSprop")
    maker.make_rmsprop();
  else
    refuse_type(choice);
  maker.reader.finish(choice.type);
  if (choice.legacy_fusion)
    maker.made.warnings.push_back(choice.path +
                                  ".legacy_fusion: has no effect; there is one fused update");
  return std::move(maker.made);
}

}  // namespace zero3d
