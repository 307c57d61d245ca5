#include "zero3d/engine/optimizer_setup.h"

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/json_value.h"

namespace zero3d {
namespace {

ParameterValue to_parameter_value(const JsonValue& value, const std::string& path) {
  switch (value.kind()) {
    case JsonValue::Kind::null:
      return std::monostate{};
    case JsonValue::Kind::boolean:
      return value.as_bool();
    case JsonValue::Kind::integer:
      return value.as_integer();
    case JsonValue::Kind::number:
      return value.as_number();
    case JsonValue::Kind::string:
      return value.as_string();
    case JsonValue::Kind::array: {
      std::vector<double> numbers;
      for (const JsonValue& item : value.items()) {
        if (!item.is_number())
          throw ConfigError(path, concat("expected a list of numbers, found ", value.excerpt()));
        numbers.push_back(item.as_number());
      }
      return numbers;
    }
    case JsonValue::Kind::object:
      break;
  }
  throw ConfigError(
      path, concat("expected a number, a flag, a string or a list, found ", value.excerpt()));
}

ParameterMap to_parameter_map(const ConfigParams& params) {
  ParameterMap map;
  for (const JsonMember& member : params.json().members()) {
    map.emplace(member.name, to_parameter_value(member.value, params.path() + "." + member.name));
  }
  return map;
}

OptimizerRules make_rules(const Config& config) {
  if (!config.optimizer || !config.optimizer->type) {
    throw ConfigError("optimizer",
                      "training needs an optimizer: add for example "
                      "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4}}");
  }
  OptimizerChoice choice;
  choice.type = *config.optimizer->type;
  choice.params = to_parameter_map(config.optimizer->params);
  choice.legacy_fusion = config.optimizer->legacy_fusion;
  const auto& offload = config.zero_optimization.offload_optimizer;
  choice.offloaded = offload && offload->device != OffloadDevice::none;
  choice.bf16_states = config.bf16.bf16_optimizer_states;
  return make_update_rule(choice);
}

GroupSettings with_overrides(GroupSettings settings, const ParameterGroup& group) {
  settings.lr = group.lr.value_or(settings.lr);
  settings.weight_decay = group.weight_decay.value_or(settings.weight_decay);
  settings.beta1 = group.beta1.value_or(settings.beta1);
  settings.beta2 = group.beta2.value_or(settings.beta2);
  settings.eps = group.eps.value_or(settings.eps);
  return settings;
}

}  // namespace

OptimizerSetup::OptimizerSetup(const Config& config, std::vector<ParameterGroup> user_groups)
    : user_groups_(std::move(user_groups)), rules_(make_rules(config)) {
  user_groups_.push_back({.name = "default", .matches = [](const ParameterSpec&) { return true; }});
  for (const ParameterGroup& user : user_groups_) {
    for (const bool decay : {true, false}) {
      for (const bool aux : {false, true}) {
        if (aux && !rules_.aux_rule) continue;
        GroupSettings settings = with_overrides(aux ? rules_.aux_settings : rules_.settings, user);
        if (!decay) settings.weight_decay = 0;
        base_.push_back(settings);
        groups_.push_back({concat(user.name, decay ? "" : ", no decay", aux ? ", Adam half" : ""),
                           aux ? rules_.aux_rule.get() : rules_.rule.get()});
      }
    }
  }
  if (config.scheduler && config.scheduler->type) {
    schedule_ = make_schedule(*config.scheduler->type, to_parameter_map(config.scheduler->params),
                              base_, rules_.has_betas);
  }
}

int OptimizerSetup::group_of(const ParameterSpec& parameter) const {
  const int halves = rules_.aux_rule ? 2 : 1;
  const int aux = rules_.aux_rule && !muon_takes(parameter.name, parameter.shape) ? 1 : 0;
  int user = 0;
  while (!user_groups_[static_cast<std::size_t>(user)].matches(parameter)) ++user;
  return (user * 2 + (parameter.decay ? 0 : 1)) * halves + aux;
}

std::vector<GroupSettings> OptimizerSetup::settings(std::int64_t applied) const {
  std::vector<GroupSettings> current = base_;
  if (schedule_) schedule_->apply(applied, current);
  return current;
}

std::vector<std::string> OptimizerSetup::description() const {
  std::vector<std::string> lines = {rules_.rule->description()};
  if (rules_.aux_rule) lines.push_back("other parameters: " + rules_.aux_rule->description());
  lines.push_back(schedule_ ? schedule_->description() : "constant learning rate");
  return lines;
}

LossScaler make_loss_scaler(const Config& config) {
  if (!config.fp16.enabled) return LossScaler();
  LossScalerOptions options;
  options.static_scale = config.fp16.loss_scale;
  options.initial_scale_power = static_cast<int>(config.fp16.initial_scale_power);
  options.window = config.fp16.loss_scale_window;
  options.hysteresis = config.fp16.hysteresis;
  options.consecutive_hysteresis = config.fp16.consecutive_hysteresis;
  options.min_scale = config.fp16.min_loss_scale;
  options.stage0 = config.zero_optimization.stage == 0;
  return LossScaler(options);
}

}  // namespace zero3d
