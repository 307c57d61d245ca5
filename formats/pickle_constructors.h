// The classes and functions that mean something in a pickle: tensors and their storages,
// dictionaries, sizes, numbers. Internal to formats, and to the pickle machine.
#pragma once

#include <cstdint>

#include "zero3d/formats/pickle_machine.h"

namespace zero3d {

class PickleConstructors {
 public:
  explicit PickleConstructors(PickleMachine& machine) : machine_(machine) {}

  /// The value of calling `callee` with `arguments`; an opaque object unless it is one of those
  /// known here and its arguments are as PyTorch writes them.
  std::uint32_t call(std::uint32_t callee, std::uint32_t arguments);
  /// The value of a persistent id: ('storage', class, key, location, elements).
  std::uint32_t load_persistent(std::uint32_t id);

 private:
  using Ref = std::uint32_t;
  Ref opaque(Ref callee, Ref arguments);
  Ref dict_of(Ref arguments, std::size_t index);
  Ref tensor(Ref callee, Ref arguments);
  Ref encoded(Ref callee, Ref arguments);
  Ref numpy_scalar(Ref callee, Ref arguments);
  PickleValue value(Ref ref) const { return PickleValue(machine_.tree_, ref); }
  bool extents(PickleValue list, std::vector<std::int64_t>& out) const;

  PickleMachine& machine_;
};

}  // namespace zero3d
