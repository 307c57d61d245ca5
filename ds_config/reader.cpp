#include "zero3d/ds_config/reader.h"

#include <algorithm>
#include <utility>

#include "zero3d/core/printable.h"
#include "zero3d/core/text.h"
#include "zero3d/ds_config/field.h"

namespace zero3d::config {

namespace {

/// A hostile file must not turn into more messages than bytes.
constexpr std::size_t kMaxMessages = 200;

/// Bytes of what a message says of a file: keys and values may have any size.
constexpr std::size_t kShownPath = 300;
constexpr std::size_t kShownMessage = 1500;

void append(std::vector<ConfigMessage>& list, const std::string& path, const std::string& message,
            TextPosition position) {
  if (list.size() < kMaxMessages) {
    list.push_back({printable(path, kShownPath), printable(message, kShownMessage), position});
  } else if (list.size() == kMaxMessages) {
    list.push_back({"", "and more of the same; mend these first", {}});
  }
}

/// Where a key that its section does not have may belong, or what it may stand for.
std::string hint_for(const Section& section, const std::string& key) {
  if (&section != &kRoot && kRoot.find(key) != nullptr)
    return concat("\"", key, "\" belongs at the top level of the file");
  if (std::string near = did_you_mean(key, section.spellings()); !near.empty()) return near;
  if (key == "max_grad_norm" || key == "clip_grad")
    return "did you mean \"gradient_clipping\", at the top level of the file?";
  for (const Field& field : kRoot.fields) {
    if (field.nested != nullptr && field.nested != &section && field.nested->find(key) != nullptr)
      return concat("\"", key, "\" belongs inside \"", field.name, "\"");
  }
  return {};
}

}  // namespace

std::string join_path(const std::string& path, std::string_view name) {
  return concat(path, path.empty() ? "" : ".", name);
}

std::string did_you_mean(std::string_view name, std::span<const std::string_view> candidates) {
  if (name.size() > 80) return {};
  const std::string near = nearest_name(name, candidates);
  return near.empty() ? std::string() : concat("did you mean \"", near, "\"?");
}

std::string after(std::string_view hint) { return concat(hint.empty() ? "" : "; ", hint); }

std::string plain_path(std::string_view text) {
  const bool absolute = !text.empty() && text.front() == '/';
  const bool two = text.substr(0, 2) == "//" && text.substr(0, 3) != "///";  // POSIX: its own root
  std::string path(two ? "//" : absolute ? "/" : "");
  std::string_view between;
  while (!text.empty()) {
    const std::size_t end = text.find('/');
    const std::string_view name = text.substr(0, end);
    if (!name.empty() && name != ".") path += concat(std::exchange(between, "/"), name);
    text = end == std::string_view::npos ? "" : text.substr(end + 1);
  }
  return path.empty() ? "." : path;
}

bool is_falsy(const JsonValue& value) {
  switch (value.kind()) {
    case JsonValue::Kind::string:
      return value.as_string().empty();
    case JsonValue::Kind::array:
      return value.items().empty();
    case JsonValue::Kind::object:
      return value.members().empty();
    default:
      return value.is_null() || value == JsonValue(false) || value == JsonValue(0);
  }
}

void Reader::error(const std::string& path, const std::string& message, TextPosition position) {
  append(result_.errors, path, message, position);
}

void Reader::warning(const std::string& path, const std::string& message, TextPosition position) {
  append(result_.warnings, path, message, position);
}

void Reader::train_error(const std::string& path, const std::string& message,
                         TextPosition position) {
  append(result_.train_errors, path, message, position);
}

void Reader::record(const std::string& path, const std::string& file_path, TextPosition position) {
  const auto origin = origins_.find(file_path);
  if (origin != origins_.end()) {
    result_.provenance[path] = origin->second;
    return;
  }
  std::string note = concat("line ", position.line);
  if (file_path != path) note += concat(", as ", file_path);
  result_.provenance[path] = {ValueSource::file, std::move(note)};
}

void Reader::record(const std::string& path, ValueSource source, std::string note) {
  result_.provenance[path] = {source, std::move(note)};
}

void Reader::mark_origin(const std::string& file_path, ValueSource source, std::string note) {
  origins_[file_path] = {source, std::move(note)};
}

void Reader::read_section(const Section& section, const JsonValue& value, JsonValue& out,
                          const std::string& path) {
  if (!value.is_object()) {
    error(path,
          concat("expected an object { ... }, found ", value.excerpt(),
                 value.is_null() ? "; remove the key for the defaults" : ""),
          value.position());
    return;
  }
  std::vector<const Field*> seen;
  for (const JsonMember& member : value.members()) {
    const Field* field = section.find(member.name);
    if (field == nullptr) {
      unknown_key(section, member, path);
      continue;
    }
    if (std::find(seen.begin(), seen.end(), field) != seen.end()) {
      error(join_path(path, member.name),
            concat("\"", field->name, "\" and \"", field->alias,
                   "\" are two spellings of one key; keep one of them"),
            member.name_position);
      continue;
    }
    seen.push_back(field);
    read_field(*field, member, out, path);
  }
}

void Reader::read_field(const Field& field, const JsonMember& member, JsonValue& out,
                        const std::string& path) {
  const std::string file_path = join_path(path, member.name);
  const std::string canonical = join_path(path, field.name);
  const JsonValue& value = member.value;
  const bool section_kind = field.nested != nullptr;
  if (value.is_auto() && !field.auto_is_value &&
      (field.auto_default || (!field.checked && !section_kind))) {
    if (!field.auto_default)
      warning(file_path, "nothing fills this \"auto\"; its default is taken", value.position());
    record(canonical, ValueSource::auto_value, "\"auto\" is the default here");
    return;
  }
  if (value.is_null() && !field.nullable && !field.checked && !section_kind) {
    warning(file_path, "null has no meaning here; the default is taken", value.position());
    return;
  }
  const bool defaults = value.is_null() && field.nullable;
  if (section_kind && field.lenient_kind && !value.is_object() && !defaults) {
    train_error(file_path, concat("expected an object { ... }, found ", value.excerpt()),
                value.position());
    return;
  }
  JsonValue unseen;
  read_value({field, file_path, value}, field.hidden ? unseen : *out.find(field.name));
  if (!section_kind) record(canonical, file_path, value.position());
}

void Reader::read_value(const Stated& stated, JsonValue& out) {
  const Field& field = stated.field;
  if (field.read != nullptr) {
    field.read(*this, stated, out);
  } else if (stated.value.is_null() && field.nullable) {
    return;
  } else if (field.nested != nullptr) {
    if (out.is_null()) out = field.nested->defaults();
    read_section(*field.nested, stated.value, out, stated.path);
  } else {
    const std::size_t before = result_.train_errors.size();
    Converted read = convert(stated);
    const bool fits = result_.train_errors.size() == before;
    if (read && (fits || !field.nullable)) out = *std::move(read);
  }
}

Reader::Converted Reader::convert(const Stated& stated) {
  if (stated.value.is_auto() && stated.field.default_is_auto()) return stated.value;
  switch (stated.field.kind) {
    case Kind::flag:
    case Kind::bit:
      return to_bool(stated);
    case Kind::integer:
      return to_integer(stated);
    case Kind::number:
      return to_number(stated);
    case Kind::text:
      return to_text(stated);
    case Kind::texts:
      return to_texts(stated);
    case Kind::object:
      if (stated.value.is_object()) return stated.value;
      return refuse(stated, "an object { ... }");
    case Kind::any:
    case Kind::section:
      return stated.value;
  }
  return std::nullopt;
}

void Reader::unknown_key(const Section& section, const JsonMember& member,
                         const std::string& path) {
  // Suggestions cost time; what will not be listed needs none.
  if (result_.warnings.size() > kMaxMessages || result_.errors.size() > kMaxMessages) return;
  const bool at_root = &section == &kRoot;
  const bool dropped = section.strict && member.value.is_auto();  // by DeepSpeed, unseen
  const bool is_error = !dropped && (section.strict || (at_root && strict_top_level));
  std::string hint = hint_for(section, member.name);
  if ((is_error || section.only_here) && !at_root && hint.empty()) hint = "remove it";
  const std::string message =
      concat("there is no such key", at_root || dropped ? "" : concat(" in \"", path, "\""),
             dropped                           ? "; it is ignored because its value is \"auto\""
             : at_root                         ? "; DeepSpeed ignores it in silence"
             : !is_error && !section.only_here ? "; it is ignored"
                                               : "",
             after(hint));
  const auto report = is_error            ? &Reader::error
                      : section.only_here ? &Reader::train_error
                                          : &Reader::warning;
  (this->*report)(join_path(path, member.name), message, member.name_position);
}

}  // namespace zero3d::config
