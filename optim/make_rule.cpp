#include "zero3d/optim/make_rule.h"

#include <tuple>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/optim/adagrad.h"
#include "zero3d/optim/adam.h"
#include "zero3d/optim/known_types.h"
#include "zero3d/optim/lamb.h"
#include "zero3d/optim/lion.h"
#include "zero3d/optim/muon.h"
#include "zero3d/optim/rmsprop.h"
#include "zero3d/optim/sgd.h"

namespace zero3d {
namespace {

/// A parameter map being read into rules.
struct Maker {
  const OptimizerChoice& choice;
  ParameterReader reader;
  OptimizerRules made;
  bool torch = false;  ///< PyTorch's own class is asked for.

  Maker(const OptimizerChoice& c, const KnownType& type)
      : choice(c), reader(c.params, c.path + ".params", type) {}

  void betas(GroupSettings& settings) {
    std::tie(settings.beta1, settings.beta2) = reader.pair("betas");
    made.has_betas = true;
  }

  /// DeepSpeed's CPU classes keep their states in bf16 when told to; others drop the parameter.
  void read_state_precision() {
    const bool fp32_states = reader.flag("fp32_optimizer_states");
    made.bf16_states = choice.bf16_states || (choice.offloaded && !fp32_states);
  }

  /// adam_w_mode and torch_adam: true for decoupled decay.
  bool read_decay_mode(bool is_adamw) {
    const bool flag = reader.flag("adam_w_mode");
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
    torch = reader.flag("torch_adam");
    GroupSettings& settings = made.settings;
    settings.lr = reader.number("lr");
    betas(settings);
    settings.eps = reader.number("eps");
    settings.weight_decay = torch && options.decoupled ? reader.number("weight_decay", 1e-2)
                                                       : reader.number("weight_decay");
    options.bias_correction = torch || reader.flag("bias_correction");
    read_state_precision();
    made.rule = std::make_unique<Adam>(options);
  }

  void make_adagrad() {
    AdagradOptions options;
    made.settings.lr = reader.number("lr");
    made.settings.eps = reader.number("eps");
    made.settings.weight_decay = reader.number("weight_decay");
    if (choice.offloaded) {
      options.state_name = "exp_avg_sq";
      options.may_be_bf16 = true;
      read_state_precision();
    } else {
      options.lr_decay = reader.number("lr_decay");
      options.initial_accumulator_value = reader.number("initial_accumulator_value");
    }
    made.rule = std::make_unique<Adagrad>(options);
  }

  void make_lion() {
    made.settings.lr = reader.number("lr");
    betas(made.settings);
    made.settings.weight_decay = reader.number("weight_decay");
    read_state_precision();
    made.rule = std::make_unique<Lion>();
  }

  void make_lamb() {
    LambOptions options;
    made.settings.lr = reader.number("lr");
    options.bias_correction = reader.flag("bias_correction");
    betas(made.settings);
    made.settings.eps = reader.number("eps");
    options.eps_inside_sqrt = reader.flag("eps_inside_sqrt");
    made.settings.weight_decay = reader.number("weight_decay");
    options.max_coeff = reader.number("max_coeff");
    options.min_coeff = reader.number("min_coeff");
    if (options.min_coeff > options.max_coeff)
      reader.fail("min_coeff", concat("must not exceed max_coeff (", options.max_coeff, "), found ",
                                      options.min_coeff));
    made.rule = std::make_unique<Lamb>(options);
  }

  void make_sgd() {
    SgdOptions options;
    made.settings.lr = reader.number("lr");
    made.settings.momentum = reader.number("momentum");
    made.settings.weight_decay = reader.number("weight_decay");
    options.has_momentum = made.settings.momentum != 0;
    options.dampening = reader.number("dampening");
    options.nesterov = reader.flag("nesterov");
    if (options.nesterov && (!options.has_momentum || options.dampening != 0))
      reader.fail("nesterov", concat("requires a momentum and zero dampening, found momentum ",
                                     made.settings.momentum, " and dampening ", options.dampening,
                                     "; state them so, or remove nesterov"));
    made.rule = std::make_unique<Sgd>(options);
  }

  void make_rmsprop() {
    RmspropOptions options;
    made.settings.lr = reader.number("lr");
    options.alpha = reader.number("alpha");
    made.settings.eps = reader.number("eps");
    made.settings.weight_decay = reader.number("weight_decay");
    made.settings.momentum = reader.number("momentum");
    options.has_momentum = made.settings.momentum != 0;
    options.centered = reader.flag("centered");
    made.rule = std::make_unique<Rmsprop>(options);
  }

  void make_muon() {
    MuonOptions options;
    const std::string method = reader.text("ns_method");
    if (method != "gram" && method != "standard")
      reader.fail("ns_method", concat("expected \"gram\" or \"standard\", found \"", method, "\""));
    options.method = method == "gram" ? NewtonSchulz::gram : NewtonSchulz::standard;
    made.settings.lr = reader.number("muon_lr", reader.number("lr"));
    made.settings.momentum = reader.number("momentum");
    made.settings.weight_decay = reader.number("weight_decay");
    made.rule = std::make_unique<Muon>(options);

    AdamOptions aux;
    aux.name = "Muon's Adam";
    aux.decoupled = reader.flag("adam_w_mode");
    made.aux_settings.lr = reader.number("adam_lr", reader.number("lr", 3e-4));
    betas(made.aux_settings);
    made.aux_settings.eps = reader.number("eps");
    made.aux_settings.weight_decay = made.settings.weight_decay;
    read_state_precision();
    made.aux_rule = std::make_unique<Adam>(aux);
  }

  void make(std::string_view type) {
    if (type == "Adam" || type == "AdamW") return make_adam(type == "AdamW");
    if (type == "Adagrad") return make_adagrad();
    if (type == "Lion") return make_lion();
    if (type == "Lamb") return make_lamb();
    if (type == "Muon") return make_muon();
    if (type == "SGD") return make_sgd();
    if (type == "RMSprop") return make_rmsprop();
    throw_invalid(concat("no rule for the optimizer ", type));
  }
};

[[noreturn]] void refuse_type(const OptimizerChoice& choice) {
  const std::vector<std::string> types = optimizer_types();
  const std::vector<std::string_view> names(types.begin(), types.end());
  std::string nearest = nearest_name(choice.type, names);
  for (const std::string_view type : names) {
    if (lower_case(choice.type) == lower_case(type)) nearest = type;
  }
  throw ConfigError(
      choice.path + ".type",
      concat("unknown optimizer \"", choice.type, "\"",
             nearest.empty() ? "" : concat("; did you mean \"", nearest, "\"?"),
             " Known: ", joined(names, ", "), " (SGD and RMSprop in exactly this case)"));
}

}  // namespace

std::vector<std::string> optimizer_types() {
  std::vector<std::string> names;
  for (const KnownType& type : known_optimizers()) names.emplace_back(type.name);
  return names;
}

bool muon_takes(std::string_view name, const Shape& shape) {
  const std::string lower = lower_case(name);
  return shape.rank() >= 2 && lower.find("embed") == std::string::npos &&
         lower.find("lm_head") == std::string::npos;
}

OptimizerRules make_update_rule(const OptimizerChoice& choice) {
  const KnownType* type = find_type(known_optimizers(), choice.type);
  if (type == nullptr) refuse_type(choice);
  Maker maker(choice, *type);
  if (maker.reader.has("max_grad_norm"))
    maker.reader.fail("max_grad_norm", "is not an optimizer parameter; set gradient_clipping");
  maker.make(type->name);
  OptimizerRules& made = maker.made;
  made.tested_with_zero = type->tested_with_zero;
  std::vector<std::string_view> names;
  for (const KnownParam& param : type->params) names.push_back(param.name);
  for (const std::string& key : maker.reader.finish(maker.torch, choice.offloaded)) {
    const std::string nearest = nearest_name(key, names);
    made.warnings.push_back(
        concat(maker.reader.path(), ".", key, ": ", type->name, " has no such parameter; ignored",
               nearest.empty() ? "" : concat("; did you mean \"", nearest, "\"?")));
  }
  if (choice.legacy_fusion)
    made.warnings.push_back(choice.path +
                            ".legacy_fusion: has no effect; there is one fused update");
  return std::move(made);
}

}  // namespace zero3d
