// What a pickle holds, as plain values: nothing of it is ever executed. Instances of classes that
// have no meaning here stay opaque: a name, arguments and a state. Tensors are descriptions of
// where their elements lie. The values of a pickle may be shared and refer to themselves, so
// whoever walks them bounds the walk.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/core/dtype.h"

namespace zero3d {

enum class PickleKind : std::uint8_t {
  absent,  ///< What a look-up gives that finds nothing.
  none,
  boolean,
  integer,
  number,
  text,
  bytes,
  list,    ///< Lists, tuples and sets.
  dict,    ///< OrderedDict too.
  global,  ///< A class or function, by its name.
  object,  ///< An instance of a class, or the result of a call, that has no meaning here.
  storage,
  tensor
};

/// An element type by the names that safetensors has for them: "F32", "BOOL".
struct TorchType {
  std::string_view name;
  std::optional<DType> dtype;  ///< Empty for those that nothing here computes with.
  std::size_t bytes = 0;       ///< Of an element; 1 for storages of bytes.
};
/// "float32", "half", "FloatStorage", "bfloat16" ("torch." and what else comes before the last dot
/// does not count); null when unknown.
const TorchType* find_torch_type(std::string_view name);

struct PickleNode {
  PickleKind kind = PickleKind::none;
  std::int64_t integer = 0;  ///< Booleans too; the index of a tensor or a storage.
  double number = 0;
  std::string text;                  ///< Texts, bytes and the names of globals.
  std::vector<std::uint32_t> items;  ///< Of a list; of a dict and an object key, value, key, ...
  std::uint32_t callee = 0;          ///< Of an object: its class or function.
  std::uint32_t arguments = 0;
  std::uint32_t state = 0;
};

struct PickleStorage {
  std::string key;  ///< Of the record that has its bytes.
  const TorchType* type = nullptr;
  std::int64_t numel = 0;  ///< Of its type.
};

struct PickleTensor {
  std::string key;
  const TorchType* type = nullptr;
  std::uint64_t storage_bytes = 0;
  std::int64_t offset = 0;  ///< Of the first element in the storage, in elements.
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< In elements; not negative.

  std::int64_t numel() const;
  /// Row-major without gaps: elements lie in order from `offset`.
  bool contiguous() const;
  /// It has more elements than its storage: strides of 0 repeat some, so that its size is not
  /// bounded by that of its file.
  bool expanded() const;
};

class PickleTree;

/// Refers to a value of a tree, which outlives it.
class PickleValue {
 public:
  PickleValue() = default;
  PickleValue(const PickleTree& tree, std::uint32_t node) : tree_(&tree), node_(node) {}

  PickleKind kind() const;
  explicit operator bool() const { return kind() != PickleKind::absent; }
  bool is_none() const { return kind() == PickleKind::none; }
  bool is(PickleKind wanted) const { return kind() == wanted; }

  /// Empty for other kinds. An object made of one integer (a member of an enumeration) counts as
  /// that, and so does a boolean.
  std::optional<std::int64_t> integer() const;
  /// An integer too.
  std::optional<double> number() const;
  std::optional<bool> boolean() const;
  /// Of a text; null for other kinds.
  const std::string* text() const;
  const PickleTensor* tensor() const;
  /// "torch.float16" of a global or an object; "" for other kinds.
  std::string_view name() const;

  /// Of lists, and of dicts and objects the entries; 0 for other kinds.
  std::size_t size() const;
  /// The i-th element of a list, value of a dict; absent past the end.
  PickleValue operator[](std::size_t i) const;
  /// The i-th key of a dict.
  PickleValue key(std::size_t i) const;
  /// The value under a text key of a dict or an object's entries, else the attribute of an object;
  /// absent when there is none. The last one counts, as in Python.
  PickleValue find(std::string_view name) const;
  /// The arguments that an object was made of.
  PickleValue arguments() const;

  /// "a dict of 3", "a tensor F32 [2, 3]", "an object of torch.device".
  std::string describe() const;

 private:
  const PickleNode* node() const;

  const PickleTree* tree_ = nullptr;
  std::uint32_t node_ = 0;
};

class PickleTree {
 public:
  PickleValue root() const { return PickleValue(*this, root_); }
  const std::vector<PickleTensor>& tensors() const { return tensors_; }
  const std::vector<PickleStorage>& storages() const { return storages_; }

 private:
  friend class PickleValue;
  friend class PickleMachine;
  friend class PickleConstructors;

  std::vector<PickleNode> nodes_;
  std::vector<PickleStorage> storages_;
  std::vector<PickleTensor> tensors_;
  std::uint32_t root_ = 0;
};

}  // namespace zero3d
