#include "zero3d/ds_config/config.h"

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

[[noreturn]] void wrong(std::string_view path, std::string_view wanted) {
  throw_invalid(concat("the configuration holds no ", wanted, " at ", path));
}

}  // namespace

const JsonValue& Config::at(std::string_view path) const {
  const JsonValue* node = &values;
  for (std::string_view rest = path; !rest.empty() && !node->is_null();) {
    const std::size_t dot = rest.find('.');
    node = node->find(rest.substr(0, dot));
    if (node == nullptr) wrong(path, "value");
    rest = dot == std::string_view::npos ? std::string_view() : rest.substr(dot + 1);
  }
  return *node;
}

bool Config::flag(std::string_view path) const {
  const JsonValue& value = at(path);
  if (!value.is_bool() && !value.is_null()) wrong(path, "flag");
  return value.is_bool() && value.as_bool();
}

std::int64_t Config::integer(std::string_view path) const {
  const JsonValue& value = at(path);
  if (!value.is_integer()) wrong(path, "integer");
  return value.as_integer();
}

double Config::number(std::string_view path) const {
  const JsonValue& value = at(path);
  if (!value.is_number()) wrong(path, "number");
  return value.as_number();
}

const std::string& Config::text(std::string_view path) const {
  const JsonValue& value = at(path);
  if (!value.is_string()) wrong(path, "text");
  return value.as_string();
}

void Config::set(std::string_view path, JsonValue value) {
  const_cast<JsonValue&>(at(path)) = std::move(value);
}

bool Config::offloads(std::string_view section) const {
  const JsonValue& device = at(concat("zero_optimization.", section, ".device"));
  return device.is_string() && device.as_string() != "none";
}

bool Config::offloads_to_drive(std::string_view section) const {
  return at(concat("zero_optimization.", section, ".device")) == JsonValue("nvme");
}

bool Config::uses_drives() const {
  return (stage() > 0 && offloads_to_drive("offload_optimizer")) ||
         (stage() == 3 && offloads_to_drive("offload_param"));
}

std::optional<ParameterValue> parameter_value(const JsonValue& value) {
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
        if (!item.is_number()) return std::nullopt;
        numbers.push_back(item.as_number());
      }
      return numbers;
    }
    case JsonValue::Kind::object:
      break;
  }
  return std::nullopt;
}

std::optional<DType> parse_ds_dtype(std::string_view text) {
  if (text.substr(0, 6) == "torch.") {
    text.remove_prefix(6);
    // Only the class names have the prefix: torch.float16 and torch.half, never torch.fp16.
    if (text.substr(0, 2) == "fp" || text == "bf16") return std::nullopt;
  }
  if (text == "fp16" || text == "float16" || text == "half") return DType::f16;
  if (text == "bf16" || text == "bfloat16") return DType::bf16;
  if (text == "fp32" || text == "float32" || text == "float") return DType::f32;
  return std::nullopt;
}

DType model_dtype(const Config& config) {
  if (config.flag("fp16.enabled")) return DType::f16;
  return config.flag("bf16.enabled") ? DType::bf16 : DType::f32;
}

DType communication_dtype(const Config& config) {
  const char* key =
      config.degrees.sp > 1 ? "seq_parallel_communication_data_type" : "communication_data_type";
  if (!config.has(key)) return accumulation_dtype(config);
  return *parse_ds_dtype(config.text(key));
}

DType accumulation_dtype(const Config& config) {
  constexpr const char* kKey = "data_types.grad_accum_dtype";
  // fp32, but for *_master_weights_and_grads
  if (!config.has(kKey)) return master_dtype(config);
  return parse_ds_dtype(config.text(kKey)).value_or(DType::f32);
}

DType master_dtype(const Config& config) {
  const auto both = [&](const std::string& section, const char* key) {
    return config.flag(section + ".enabled") && config.flag(section + key);
  };
  if (both("fp16", ".fp16_master_weights_and_grads")) return DType::f16;
  if (both("bf16", ".bf16_master_weights_and_grads")) return DType::bf16;
  return DType::f32;
}

}  // namespace zero3d
