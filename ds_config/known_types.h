// The optimizer and schedule types of ds_config with their parameters: what check_optimizer holds a
// file to, and what docs/config.md lists.
#pragma once

#include <span>
#include <string_view>

namespace zero3d::config {

enum class ParamKind { number, integer, flag, pair, text, numbers };

struct KnownParam {
  std::string_view name;
  ParamKind kind;
  std::string_view default_value;  ///< As JSON; "required" when there is none.
  std::string_view effect;
};

struct KnownType {
  std::string_view name;
  std::span<const KnownParam> params;
  std::string_view note;
  bool implemented = true;
  bool any_case = false;         ///< DeepSpeed matches the name in any case.
  bool tested_with_zero = true;  ///< Else zero_allow_untested_optimizer is asked for.
  bool drops_unknown = false;    ///< DeepSpeed drops parameters it does not know in silence.
};

std::span<const KnownType> known_optimizers();
std::span<const KnownType> known_schedules();
std::string_view describe(ParamKind kind);

}  // namespace zero3d::config
