// How a section of ds_config is described: one table a section, one row a key. Parsing, the
// resolved output, what zero3d makes of a key, the documentation and the suggestions for misspelt
// keys all come from these rows.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "zero3d/ds_config/config.h"

namespace zero3d::config {

class Reader;
struct Section;
struct Stated;

/// Numbers a field takes; the bounds belong to it unless said to be open.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool open_low = false;
  bool open_high = false;
  bool contains(double value) const;
  /// "> 0", ">= 0", "0 <= value <= 1", "" when anything goes.
  std::string text() const;
};

/// `bit`: a flag that DeepSpeed combines by a bitwise or: booleans and integers only, no words.
enum class Kind { flag, bit, integer, number, text, texts, object, any, section };

/// What zero3d makes of a key.
enum class Support {
  implemented,
  no_effect,       ///< Nothing to do here; often without effect in DeepSpeed as well.
  not_yet,         ///< The result of training is the same without it.
  changes_result,  ///< The result would differ: train refuses it unless told otherwise.
  refused          ///< The run cannot start with it.
};
/// Whether a configuration asks for the key. Without one: at the stages that heed it, its flag or
/// the section's `enabled` is true, or the optional section is there.
using Condition = bool (*)(const Config&);

using Default = std::variant<std::monostate, bool, std::int64_t, double, std::string_view>;

/// One key. The flags say how DeepSpeed treats odd values of it.
struct Field {
  std::string_view name;  ///< As the resolved configuration spells it.
  Kind kind = Kind::any;
  Default fallback;         ///< Lists: names separated by "|". Without one: null.
  std::string_view effect;  ///< What the key does, a sentence or two.
  const Section* nested = nullptr;

  std::string_view alias;    ///< Another accepted spelling.
  std::string_view type;     ///< For the documentation, where `kind` does not tell all.
  std::string_view choices;  ///< Separated by "|".
  Range range;
  int first_stage = 0;  ///< Of ZeRO: without effect at others.
  int last_stage = 3;
  Support support = Support::implemented;
  std::string_view would;  ///< What it would have done; of what is implemented: when it does.
  Condition active = nullptr;

  bool any_case = false;       ///< Choices match in any case.
  bool nullable = false;       ///< null is a value, or stands for the default.
  bool checked = false;        ///< An odd value is an error although the section is lenient.
  bool auto_default = false;   ///< "auto" stands for the default (always so in a strict section).
  bool auto_is_value = false;  ///< "auto" is not the default but for the field to judge.
  bool plain_number = false;   ///< No booleans, and no "1000.0" in a string.
  bool no_text = false;        ///< No value in quotes.
  bool lenient_kind = false;   ///< A section that DeepSpeed does not look into while reading.
  bool absent = false;         ///< A section that is null unless it is there.
  bool legacy = false;         ///< Deprecated: reported as it was, never written to a new file.
  bool only_here = false;      ///< Not a key of DeepSpeed's: not written while it is the default.
  bool in_part = false;  ///< Not yet, and yet not without effect: `effect` says what is missing.
  bool works = false;    ///< Implemented although its section is not.
  bool hidden = false;   ///< Not part of the resolved configuration nor of the documentation.

  /// Reads a value that needs code of its own; `out` holds the default.
  void (*read)(Reader&, const Stated&, JsonValue& out) = nullptr;

  /// Of a number: what "auto" becomes is decided elsewhere.
  constexpr bool default_is_auto() const {
    return (kind == Kind::integer || kind == Kind::number) &&
           std::holds_alternative<std::string_view>(fallback);
  }
  constexpr bool heeded_at(int stage) const { return stage >= first_stage && stage <= last_stage; }

  constexpr Field& also(std::string_view spelling) { return alias = spelling, *this; }
  constexpr Field& typed(std::string_view text) { return type = text, *this; }
  constexpr Field& at_least(double low) { return range.low = low, *this; }
  constexpr Field& above(double low) { return range.open_low = true, at_least(low); }
  constexpr Field& between(double low, double high) { return range.high = high, at_least(low); }
  constexpr Field& inside(double low, double high) {
    return range.open_low = range.open_high = true, between(low, high);
  }
  constexpr Field& one_of(std::string_view names) { return choices = names, *this; }
  constexpr Field& any_case_of(std::string_view names) { return any_case = true, one_of(names); }
  constexpr Field& stages(int first, int last) {
    return first_stage = first, last_stage = last, *this;
  }
  constexpr Field& or_null() { return nullable = true, *this; }
  constexpr Field& not_null() { return nullable = false, *this; }
  constexpr Field& check() { return checked = true, *this; }
  constexpr Field& auto_means_default() { return auto_default = true, *this; }
  constexpr Field& or_auto() { return auto_is_value = true, *this; }
  constexpr Field& plain() { return plain_number = true, *this; }
  constexpr Field& unquoted() { return no_text = true, *this; }
  constexpr Field& unread() { return lenient_kind = true, *this; }
  constexpr Field& optional() { return absent = nullable = true, *this; }
  constexpr Field& own() { return only_here = true, *this; }
  constexpr Field& deprecate() { return legacy = true, *this; }
  constexpr Field& hide() { return hidden = true, *this; }
  constexpr Field& by(decltype(read) function) { return read = function, *this; }

  constexpr Field& is(Support what, std::string_view would_do, Condition asked) {
    return support = what, would = would_do, active = asked, *this;
  }
  /// Implemented, and without effect unless `asked`: "only with ...".
  constexpr Field& only(std::string_view when, Condition asked) {
    return is(Support::implemented, when, asked);
  }
  constexpr Field& none() { return is(Support::no_effect, "", nullptr); }
  constexpr Field& not_yet(std::string_view what, Condition asked = nullptr) {
    return is(Support::not_yet, what, asked);
  }
  constexpr Field& partly(std::string_view what, Condition asked = nullptr) {
    return in_part = true, not_yet(what, asked);
  }
  constexpr Field& always() { return works = true, *this; }
  constexpr Field& differs(std::string_view what, Condition asked = nullptr) {
    return is(Support::changes_result, what, asked);
  }
  constexpr Field& refuse(std::string_view what, Condition asked) {
    return is(Support::refused, what, asked);
  }
};

struct Section {
  std::span<const Field> fields;
  bool strict = false;     ///< Unknown keys are errors; its rows are made by strictly().
  bool only_here = false;  ///< DeepSpeed ignores the section: its faults stop runs of zero3d alone.

  const Field* find(std::string_view key) const;
  std::vector<std::string_view> spellings() const;
  /// The section as the resolved configuration holds it when nothing is stated.
  JsonValue defaults() const;
};
JsonValue default_value(const Field& field);

std::vector<std::string_view> split_names(std::string_view names);

/// Never asked for: of keys that a rule of their own reports.
inline bool never(const Config&) { return false; }

// The rows. A default of nullopt is null, which is then a value too.
template <typename T>
constexpr Field row(std::string_view name, Kind kind, std::optional<T> fallback,
                    std::string_view effect) {
  Field field{.name = name, .kind = kind, .effect = effect};
  if (fallback) field.fallback = *fallback;
  field.nullable = !fallback;
  return field;
}
constexpr Field flag(std::string_view name, std::optional<bool> fallback, std::string_view effect) {
  return row(name, Kind::flag, fallback, effect);
}
constexpr Field bit(std::string_view name, bool fallback, std::string_view effect) {
  return row<bool>(name, Kind::bit, fallback, effect);
}
constexpr Field integer(std::string_view name, std::optional<std::int64_t> fallback,
                        std::string_view effect) {
  return row(name, Kind::integer, fallback, effect);
}
constexpr Field number(std::string_view name, std::optional<double> fallback,
                       std::string_view effect) {
  return row(name, Kind::number, fallback, effect);
}
constexpr Field text(std::string_view name, std::optional<std::string_view> fallback,
                     std::string_view effect) {
  return row(name, Kind::text, fallback, effect);
}
constexpr Field texts(std::string_view name, std::optional<std::string_view> fallback,
                      std::string_view effect) {
  return row(name, Kind::texts, fallback, effect);
}
constexpr Field any(std::string_view name, std::string_view effect) {
  return row<bool>(name, Kind::any, std::nullopt, effect);
}
constexpr Field object(std::string_view name, std::string_view effect) {
  return Field{.name = name, .kind = Kind::object, .effect = effect};
}
constexpr Field nested(std::string_view name, const Section& section, std::string_view effect) {
  return Field{.name = name, .kind = Kind::section, .effect = effect, .nested = &section};
}
/// An integer or a number whose default is "auto".
constexpr Field or_auto(Field field) {
  field.fallback = std::string_view("auto");
  field.nullable = false;
  return field.or_auto();
}

/// The rows of a section in which every odd value is an error.
template <std::size_t N>
constexpr std::array<Field, N> strictly(std::array<Field, N> fields) {
  for (Field& field : fields) field.checked = field.auto_default = true;
  return fields;
}

// The sections that other files of this folder name.
extern const Section kRoot;
extern const Section kZero;
extern const Section kOffloadParam;
extern const Section kOffloadOptimizer;
extern const Section kOwn;
extern const Section kFp16;
extern const Section kBf16;
extern const Section kTorchAutocast;
extern const Section kDataTypes;
extern const Section kActivationCheckpointing;
extern const Section kPipeline;
extern const Section kTensorParallel;
extern const Section kExpertParallel;
extern const Section kTensorboard;
extern const Section kCsvMonitor;
extern const Section kWandb;
extern const Section kComet;
extern const Section kCommsLogger;
extern const Section kFlopsProfiler;
extern const Section kTimers;
extern const Section kAutotuning;
extern const Section kAio;
extern const Section kCheckpoint;
extern const Section kDataEfficiency;
extern const Section kHybridEngine;
extern const Section kCompile;
extern const Section kWeightQuantization;

}  // namespace zero3d::config
