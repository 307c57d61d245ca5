#include "zero3d/engine/run_state.h"

#include <charconv>
#include <map>
#include <type_traits>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

/// The one list of the fields: use(name, field, least value) for each.
template <typename State, typename Use>
void for_each_field(State& state, const Use& use) {
  use("steps", state.steps, 0);
  use("samples", state.samples, 0);
  use("micro_steps", state.micro_steps, 0);
  use("optimizer_steps", state.optimizer_steps, 0);
  use("schedule_steps", state.schedule_steps, 0);
  use("skipped_steps", state.skipped_steps, 0);
  use("consecutive_skips", state.consecutive_skips, 0);
  use("scaler.scale", state.scaler.scale, 0);
  use("scaler.iteration", state.scaler.iteration, 0);
  use("scaler.last_overflow", state.scaler.last_overflow, -1);
  use("scaler.hysteresis", state.scaler.hysteresis, INT64_MIN);
  use("data_position", state.data_position, 0);
  use("seed", state.seed, 0);
}

std::map<std::string, std::string> values_by_name(std::string_view text) {
  std::map<std::string, std::string> values;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t equals = line.find(" = ");
    if (equals == std::string_view::npos)
      throw_invalid(concat("run state: expected lines \"name = value\", found \"", line, "\""));
    const std::string name(line.substr(0, equals));
    if (!values.emplace(name, line.substr(equals + 3)).second)
      throw_invalid(concat("run state: ", name, " is there twice"));
  }
  return values;
}

}  // namespace

std::string to_text(const RunState& state) {
  std::string text;
  for_each_field(state, [&](const char* name, const auto& field, std::int64_t) {
    char digits[32];
    const auto end = std::to_chars(digits, digits + sizeof digits, field);
    text += concat(name, " = ", std::string_view(digits, end.ptr), "\n");
  });
  return text;
}

RunState run_state_from_text(std::string_view text) {
  std::map<std::string, std::string> values = values_by_name(text);
  RunState state;
  for_each_field(state, [&](const char* name, auto& field, std::int64_t least) {
    const auto found = values.find(name);
    if (found == values.end()) throw_invalid(concat("run state: ", name, " is missing"));
    const std::string& value = found->second;
    const char* const last = value.data() + value.size();
    const auto [end, error] = std::from_chars(value.data(), last, field);
    bool fits = error == std::errc() && end == last;
    if constexpr (!std::is_unsigned_v<std::remove_reference_t<decltype(field)>>)
      fits = fits && field >= static_cast<std::remove_reference_t<decltype(field)>>(least);
    if (!fits) throw_invalid(concat("run state: ", name, " cannot be \"", value, "\""));
    values.erase(found);
  });
  if (!values.empty())
    throw_invalid(concat("run state: there is no field ", values.begin()->first));
  LossScaler::require_valid(state.scaler);
  return state;
}

}  // namespace zero3d
