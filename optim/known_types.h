// The optimizers and schedules with their parameters, each stated once: what make_update_rule and
// make_schedule read, what a ds_config is held to, and what docs/config.md lists.
#pragma once

#include <span>
#include <string_view>

#include "zero3d/optim/parameters.h"

namespace zero3d {

enum class ParamKind { number, integer, flag, pair, text, numbers };
/// "true or false", "a list of two numbers", ...
std::string_view describe(ParamKind kind);

/// What the value, or each of a list, must be. `fraction`: at least 0 and below 1.
enum class Bound { none, not_negative, positive, fraction };

/// Which of the classes behind one name take a parameter.
enum class Taken { always, by_torch, not_by_torch, offloaded, on_device };

struct KnownParam {
  std::string_view name;
  ParamKind kind;
  std::string_view default_value;  ///< As JSON, "required", or in words.
  std::string_view effect;
  Bound bound = Bound::none;
  Taken taken = Taken::always;
  std::string_view refusal = {};  ///< Why true is refused.

  /// Whether `value` is of the kind; 0 and 1 are flags too, and no number is infinite.
  bool accepts(const ParameterValue& value) const;
  /// Whether null says the same as nothing: where the default is null or in words, and for lists of
  /// numbers.
  bool may_be_null() const;
};

struct KnownType {
  std::string_view name;
  std::span<const KnownParam> params;
  std::string_view note;
  bool any_case = false;         ///< DeepSpeed matches the name in any case.
  bool tested_with_zero = true;  ///< Else DeepSpeed asks for zero_allow_untested_optimizer.
  bool drops_unknown = false;    ///< Parameters that it does not know are dropped.
  bool own = false;              ///< Of zero3d, and not of DeepSpeed.

  const KnownParam* find(std::string_view param) const;
};

std::span<const KnownType> known_optimizers();
std::span<const KnownType> known_schedules();
/// Null when there is none.
const KnownType* find_type(std::span<const KnownType> types, std::string_view name);

}  // namespace zero3d
