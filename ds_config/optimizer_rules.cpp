// What the constructors of DeepSpeed's optimizers and schedules would refuse, told beforehand.
#include <algorithm>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/ds_config/field.h"
#include "zero3d/ds_config/rules.h"
#include "zero3d/optim/known_types.h"

namespace zero3d::config {

namespace {

std::vector<std::string_view> names_in(std::span<const KnownType> types) {
  std::vector<std::string_view> names;
  for (const KnownType& type : types) {
    if (!type.own) names.push_back(type.name);
  }
  return names;
}

std::string list_of(std::span<const KnownType> types) { return joined(names_in(types), ", "); }

void unknown_param(Reader& reader, const KnownType& type, const std::string& path,
                   const JsonMember& member) {
  if (type.drops_unknown) return;  // a warning of the optimizer's
  std::vector<std::string_view> names;
  for (const KnownParam& param : type.params) names.push_back(param.name);
  const std::string hint = did_you_mean(member.name, names);
  reader.train_error(
      path,
      concat(type.name, " has no such parameter", after(hint), hint.empty() ? "; remove it" : ""),
      member.name_position);
}

/// The message of `error` without the path that stands before it.
std::string without_path(const ConfigError& error) {
  const std::string message = error.what();
  return error.path().empty() ? message : message.substr(error.path().size() + 2);
}

/// What is wrong with one value; "" when nothing is.
std::string fault_of(const JsonMember& member, const KnownType& type, const std::string& section) {
  const KnownParam& known = *type.find(member.name);
  const std::optional<ParameterValue> value = parameter_value(member.value);
  if (!value || !known.accepts(*value))
    return concat("expected ", describe(known.kind), ", found ", member.value.excerpt());
  const ParameterMap alone = {{member.name, *value}};
  try {
    ParameterReader(alone, section + ".params", type).check(member.name);
  } catch (const ConfigError& error) {
    return without_path(error);
  }
  return "";
}

void check_params(const Draft& draft, const KnownType& type, const std::string& section) {
  Reader& reader = draft.reader;
  const JsonValue& params = draft.config.at(section + ".params");
  for (const JsonMember& member : params.members()) {
    const std::string path = concat(section, ".params.", member.name);
    if (member.name == "max_grad_norm") continue;
    if (type.find(member.name) == nullptr) {
      unknown_param(reader, type, path, member);
    } else if (std::string fault = fault_of(member, type, section); !fault.empty()) {
      reader.train_error(path, std::move(fault), member.value.position());
    }
  }
  for (const KnownParam& param : type.params) {
    if (param.default_value != "required" || params.find(param.name) != nullptr) continue;
    reader.train_error(concat(section, ".params.", param.name),
                       concat(type.name, " needs it: ", describe(param.kind), ". ", param.effect),
                       position_of(draft.root, section));
  }
}

constexpr std::string_view kElsewhere =
    "OneBitAdam|OneBitLamb|ZeroOneAdam|MuAdam|MuAdamW|MuSGD|Adadelta|Adamax|NAdam|RAdam|ASGD|LBFGS|"
    "Rprop|SparseAdam|Adafactor";

void unknown_optimizer(const Draft& draft, const std::string& type) {
  std::string message = concat("no optimizer \"", type, "\"");
  for (const std::string_view name : split_names(kElsewhere)) {
    if (lower_case(name) != lower_case(type)) continue;
    message =
        name.find("One") != std::string_view::npos
            ? concat("DeepSpeed 0.19.8 removed the 1-bit optimizers, \"", type, "\" among them")
            : concat("zero3d does not implement \"", type, "\"");
  }
  for (const std::string_view name : names_in(known_optimizers())) {
    if (lower_case(name) == lower_case(type))
      message = concat("the name is case-sensitive: write \"", name, "\"");
  }
  const std::string hint = did_you_mean(type, names_in(known_optimizers()));
  draft.train_error("optimizer.type",
                    concat(message, "; choose one of ", list_of(known_optimizers()), after(hint)));
}

/// DeepSpeed's reader compares it with 0, but only when there is a type.
void check_max_grad_norm(Reader& reader, const JsonValue& params, bool typed) {
  const JsonValue* value = params.find("max_grad_norm");
  if (value == nullptr) return;
  const std::string path = "optimizer.params.max_grad_norm";
  if (typed && !value->is_number() && !value->is_bool()) {
    reader.error(path,
                 concat("expected a number, found ", value->excerpt(),
                        "; and it belongs at the top level as \"gradient_clipping\""),
                 value->position());
    return;
  }
  reader.train_error(path,
                     concat("no optimizer takes it: did you mean \"gradient_clipping\": ",
                            value->excerpt(), " at the top level? Move it there"),
                     value->position());
}

}  // namespace

void check_optimizer(const Draft& draft) {
  const Config& config = draft.config;
  if (!config.has("optimizer")) return;
  const JsonValue& params = config.at("optimizer.params");
  const bool typed = config.has("optimizer.type");
  check_max_grad_norm(draft.reader, params, typed);
  if (!typed) {
    draft.reader.train_error(
        "optimizer.type",
        concat("absent, so there is no optimizer; choose one of ", list_of(known_optimizers())));
    return;
  }
  const std::string& name = config.text("optimizer.type");
  const KnownType* type = find_type(known_optimizers(), name);
  if (type == nullptr) return unknown_optimizer(draft, name);
  check_params(draft, *type, "optimizer");
  if (params.find("amsgrad") != nullptr && *params.find("amsgrad") == JsonValue(true))
    draft.reader.train_error("optimizer.params.amsgrad",
                             concat(type->name, " has no AMSGrad variant here; set it to false"),
                             params.find("amsgrad")->position());
  if (!type->tested_with_zero && config.stage() > 0 &&
      !config.flag("zero_allow_untested_optimizer")) {
    draft.reader.train_error("zero_allow_untested_optimizer",
                             concat("set it to true to use ", type->name,
                                    " with ZeRO: DeepSpeed asks for that, as it has not tested the "
                                    "two together"),
                             position_of(draft.root, "optimizer.type"));
  }
  if (type->name == "Lamb" && config.number("fp16.loss_scale") != 0)
    draft.train_error("fp16.loss_scale", "Lamb needs dynamic loss scaling; set it to 0");
}

void check_scheduler(const Draft& draft) {
  const Config& config = draft.config;
  if (!config.has("scheduler") || !config.has("scheduler.type")) return;
  const std::string& name = config.text("scheduler.type");
  const KnownType* type = find_type(known_schedules(), name);
  if (type != nullptr && !type->own) return check_params(draft, *type, "scheduler");
  const std::string hint = did_you_mean(name, names_in(known_schedules()));
  draft.train_error("scheduler.type",
                    concat("no schedule \"", name, "\"; choose one of ", list_of(known_schedules()),
                           " (the case counts)", after(hint)));
}

}  // namespace zero3d::config
