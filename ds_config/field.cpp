#include "zero3d/ds_config/field.h"

#include "zero3d/core/text.h"

namespace zero3d::config {

const Field* Section::find(std::string_view key) const {
  for (const Field& field : fields) {
    if (field.name == key || (!field.alias.empty() && field.alias == key)) return &field;
  }
  return nullptr;
}

std::vector<std::string_view> Section::spellings() const {
  std::vector<std::string_view> names;
  for (const Field& field : fields) {
    if (!field.hidden) names.push_back(field.name);
  }
  return names;
}

JsonValue Section::write(const void* object) const {
  JsonValue result = JsonValue::make_object();
  for (const Field& field : fields) {
    if (!field.hidden) result.members().push_back({field.name, {}, field.write(object)});
  }
  return result;
}

void read_value(Reader& reader, const Field& field, const std::string& path, const JsonValue& value,
                bool& out) {
  if (const auto read = reader.to_bool(field, path, value)) out = *read;
}

void read_bit(Reader& reader, const Field& field, const std::string& path, const JsonValue& value,
              bool& out) {
  if (value.is_bool()) {
    out = value.as_bool();
  } else if (value.is_integer()) {
    out = value.as_integer() != 0;
  } else {
    reader.refuse(field, path, value, "true or false",
                  value.is_string() && !value.is_quoteless() ? "write it without quotes" : "");
  }
}

void read_value(Reader& reader, const Field& field, const std::string& path, const JsonValue& value,
                int& out) {
  if (const auto read = reader.to_integer(field, path, value)) out = static_cast<int>(*read);
}

void read_value(Reader& reader, const Field& field, const std::string& path, const JsonValue& value,
                std::int64_t& out) {
  if (const auto read = reader.to_integer(field, path, value)) out = *read;
}

void read_value(Reader& reader, const Field& field, const std::string& path, const JsonValue& value,
                double& out) {
  if (const auto read = reader.to_number(field, path, value)) out = *read;
}

void read_value(Reader& reader, const Field& field, const std::string& path, const JsonValue& value,
                std::string& out) {
  if (auto read = reader.to_text(field, path, value)) out = std::move(*read);
}

void read_value(Reader& reader, const Field& field, const std::string& path, const JsonValue& value,
                std::vector<std::string>& out) {
  if (auto read = reader.to_texts(field, path, value)) out = std::move(*read);
}

void read_value(Reader& reader, const Field& field, const std::string& path, const JsonValue& value,
                OffloadDevice& out) {
  Field devices = field;
  devices.choices = {"none", "cpu", "nvme"};
  const auto read = reader.to_text(devices, path, value);
  if (!read) return;
  out = *read == "cpu"    ? OffloadDevice::cpu
        : *read == "nvme" ? OffloadDevice::nvme
                          : OffloadDevice::none;
}

void read_value(Reader& reader, const Field& field, const std::string& path, const JsonValue& value,
                DType& out) {
  Field types = field;
  types.any_case = true;
  types.choices = {"bf16", "fp16", "fp32"};
  const auto read = reader.to_text(types, path, value);
  if (read) out = *parse_ds_dtype(*read);
}

void read_value(Reader&, const Field&, const std::string&, const JsonValue& value, JsonValue& out) {
  out = value;
}

JsonValue write_value(const std::vector<std::string>& value) {
  JsonValue list = JsonValue::make_array();
  for (const std::string& item : value) list.push_back(JsonValue(item));
  return list;
}

JsonValue write_value(OffloadDevice value) {
  return JsonValue(value == OffloadDevice::cpu    ? "cpu"
                   : value == OffloadDevice::nvme ? "nvme"
                                                  : "none");
}

JsonValue write_value(DType value) { return JsonValue(std::string(name_of(value))); }

std::string type_name(const bool*) { return "bool"; }
std::string type_name(const int*) { return "int"; }
std::string type_name(const std::int64_t*) { return "int"; }
std::string type_name(const double*) { return "float"; }
std::string type_name(const std::string*) { return "string"; }
std::string type_name(const std::vector<std::string>*) { return "list of strings"; }
std::string type_name(const OffloadDevice*) { return "\"none\", \"cpu\" or \"nvme\""; }
std::string type_name(const DType*) { return "\"fp16\", \"bf16\" or \"fp32\""; }
std::string type_name(const JsonValue*) { return "any"; }

}  // namespace zero3d::config
