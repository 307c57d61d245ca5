#include "zero3d/formats/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/json_events.h"
#include "zero3d/formats/problem_list.h"

namespace zero3d {
namespace {

struct DTypeInfo {
  std::string_view name;
  unsigned bits;
  std::optional<DType> dtype;
};
constexpr std::array<DTypeInfo, 20> kDTypes = {{{"F32", 32, DType::f32}, {"BF16", 16, DType::bf16},
                                                {"F16", 16, DType::f16}, {"F64", 64, DType::f64},
                                                {"I32", 32, DType::i32}, {"I64", 64, DType::i64},
                                                {"U16", 16, DType::u16}, {"U8", 8, DType::u8},
                                                {"BOOL", 8, DType::u8},  {"I8", 8, {}},
                                                {"I16", 16, {}},         {"U32", 32, {}},
                                                {"U64", 64, {}},         {"F8_E4M3", 8, {}},
                                                {"F8_E5M2", 8, {}},      {"F8_E8M0", 8, {}},
                                                {"F6_E2M3", 6, {}},      {"F6_E3M2", 6, {}},
                                                {"F4", 4, {}},           {"C64", 64, {}}}};

const DTypeInfo* find_dtype(std::string_view name) {
  const auto found = std::find_if(kDTypes.begin(), kDTypes.end(),
                                  [&](const DTypeInfo& info) { return info.name == name; });
  return found == kDTypes.end() ? nullptr : &*found;
}

class HeaderReader final : public JsonEvents {
 public:
  explicit HeaderReader(ProblemList& problems) : problems_(problems) {}

  bool start_object(std::size_t) override {
    if (depth_ == 2 || field_ != Field::kNone) return refuse("an object");
    if (++depth_ == 2) field_ = Field::kNone;
    return true;
  }
  bool end_object() override {
    if (depth_-- == 2 && !in_metadata_) finish_entry();
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1) return start_entry(name);
    if (in_metadata_) {
      metadata_key_ = name;
      field_ = Field::kMetadata;
      return true;
    }
    field_ = name == "dtype"          ? Field::kDType
             : name == "shape"        ? Field::kShape
             : name == "data_offsets" ? Field::kOffsets
                                      : Field::kNone;
    if (field_ == Field::kNone) return fail(concat("has key ", printable(name), " at ", where()));
    const unsigned bit = 1u << static_cast<unsigned>(field_);
    if ((seen_ & bit) != 0) return fail(concat("has ", name, " twice at ", where()));
    seen_ |= bit;
    return true;
  }
  /// Some writers say so that there is no metadata.
  bool null() override { return (depth_ == 1 && in_metadata_) || refuse("null"); }
  bool string(string_t& value) override {
    if (field_ == Field::kDType) {
      entry_.dtype_name = value;
    } else if (field_ == Field::kMetadata) {
      if (!metadata.emplace(metadata_key_, value).second) {
        problems_.add(concat("metadata ", printable(metadata_key_), " is given twice"));
      }
    } else {
      return refuse("a string");
    }
    field_ = Field::kNone;
    return true;
  }
  bool start_array(std::size_t) override {
    if (in_array_ || (field_ != Field::kShape && field_ != Field::kOffsets)) {
      return refuse("an array");
    }
    return in_array_ = true;
  }
  bool end_array() override {
    in_array_ = false;
    field_ = Field::kNone;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_ || value > std::numeric_limits<std::int64_t>::max()) {
      return refuse("a number");
    }
    if (field_ == Field::kShape) {
      entry_.shape.push_back(static_cast<std::int64_t>(value));
    } else {
      if (offsets_ == 2) return fail(concat("has more than two data_offsets at ", where()));
      (offsets_++ == 0 ? entry_.begin : entry_.end) = value;
    }
    return true;
  }

  std::vector<SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;

 protected:
  std::string where() const override {
    if (depth_ == 0) return "the top level";
    return in_metadata_ ? "__metadata__" : concat("tensor ", printable(entry_.name));
  }

 private:
  enum class Field { kNone, kDType, kShape, kOffsets, kMetadata };

  bool start_entry(const std::string& name) {
    in_metadata_ = name == "__metadata__";
    if (in_metadata_ && std::exchange(seen_metadata_, true)) {
      return fail("has __metadata__ twice");
    }
    entry_ = {};
    entry_.name = name;
    seen_ = 0;
    offsets_ = 0;
    return true;
  }
  void finish_entry() {
    const std::string name = printable(entry_.name);
    constexpr unsigned kAll = 1u << static_cast<unsigned>(Field::kDType) |
                              1u << static_cast<unsigned>(Field::kShape) |
                              1u << static_cast<unsigned>(Field::kOffsets);
    if (seen_ != kAll || offsets_ != 2) {
      problems_.add(concat("tensor ", name,
                           ": expected dtype, shape and two data_offsets, some are missing"));
      return;
    }
    tensors.push_back(std::move(entry_));
  }

  ProblemList& problems_;
  SafetensorsEntry entry_;
  std::string metadata_key_;
  Field field_ = Field::kNone;
  int depth_ = 0;
  unsigned seen_ = 0;
  int offsets_ = 0;
  bool in_array_ = false;
  bool in_metadata_ = false;
  bool seen_metadata_ = false;
};

/// Bytes that dtype and shape ask for; empty on overflow or when elements do not fill whole bytes.
std::optional<std::uint64_t> expected_bytes(const SafetensorsEntry& entry, unsigned bits) {
  std::int64_t count = 1;
  for (const std::int64_t extent : entry.shape) {
    if (__builtin_mul_overflow(count, extent, &count)) return {};
  }
  std::int64_t total = 0;
  if (__builtin_mul_overflow(count, static_cast<std::int64_t>(bits), &total)) return {};
  if (total % 8 != 0) return {};
  return static_cast<std::uint64_t>(total / 8);
}

/// Dtype, shape and byte range of one tensor; ranges still count from the start of the data.
void check_entry(SafetensorsEntry& entry, std::uint64_t data_bytes, ProblemList& problems) {
  const std::string name = printable(entry.name);
  if (entry.begin > entry.end || entry.end > data_bytes) {
    problems.add(concat("tensor ", name, ": bytes [", entry.begin, ", ", entry.end,
                        ") lie outside the ", data_bytes,
                        " bytes of data; is the file truncated?"));
  }
  const DTypeInfo* info = find_dtype(entry.dtype_name);
  if (info == nullptr) {
    problems.add(concat("tensor ", name, ": unknown dtype ", printable(entry.dtype_name)));
    return;
  }
  entry.dtype = info->dtype;
  const auto bytes = expected_bytes(entry, info->bits);
  if (!bytes || entry.begin > entry.end || *bytes != entry.end - entry.begin) {
    problems.add(concat("tensor ", name, ": ", entry.dtype_name, " of shape ",
                        printable(to_string(entry.shape)), " needs ",
                        bytes ? std::to_string(*bytes) : std::string("an impossible number of"),
                        " bytes, data_offsets give [", entry.begin, ", ", entry.end, ")"));
  }
}

/// The format wants every byte of data in exactly one tensor.
void check_layout(const std::vector<SafetensorsEntry>& tensors, std::uint64_t data_bytes,
                  ProblemList& problems) {
  std::uint64_t end = 0;
  for (const SafetensorsEntry& entry : tensors) {
    if (entry.begin != end) {
      problems.add(concat("tensor ", printable(entry.name), " starts at byte ", entry.begin,
                          entry.begin < end ? ", inside the tensor before it that ends at "
                                            : ", after a hole that begins at ",
                          end));
    }
    end = std::max(end, entry.end);
  }
  if (end < data_bytes) {
    problems.add(concat("the tensors end at byte ", end, " of ", data_bytes, " bytes of data"));
  }
}

void check_names(const std::vector<SafetensorsEntry>& tensors, ProblemList& problems) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const SafetensorsEntry& entry : tensors) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  for (auto it = names.begin(); (it = std::adjacent_find(it, names.end())) != names.end(); ++it) {
    problems.add(concat("tensor ", printable(*it), " is listed twice"));
  }
}

}  // namespace

std::string_view safetensors_name(DType dtype) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.dtype == dtype) return info.name;
  }
  throw_invalid(concat("safetensors has no dtype for ", name_of(dtype)));
}

SafetensorsHeader parse_safetensors_header(const std::string& path, std::string_view text,
                                           std::uint64_t data_offset, std::uint64_t data_bytes) {
  ProblemList problems;
  HeaderReader reader(problems);
  if (text.empty() || text[0] != '{' || !nlohmann::json::sax_parse(text, &reader)) {
    throw IoError(path, 0,
                  concat("damaged safetensors file: its header ",
                         reader.failure().empty() ? "is no JSON object" : reader.failure(),
                         "; get the file anew, or save it again"));
  }
  for (SafetensorsEntry& entry : reader.tensors) check_entry(entry, data_bytes, problems);
  std::sort(reader.tensors.begin(), reader.tensors.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  check_names(reader.tensors, problems);
  // Where a range is wrong by itself, the layout only repeats it.
  if (problems.empty()) check_layout(reader.tensors, data_bytes, problems);
  problems.throw_if_any(path, "damaged safetensors file (get it anew, or save it again)");
  for (SafetensorsEntry& entry : reader.tensors) {
    entry.begin += data_offset;
    entry.end += data_offset;
  }
  return {std::move(reader.tensors), std::move(reader.metadata)};
}

}  // namespace zero3d
