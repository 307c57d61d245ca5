// How a section of ds_config is described: one table a section with a line for each key. Parsing,
// the resolved output, the documentation and the suggestions for misspelt keys all come from it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "zero3d/ds_config/reader.h"

namespace zero3d::config {

/// One key. The flags say how DeepSpeed treats odd values of it.
struct Field {
  std::string name;    ///< As the resolved configuration spells it.
  std::string alias;   ///< Another accepted spelling, "" when there is none.
  std::string type;    ///< "int >= 0", "bool", ...: for messages and the documentation.
  std::string effect;  ///< What the key does, a sentence or two.
  Range range;
  std::vector<std::string> choices;
  bool any_case = false;       ///< Choices match in any case.
  bool nullable = false;       ///< null is a value, or stands for the default.
  bool checked = false;        ///< An odd value is an error although the section is lenient.
  bool auto_default = false;   ///< "auto" stands for the default (always so in a strict section).
  bool auto_is_value = false;  ///< "auto" is a value of its own.
  bool plain_integer = false;  ///< No booleans, and no "1000.0" in a string.
  bool lenient_kind = false;   ///< A section that DeepSpeed does not look into while reading.
  bool legacy = false;         ///< Deprecated: reported as it was, never written to a new file.
  bool only_here = false;      ///< DeepSpeed refuses the key: not written while it is the default.
  bool hidden = false;         ///< Not part of the resolved configuration nor of the documentation.
  const Section* nested = nullptr;

  std::function<void(Reader&, const Field&, const std::string& path, const JsonValue&, void*)> read;
  std::function<JsonValue(const void*)> write;

  Field& also(std::string_view spelling) { return alias = spelling, *this; }
  Field& at_least(double low) { return range.low = low, *this; }
  Field& above(double low) { return range.low = low, range.open_low = true, *this; }
  Field& between(double low, double high) { return range.low = low, range.high = high, *this; }
  Field& inside(double low, double high) {
    return between(low, high), range.open_low = range.open_high = true, *this;
  }
  Field& one_of(std::vector<std::string> names) { return choices = std::move(names), *this; }
  Field& any_case_of(std::vector<std::string> names) {
    return any_case = true, one_of(std::move(names));
  }
  Field& or_null() { return nullable = true, *this; }
  Field& check() { return checked = true, *this; }
  Field& auto_means_default() { return auto_default = true, *this; }
  Field& not_null() { return nullable = false, *this; }
  Field& or_auto() { return auto_is_value = true, *this; }
  Field& plain() { return plain_integer = true, *this; }
  Field& unread() { return lenient_kind = true, *this; }
  Field& own() { return only_here = true, *this; }
  Field& deprecate() { return legacy = true, *this; }
  Field& hide() { return hidden = true, *this; }
};

struct Section {
  std::string name;     ///< The path in the file, "" for the root.
  bool strict = false;  ///< Unknown keys and odd values are errors.
  std::vector<Field> fields;
  std::shared_ptr<const void> defaults;  ///< A default-constructed struct.

  const Field* find(std::string_view key) const;
  std::vector<std::string_view> spellings() const;
  JsonValue write(const void* object) const;
};

/// Converters by the member's type; an overload for each type that a section holds.
void read_value(Reader&, const Field&, const std::string& path, const JsonValue&, bool& out);
void read_value(Reader&, const Field&, const std::string& path, const JsonValue&, int& out);
void read_value(Reader&, const Field&, const std::string& path, const JsonValue&,
                std::int64_t& out);
void read_value(Reader&, const Field&, const std::string& path, const JsonValue&, double& out);
void read_value(Reader&, const Field&, const std::string& path, const JsonValue&, std::string& out);
void read_value(Reader&, const Field&, const std::string& path, const JsonValue&,
                std::vector<std::string>& out);
void read_value(Reader&, const Field&, const std::string& path, const JsonValue&,
                OffloadDevice& out);
void read_value(Reader&, const Field&, const std::string& path, const JsonValue&, DType& out);
void read_value(Reader&, const Field&, const std::string& path, const JsonValue&, JsonValue& out);

inline JsonValue write_value(bool value) { return JsonValue(value); }
inline JsonValue write_value(int value) { return JsonValue(value); }
inline JsonValue write_value(std::int64_t value) { return JsonValue(value); }
inline JsonValue write_value(double value) { return JsonValue(value); }
inline JsonValue write_value(const std::string& value) { return JsonValue(value); }
inline JsonValue write_value(const JsonValue& value) { return value; }
JsonValue write_value(const std::vector<std::string>& value);
JsonValue write_value(OffloadDevice value);
JsonValue write_value(DType value);

/// A flag that DeepSpeed combines by a bitwise or: booleans and integers only, no words.
void read_bit(Reader&, const Field&, const std::string& path, const JsonValue&, bool& out);

template <typename T>
struct is_optional : std::false_type {};
template <typename T>
struct is_optional<std::optional<T>> : std::true_type {};

std::string type_name(const bool*);
std::string type_name(const int*);
std::string type_name(const std::int64_t*);
std::string type_name(const double*);
std::string type_name(const std::string*);
std::string type_name(const std::vector<std::string>*);
std::string type_name(const OffloadDevice*);
std::string type_name(const DType*);
std::string type_name(const JsonValue*);
template <typename T>
std::string type_name(const std::optional<T>*) {
  return type_name(static_cast<const T*>(nullptr));
}

/// Builds the description of the struct S.
template <typename S>
class SectionBuilder {
 public:
  SectionBuilder(std::string name, bool strict) {
    section_.name = std::move(name);
    section_.strict = strict;
    section_.defaults = std::make_shared<S>();
    section_.fields.reserve(64);
  }

  template <typename T>
  Field& add(std::string_view name, T S::*member, std::string_view effect) {
    Field& field = append(name, effect);
    field.type = type_name(static_cast<const T*>(nullptr));
    field.nullable = is_optional<T>::value;
    field.read = [member](Reader& reader, const Field& f, const std::string& path,
                          const JsonValue& value, void* object) {
      auto& target = static_cast<S*>(object)->*member;
      if constexpr (is_optional<T>::value) {
        if (value.is_null() && f.nullable) {
          target.reset();
          return;
        }
        typename T::value_type read{};
        const std::size_t before = faults(reader);
        read_value(reader, f, path, value, read);
        if (faults(reader) == before) target = std::move(read);
      } else if (!value.is_null() || !f.nullable || std::is_same_v<T, JsonValue>) {
        read_value(reader, f, path, value, target);
      }
    };
    field.write = [member](const void* object) {
      const auto& source = static_cast<const S*>(object)->*member;
      if constexpr (is_optional<T>::value) {
        return source ? write_value(*source) : JsonValue();
      } else {
        return write_value(source);
      }
    };
    return field;
  }

  /// A nested section, always there or (std::optional) absent by default.
  template <typename T>
  Field& nest(std::string_view name, T S::*member, const Section& section,
              std::string_view effect) {
    Field& field = append(name, effect);
    field.type = "object";
    field.nested = &section;
    field.nullable = is_optional<T>::value;
    field.read = [member, &section](Reader& reader, const Field&, const std::string& path,
                                    const JsonValue& value, void* object) {
      auto& target = static_cast<S*>(object)->*member;
      if constexpr (is_optional<T>::value) {
        if (value.is_null()) {
          target.reset();
          return;
        }
        reader.read_section(section, value, &target.emplace(), path);
      } else if (!value.is_null()) {
        reader.read_section(section, value, &target, path);
      }
    };
    field.write = [member, &section](const void* object) {
      const auto& source = static_cast<const S*>(object)->*member;
      if constexpr (is_optional<T>::value) {
        return source ? section.write(&*source) : JsonValue();
      } else {
        return section.write(&source);
      }
    };
    return field;
  }

  /// A key that needs code of its own.
  Field& custom(
      std::string_view name, std::string_view type, std::string_view effect,
      std::function<void(Reader&, const Field&, const std::string&, const JsonValue&, S&)> read,
      std::function<JsonValue(const S&)> write) {
    Field& field = append(name, effect);
    field.type = type;
    field.read = [read = std::move(read)](Reader& reader, const Field& f, const std::string& path,
                                          const JsonValue& value, void* object) {
      read(reader, f, path, value, *static_cast<S*>(object));
    };
    field.write = [write = std::move(write)](const void* object) {
      return write(*static_cast<const S*>(object));
    };
    return field;
  }

  Section build() {
    for (Field& field : section_.fields) {
      if (section_.strict) field.checked = field.auto_default = true;
    }
    return std::move(section_);
  }

 private:
  static std::size_t faults(Reader& reader) {
    return reader.result().errors.size() + reader.result().train_errors.size();
  }
  Field& append(std::string_view name, std::string_view effect) {
    Field& field = section_.fields.emplace_back();
    field.name = name;
    field.effect = effect;
    return field;
  }

  Section section_;
};

// The description of each section; built once.
const Section& root_section();
const Section& zero_section();
const Section& fp16_section();
const Section& bf16_section();
const Section& torch_autocast_section();
const Section& data_types_section();
const Section& activation_checkpointing_section();
const Section& pipeline_section();
const Section& tensor_parallel_section();
const Section& expert_parallel_section();
const Section& tensorboard_section();
const Section& csv_monitor_section();
const Section& wandb_section();
const Section& comet_section();
const Section& comms_logger_section();
const Section& flops_profiler_section();
const Section& timers_section();
const Section& autotuning_section();
const Section& aio_section();
const Section& checkpoint_section();
const Section& data_efficiency_section();
const Section& hybrid_engine_section();
const Section& compile_section();
const Section& weight_quantization_section();

}  // namespace zero3d::config
