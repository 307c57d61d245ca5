// What a checkpoint holds, whole, as the tests compare it.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "zero3d/core/text.h"
#include "zero3d/engine/checkpoint/checkpoint_reader.h"

namespace zero3d::test {

struct SavedTensors {
  std::map<std::string, std::vector<std::byte>> tensors;  ///< "name/tensor dtype".
  RunState state;
};

inline SavedTensors read_saved(const std::string& path) {
  const CheckpointReader reader(path);
  reader.verify();
  SavedTensors result;
  result.state = reader.run().state;
  for (const SavedParameter& parameter : reader.parameters()) {
    for (const auto& [tensor, dtype] : parameter.tensors) {
      std::vector<std::byte>& bytes =
          result.tensors[concat(parameter.name, "/", tensor, " ", name_of(dtype))];
      const std::int64_t count = parameter.shape.numel();
      bytes.resize(static_cast<std::size_t>(bytes_of(count, dtype)));
      const GlobalRun run{0, count, 0};
      reader.read(parameter, tensor, {&run, 1}, View(bytes.data(), dtype, Shape{count}));
    }
  }
  return result;
}

inline ::testing::AssertionResult same_saved(const SavedTensors& a, const SavedTensors& b) {
  for (const auto& [name, bytes] : a.tensors) {
    const auto other = b.tensors.find(name);
    if (other == b.tensors.end()) return ::testing::AssertionFailure() << name << " is missing";
    if (other->second != bytes) return ::testing::AssertionFailure() << name << " differs";
  }
  if (a.tensors.size() != b.tensors.size())
    return ::testing::AssertionFailure() << "the second one has more tensors";
  if (!(a.state == b.state))
    return ::testing::AssertionFailure() << to_text(a.state) << "is not\n" << to_text(b.state);
  return ::testing::AssertionSuccess();
}

}  // namespace zero3d::test
