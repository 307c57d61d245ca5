#include "zero3d/formats/pickle_constructors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "zero3d/core/text.h"

namespace zero3d {
namespace {

constexpr std::size_t kMaxRank = 64;

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  for (const std::string_view other : names)
    if (name == other) return true;
  return false;
}

/// One past the last element that the tensor reaches in its storage; empty when that is beyond
/// what 64 bits count.
std::optional<std::int64_t> reach(const PickleTensor& tensor) {
  std::int64_t count = 1, last = tensor.offset;
  bool empty = false;
  for (std::size_t dim = 0; dim < tensor.shape.size(); ++dim) {
    const std::int64_t extent = tensor.shape[dim];
    std::int64_t step = 0;
    empty = empty || extent == 0;
    if (__builtin_mul_overflow(count, std::max<std::int64_t>(extent, 1), &count) ||
        __builtin_mul_overflow(std::max<std::int64_t>(extent - 1, 0), tensor.strides[dim], &step) ||
        __builtin_add_overflow(last, step, &last))
      return std::nullopt;
  }
  if (count > (std::int64_t{1} << 59)) return std::nullopt;
  if (empty) return 0;
  return last == std::numeric_limits<std::int64_t>::max() ? std::nullopt : std::optional(last + 1);
}

}  // namespace

PickleConstructors::Ref PickleConstructors::opaque(Ref callee, Ref arguments) {
  PickleNode node;
  node.kind = PickleKind::object;
  node.callee = callee;
  node.arguments = arguments;
  return machine_.add(std::move(node));
}

PickleConstructors::Ref PickleConstructors::call(Ref callee, Ref arguments) {
  // A subclass of Tensor: (function, class, arguments, attributes).
  for (int wrapped = 0; wrapped < 4; ++wrapped) {
    const PickleValue outer = value(arguments);
    if (value(callee).name() != "torch._tensor._rebuild_from_type_v2" || outer.size() != 4) break;
    callee = machine_.node(arguments).items[0];
    arguments = machine_.node(arguments).items[2];
  }
  const std::string_view name =
      value(callee).kind() == PickleKind::global ? value(callee).name() : std::string_view();
  const PickleValue given = value(arguments);
  if (!given.is(PickleKind::list) || name.empty()) return opaque(callee, arguments);
  const auto argument = [&](std::size_t i) { return machine_.node(arguments).items[i]; };
  if (is_one_of(name, {"torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3",
                       "torch._utils._rebuild_tensor"}))
    return tensor(callee, arguments);
  if (is_one_of(name, {"torch._utils._rebuild_parameter",
                       "torch._utils._rebuild_parameter_with_state"}) &&
      given.size() >= 1 && given[0].is(PickleKind::tensor))
    return argument(0);
  if (is_one_of(name, {"collections.OrderedDict", "builtins.dict", "__builtin__.dict"}))
    return dict_of(arguments, 0);
  if (name == "collections.defaultdict") return dict_of(arguments, 1);
  if (is_one_of(name, {"torch.Size", "builtins.list", "builtins.tuple", "builtins.set",
                       "builtins.frozenset", "__builtin__.list", "__builtin__.set",
                       "__builtin__.frozenset", "collections.deque"}) &&
      given.size() >= 1 && given[0].is(PickleKind::list))
    return argument(0);
  if (name == "_codecs.encode") return encoded(callee, arguments);
  if (is_one_of(name, {"numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar"}))
    return numpy_scalar(callee, arguments);
  if (is_one_of(name, {"copyreg._reconstructor", "copy_reg._reconstructor"}) && given.size() >= 1)
    return opaque(argument(0), PickleMachine::kEmptyTuple);
  return opaque(callee, arguments);
}

/// An empty dict, or that of the pairs in argument `index`.
PickleConstructors::Ref PickleConstructors::dict_of(Ref arguments, std::size_t index) {
  PickleNode node;
  node.kind = PickleKind::dict;
  const PickleValue pairs = value(arguments)[index];
  if (pairs.is(PickleKind::dict)) return machine_.node(arguments).items[index];
  machine_.charge(2 * pairs.size());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const Ref pair = machine_.node(machine_.node(arguments).items[index]).items[i];
    if (!value(pair).is(PickleKind::list) || value(pair).size() != 2)
      machine_.fail("a dict of what are no pairs");
    node.items.push_back(machine_.node(pair).items[0]);
    node.items.push_back(machine_.node(pair).items[1]);
  }
  return machine_.add(std::move(node));
}

bool PickleConstructors::extents(PickleValue list, std::vector<std::int64_t>& out) const {
  if (!list.is(PickleKind::list) || list.size() > kMaxRank) return false;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto extent = list[i].is(PickleKind::integer) ? list[i].integer() : std::nullopt;
    if (!extent || *extent < 0) return false;
    out.push_back(*extent);
  }
  return true;
}

/// (storage, offset, shape, strides, requires_grad, hooks[, dtype, metadata]); the oldest without
/// requires_grad and hooks.
PickleConstructors::Ref PickleConstructors::tensor(Ref callee, Ref arguments) {
  const PickleValue given = value(arguments);
  const bool typed = value(callee).name().ends_with("_v3");
  if (given.size() < (typed ? 7u : 4u) || !given[0].is(PickleKind::storage))
    return opaque(callee, arguments);
  const auto index =
      static_cast<std::size_t>(machine_.node(machine_.node(arguments).items[0]).integer);
  const PickleStorage& storage = machine_.tree_.storages_[index];
  PickleTensor tensor;
  tensor.type = typed ? find_torch_type(given[6].name()) : storage.type;
  if (tensor.type == nullptr) return opaque(callee, arguments);
  const auto offset = given[1].is(PickleKind::integer) ? given[1].integer() : std::nullopt;
  if (!offset || *offset < 0 || !extents(given[2], tensor.shape) ||
      !extents(given[3], tensor.strides) || tensor.shape.size() != tensor.strides.size())
    machine_.fail("a tensor without an offset, a shape and as many strides");
  machine_.charge(storage.key.size() + 16 * tensor.shape.size() + 64);
  tensor.key = storage.key;
  tensor.offset = *offset;
  tensor.storage_bytes = static_cast<std::uint64_t>(storage.numel) * storage.type->bytes;
  const auto end = reach(tensor);
  if (!end || static_cast<std::uint64_t>(*end) > tensor.storage_bytes / tensor.type->bytes)
    machine_.fail(concat("a tensor ", tensor.type->name, " reaches past its storage of ",
                         tensor.storage_bytes, " bytes"));
  PickleNode node;
  node.kind = PickleKind::tensor;
  node.integer = static_cast<std::int64_t>(machine_.tree_.tensors_.size());
  machine_.tree_.tensors_.push_back(std::move(tensor));
  return machine_.add(std::move(node));
}

/// Bytes as protocols before 3 write them: a text of code points below 256.
PickleConstructors::Ref PickleConstructors::encoded(Ref callee, Ref arguments) {
  const PickleValue given = value(arguments);
  const std::string* text = given[0].text();
  const std::string* encoding = given[1].text();
  if (text == nullptr || encoding == nullptr || (*encoding != "latin1" && *encoding != "latin-1"))
    return opaque(callee, arguments);
  machine_.charge(text->size());
  std::string bytes;
  for (std::size_t i = 0; i < text->size(); ++i) {
    const auto byte = static_cast<unsigned char>((*text)[i]);
    if (byte < 0x80) {
      bytes.push_back(static_cast<char>(byte));
    } else if ((byte & 0xfcu) == 0xc0 && i + 1 < text->size()) {
      const auto low = static_cast<unsigned char>((*text)[++i]);
      bytes.push_back(static_cast<char>(((byte & 3u) << 6) | (low & 0x3fu)));
    } else {
      return opaque(callee, arguments);
    }
  }
  return machine_.add_text(PickleKind::bytes, bytes);
}

/// (numpy.dtype('f8', ...), bytes): a number of a metric or a learning rate.
PickleConstructors::Ref PickleConstructors::numpy_scalar(Ref callee, Ref arguments) {
  const PickleValue given = value(arguments);
  const std::string* kind = given[0].arguments()[0].text();
  if (kind == nullptr || !given[1].is(PickleKind::bytes)) return opaque(callee, arguments);
  const std::string& bytes = machine_.node(machine_.node(arguments).items[1]).text;
  PickleNode node;
  const auto take = [&]<typename T>(T number) {
    if (bytes.size() != sizeof number) return false;
    std::memcpy(&number, bytes.data(), sizeof number);
    node.kind = std::is_integral_v<T> ? PickleKind::integer : PickleKind::number;
    if constexpr (std::is_integral_v<T>)
      node.integer = number;
    else
      node.number = number;
    return true;
  };
  const bool read = (*kind == "f8" && take(double())) || (*kind == "f4" && take(float())) ||
                    (*kind == "i8" && take(std::int64_t())) ||
                    (*kind == "i4" && take(std::int32_t()));
  return read ? machine_.add(std::move(node)) : opaque(callee, arguments);
}

PickleConstructors::Ref PickleConstructors::load_persistent(Ref id) {
  const PickleValue given = value(id);
  const std::string* what = given[0].text();
  const std::string* key = given[2].text();
  const std::int64_t numel = given[4].is(PickleKind::integer) ? *given[4].integer() : -1;
  if (!given.is(PickleKind::list) || given.size() < 5 || what == nullptr || *what != "storage" ||
      key == nullptr || numel < 0)
    machine_.fail("a reference to something else than a storage of tensors");
  if (given.size() > 5 && !given[5].is_none())
    machine_.fail("a storage that is part of another one, as PyTorch before 0.4 wrote them");
  const TorchType* type = find_torch_type(given[1].name());
  if (type == nullptr) return opaque(machine_.node(id).items[1], id);
  if (numel > (std::int64_t{1} << 59)) machine_.fail("a storage beyond every file");
  machine_.charge(key->size());
  machine_.tree_.storages_.push_back({*key, type, numel});
  PickleNode node;
  node.kind = PickleKind::storage;
  node.integer = static_cast<std::int64_t>(machine_.tree_.storages_.size() - 1);
  return machine_.add(std::move(node));
}

}  // namespace zero3d
