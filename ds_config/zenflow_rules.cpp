// Rules of zero_optimization.zenflow: what it needs beside it, and how its intervals fit.
#include "zero3d/core/text.h"
#include "zero3d/ds_config/rules.h"

namespace zero3d::config {
namespace {

const std::string kSection = "zero_optimization.zenflow";

std::string key(const char* name) { return concat(kSection, ".", name); }

/// What lies elsewhere, or is updated by another rule, cannot be updated at two paces.
void check_surroundings(const Draft& draft) {
  const Config& config = draft.config;
  if (!config.offloads("offload_optimizer") || config.offloads_to_drive("offload_optimizer")) {
    draft.train_error(
        kSection, concat("needs the optimizer in host memory, and offload_optimizer.device is ",
                         config.offloads_to_drive("offload_optimizer") ? "nvme" : "none",
                         "; write \"offload_optimizer\": {\"device\": \"cpu\"} or remove zenflow"));
  }
  if (config.stage() == 3 && config.offloads("offload_param"))
    draft.train_error(kSection,
                      "updates parameters on the device, and offload_param moves them off it; "
                      "remove one of the two");
  if (!config.flag("zero_optimization.compute_grad_norm"))
    draft.train_error(kSection, "works with compute_grad_norm true only; remove one of the two");
  if (!config.has("optimizer.type")) return;
  const std::string type = config.text("optimizer.type");
  if (lower_case(type) != "adam" && lower_case(type) != "adamw")
    draft.train_error(kSection, concat("works with Adam and AdamW only, and optimizer.type is ",
                                       type, "; use one of them or remove zenflow"));
}

void check_intervals(const Draft& draft) {
  const Config& config = draft.config;
  const JsonValue& select = config.at(key("select_interval"));
  const JsonValue& update = config.at(key("update_interval"));
  const auto at_least = [&](const char* name, std::int64_t least) {
    const JsonValue& value = config.at(key(name));
    if (value.is_integer() && value.as_integer() < least)
      draft.train_error(key(name),
                        concat("expected ", least, " or more, found ", value.as_integer()));
  };
  at_least("select_interval", 1);
  at_least("full_warm_up_rounds", 0);
  at_least("steps_per_epoch", 1);
  if (!update.is_integer())
    draft.warning(key("update_interval"),
                  concat("\"auto\" is ", kAutoUpdateInterval,
                         " steps here, whatever the gradients; write a number for another"));
  const std::int64_t round = update.is_integer() ? update.as_integer() : kAutoUpdateInterval;
  if (config.text(key("select_strategy")) == "step" && select.is_integer() &&
      select.as_integer() >= 1 && select.as_integer() < round)
    draft.train_error(key("update_interval"),
                      concat("is ", round, ", more than select_interval ", select.as_integer(),
                             "; columns are chosen at the start of a round: make it smaller"));
}

}  // namespace

void check_zenflow(const Draft& draft) {
  const Config& config = draft.config;
  if (config.stage() == 0 || !config.has(kSection)) return;
  check_surroundings(draft);
  check_intervals(draft);
  if (config.flag(key("offload")))
    draft.train_error(key("offload"),
                      "the states of the chosen blocks stay on the device, where they are updated "
                      "at every step; remove it, or lower topk_ratio to need less");
}

}  // namespace zero3d::config
