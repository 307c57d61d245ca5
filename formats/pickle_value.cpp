#include "zero3d/formats/pickle_value.h"

#include <array>
#include <utility>

#include "zero3d/core/text.h"
#include "zero3d/formats/problem_list.h"
#include "zero3d/formats/safetensors.h"

namespace zero3d {
namespace {

struct Alias {
  std::string_view storage;
  std::string_view dtype;
  std::string_view other;
  TorchType type;
};

/// c10/core/ScalarType.h, by the names that pickles have for them.
constexpr std::array<Alias, 22> kTypes = {{
    {"FloatStorage", "float32", "float", {"F32", DType::f32, 4}},
    {"DoubleStorage", "float64", "double", {"F64", DType::f64, 8}},
    {"HalfStorage", "float16", "half", {"F16", DType::f16, 2}},
    {"BFloat16Storage", "bfloat16", "bfloat16", {"BF16", DType::bf16, 2}},
    {"LongStorage", "int64", "long", {"I64", DType::i64, 8}},
    {"IntStorage", "int32", "int", {"I32", DType::i32, 4}},
    {"ShortStorage", "int16", "short", {"I16", std::nullopt, 2}},
    {"CharStorage", "int8", "int8", {"I8", std::nullopt, 1}},
    {"ByteStorage", "uint8", "uint8", {"U8", DType::u8, 1}},
    {"BoolStorage", "bool", "bool", {"BOOL", DType::u8, 1}},
    {"", "uint16", "uint16", {"U16", DType::u16, 2}},
    {"", "uint32", "uint32", {"U32", std::nullopt, 4}},
    {"", "uint64", "uint64", {"U64", std::nullopt, 8}},
    {"ComplexFloatStorage", "complex64", "cfloat", {"C64", std::nullopt, 8}},
    {"ComplexDoubleStorage", "complex128", "cdouble", {"C128", std::nullopt, 16}},
    {"", "complex32", "chalf", {"C32", std::nullopt, 4}},
    {"", "float8_e4m3fn", "float8_e4m3fn", {"F8_E4M3", std::nullopt, 1}},
    {"", "float8_e5m2", "float8_e5m2", {"F8_E5M2", std::nullopt, 1}},
    {"", "float8_e4m3fnuz", "float8_e4m3fnuz", {"F8_E4M3FNUZ", std::nullopt, 1}},
    {"", "float8_e5m2fnuz", "float8_e5m2fnuz", {"F8_E5M2FNUZ", std::nullopt, 1}},
    {"", "float8_e8m0fnu", "float8_e8m0fnu", {"F8_E8M0", std::nullopt, 1}},
    {"UntypedStorage", "UntypedStorage", "UntypedStorage", {"BYTES", std::nullopt, 1}},
}};

}  // namespace

const TorchType* find_torch_type(std::string_view name) {
  if (const auto dot = name.rfind('.'); dot != std::string_view::npos) name.remove_prefix(dot + 1);
  if (name.empty()) return nullptr;
  for (const Alias& alias : kTypes)
    if (name == alias.storage || name == alias.dtype || name == alias.other) return &alias.type;
  return nullptr;
}

std::int64_t PickleTensor::numel() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

bool PickleTensor::contiguous() const {
  std::int64_t expected = 1;
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    if (shape[dim] == 0) return true;
    if (shape[dim] != 1 && strides[dim] != expected) return false;
    expected *= shape[dim];
  }
  return true;
}

bool PickleTensor::expanded() const {
  return static_cast<std::uint64_t>(numel()) > storage_bytes / type->bytes;
}

const PickleNode* PickleValue::node() const {
  return tree_ == nullptr ? nullptr : &tree_->nodes_[node_];
}

PickleKind PickleValue::kind() const {
  return tree_ == nullptr ? PickleKind::absent : node()->kind;
}

std::optional<std::int64_t> PickleValue::integer() const {
  switch (kind()) {
    case PickleKind::boolean:
    case PickleKind::integer:
      return node()->integer;
    case PickleKind::object: {
      const PickleValue made_of = arguments();
      if (made_of.size() == 1 && made_of[0].is(PickleKind::integer)) return made_of[0].integer();
      return std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> PickleValue::number() const {
  if (is(PickleKind::number)) return node()->number;
  if (const auto whole = integer()) return static_cast<double>(*whole);
  return std::nullopt;
}

std::optional<bool> PickleValue::boolean() const {
  if (is(PickleKind::boolean)) return node()->integer != 0;
  return std::nullopt;
}

const std::string* PickleValue::text() const {
  return is(PickleKind::text) ? &node()->text : nullptr;
}

const PickleTensor* PickleValue::tensor() const {
  if (!is(PickleKind::tensor)) return nullptr;
  return &tree_->tensors_[static_cast<std::size_t>(node()->integer)];
}

std::string_view PickleValue::name() const {
  if (is(PickleKind::global)) return node()->text;
  if (!is(PickleKind::object)) return {};
  const PickleNode& callee = tree_->nodes_[node()->callee];
  return callee.kind == PickleKind::global ? std::string_view(callee.text) : std::string_view();
}

std::size_t PickleValue::size() const {
  if (is(PickleKind::list)) return node()->items.size();
  if (is(PickleKind::dict) || is(PickleKind::object)) return node()->items.size() / 2;
  return 0;
}

PickleValue PickleValue::operator[](std::size_t i) const {
  if (i >= size()) return {};
  return PickleValue(*tree_, node()->items[is(PickleKind::list) ? i : 2 * i + 1]);
}

PickleValue PickleValue::key(std::size_t i) const {
  if (i >= size() || is(PickleKind::list)) return {};
  return PickleValue(*tree_, node()->items[2 * i]);
}

PickleValue PickleValue::find(std::string_view wanted) const {
  if (!is(PickleKind::dict) && !is(PickleKind::object)) return {};
  for (std::size_t i = size(); i-- > 0;) {
    const std::string* name = key(i).text();
    if (name != nullptr && *name == wanted) return (*this)[i];
  }
  if (!is(PickleKind::object)) return {};
  const PickleValue state(*tree_, node()->state);
  return state.is(PickleKind::dict) ? state.find(wanted) : PickleValue();
}

PickleValue PickleValue::arguments() const {
  return is(PickleKind::object) ? PickleValue(*tree_, node()->arguments) : PickleValue();
}

std::string PickleValue::describe() const {
  switch (kind()) {
    case PickleKind::absent:
      return "nothing";
    case PickleKind::none:
      return "None";
    case PickleKind::boolean:
      return node()->integer != 0 ? "True" : "False";
    case PickleKind::integer:
      return concat(node()->integer);
    case PickleKind::number:
      return concat(node()->number);
    case PickleKind::text:
      return printable(node()->text);
    case PickleKind::bytes:
      return concat(node()->text.size(), " bytes");
    case PickleKind::list:
      return concat("a list of ", size());
    case PickleKind::dict:
      return concat("a dict of ", size());
    case PickleKind::global:
      return printable(name());
    case PickleKind::object:
      return concat("an object of ", printable(name()));
    case PickleKind::storage:
      return "a storage";
    case PickleKind::tensor:
      return concat("a tensor ", tensor()->type->name, ' ', to_string(tensor()->shape));
  }
  return {};
}

}  // namespace zero3d
