// What the constructors of DeepSpeed's optimizers and schedules would refuse, told beforehand.
#include <algorithm>
#include <array>
#include <cctype>

#include "zero3d/core/text.h"
#include "zero3d/ds_config/known_types.h"
#include "zero3d/ds_config/rules.h"

namespace zero3d::config {

namespace {

bool equal_any_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

const KnownType* find_type(std::span<const KnownType> types, std::string_view name) {
  for (const KnownType& type : types) {
    if (type.any_case ? equal_any_case(type.name, name) : type.name == name) return &type;
  }
  return nullptr;
}

bool has_kind(const JsonValue& value, ParamKind kind) {
  const auto all_numbers = [&] {
    return value.is_array() && std::all_of(value.items().begin(), value.items().end(),
                                           [](const JsonValue& item) { return item.is_number(); });
  };
  switch (kind) {
    case ParamKind::number:
      return value.is_number();
    case ParamKind::integer:
      return value.is_integer();
    case ParamKind::flag:
      return value.is_bool() ||
             (value.is_integer() && (value == JsonValue(0) || value == JsonValue(1)));
    case ParamKind::pair:
      return all_numbers() && value.items().size() == 2;
    case ParamKind::text:
      return value.is_string();
    case ParamKind::numbers:
      return value.is_number() || all_numbers();
  }
  return false;
}

std::string names_of(std::span<const KnownType> types) {
  std::string list;
  for (const KnownType& type : types) list += concat(list.empty() ? "" : ", ", type.name);
  return list;
}

void unknown_param(Reader& reader, const KnownType& type, const std::string& path,
                   const JsonMember& member) {
  std::vector<std::string_view> names;
  for (const KnownParam& param : type.params) names.push_back(param.name);
  const std::string hint = did_you_mean(member.name, names);
  std::string message = concat(type.name, " has no such parameter", hint.empty() ? "" : "; ", hint);
  if (type.drops_unknown) {
    reader.warning(path, message + "; it is dropped", member.name_position);
  } else {
    reader.train_error(path, message + (hint.empty() ? "; remove it" : ""), member.name_position);
  }
}

void check_params(Reader& reader, const KnownType& type, const ConfigParams& params,
                  TextPosition section) {
  for (const JsonMember& member : params.json().members()) {
    const std::string path = join_path(params.path(), member.name);
    if (member.name == "max_grad_norm") continue;
    const auto known = std::find_if(type.params.begin(), type.params.end(),
                                    [&](const KnownParam& p) { return p.name == member.name; });
    if (known == type.params.end()) {
      unknown_param(reader, type, path, member);
    } else if (!member.value.is_null() && !has_kind(member.value, known->kind)) {
      reader.train_error(
          path, concat("expected ", describe(known->kind), ", found ", member.value.excerpt()),
          member.value.position());
    }
  }
  for (const KnownParam& param : type.params) {
    if (param.default_value != "required" || params.find(param.name) != nullptr) continue;
    reader.train_error(join_path("scheduler.params", param.name),
                       concat(type.name, " needs it: ", describe(param.kind), ". ", param.effect),
                       section);
  }
}

constexpr std::string_view kElsewhere[] = {std::string_view("OneBitAdam"),
                                           "OneBitLamb",
                                           "ZeroOneAdam",
                                           "MuAdam",
                                           "MuAdamW",
                                           "MuSGD",
                                           "Adadelta",
                                           "Adamax",
                                           "NAdam",
                                           "RAdam",
                                           "ASGD",
                                           "LBFGS",
                                           "Rprop",
                                           "SparseAdam",
                                           "Adafactor"};

void unknown_optimizer(Reader& reader, const std::string& type, TextPosition position) {
  std::string message = concat("no optimizer \"", type, "\"");
  for (std::string_view name : kElsewhere) {
    if (!equal_any_case(name, type)) continue;
    message =
        name.find("One") != std::string_view::npos
            ? concat("DeepSpeed 0.19.8 removed the 1-bit optimizers, \"", type, "\" among them")
            : concat("zero3d does not implement \"", type, "\"");
  }
  std::vector<std::string_view> names;
  for (const KnownType& known : known_optimizers()) {
    names.push_back(known.name);
    if (equal_any_case(known.name, type))
      message = concat("the name is case-sensitive: write \"", known.name, "\"");
  }
  const std::string hint = did_you_mean(type, names);
  reader.train_error("optimizer.type",
                     concat(message, "; choose one of ", names_of(known_optimizers()),
                            hint.empty() ? "" : "; ", hint),
                     position);
}

/// DeepSpeed's reader compares it with 0, but only when there is a type.
void check_max_grad_norm(Reader& reader, const ConfigParams& params, bool typed) {
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

void check_optimizer(Reader& reader, const JsonValue& root, const Config& config) {
  if (!config.optimizer) return;
  const OptimizerConfig& optimizer = *config.optimizer;
  check_max_grad_norm(reader, optimizer.params, optimizer.type.has_value());
  if (!optimizer.type) {
    reader.train_error("optimizer.type", concat("absent, so there is no optimizer; choose one of ",
                                                names_of(known_optimizers())));
    return;
  }
  const KnownType* type = find_type(known_optimizers(), *optimizer.type);
  if (type == nullptr) {
    unknown_optimizer(reader, *optimizer.type, position_of(root, "optimizer", "type"));
    return;
  }
  check_params(reader, *type, optimizer.params, position_of(root, "", "optimizer"));
  const JsonValue* amsgrad = optimizer.params.find("amsgrad");
  if (amsgrad != nullptr && amsgrad->is_bool() && amsgrad->as_bool()) {
    reader.train_error("optimizer.params.amsgrad",
                       concat(type->name, " has no AMSGrad variant here; set it to false"),
                       amsgrad->position());
  }
  if (!type->tested_with_zero && config.zero_optimization.stage > 0 &&
      !config.zero_allow_untested_optimizer) {
    reader.train_error("zero_allow_untested_optimizer",
                       concat("set it to true to use ", type->name,
                              " with ZeRO: DeepSpeed asks for that, as it has not tested the two "
                              "together"),
                       position_of(root, "optimizer", "type"));
  }
  if (type->name == "Lamb" && config.fp16.loss_scale != 0) {
    reader.train_error("fp16.loss_scale", "Lamb needs dynamic loss scaling; set it to 0",
                       position_of(root, "fp16", "loss_scale"));
  }
}

void check_scheduler(Reader& reader, const JsonValue& root, const Config& config) {
  if (!config.scheduler || !config.scheduler->type) return;
  const SchedulerConfig& scheduler = *config.scheduler;
  const KnownType* type = find_type(known_schedules(), *scheduler.type);
  if (type == nullptr) {
    std::vector<std::string_view> names;
    for (const KnownType& known : known_schedules()) names.push_back(known.name);
    const std::string hint = did_you_mean(*scheduler.type, names);
    reader.train_error(
        "scheduler.type",
        concat("no schedule \"", *scheduler.type, "\"; choose one of ", names_of(known_schedules()),
               " (the case counts)", hint.empty() ? "" : "; ", hint),
        position_of(root, "scheduler", "type"));
    return;
  }
  check_params(reader, *type, scheduler.params, position_of(root, "", "scheduler"));
  for (const char* name :
       {"warmup_num_steps", "lr_range_test_step_size", "cycle_first_step_size"}) {
    const JsonValue* value = scheduler.params.find(name);
    if (value != nullptr && value->is_integer() && value->as_integer() <= 0) {
      reader.train_error(join_path("scheduler.params", name),
                         concat("expected an integer > 0, found ", value->as_integer()),
                         value->position());
    }
  }
}

}  // namespace zero3d::config
