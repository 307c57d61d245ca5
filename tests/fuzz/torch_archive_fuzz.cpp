// Any bytes as a file of torch.save, as a pickle and as a file of weights: either an Error or
// values that can be walked and tensors that can be read, and nothing else.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/formats/pickle_machine.h"
#include "zero3d/formats/torch_archive.h"
#include "zero3d/formats/torch_weights.h"

namespace {

using namespace zero3d;

constexpr std::int64_t kMostElements = 4096;

void require(bool condition) {
  if (!condition) std::abort();
}

/// Visits a bounded part of what hangs below `value`, which may contain itself.
void walk(PickleValue value, int depth, int& budget) {
  if (depth == 0 || --budget < 0) return;
  require(!value.describe().empty() || value.is(PickleKind::absent));
  value.integer();
  value.number();
  value.name();
  value.find("step");
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (budget < 0) return;
    walk(value.key(i), depth - 1, budget);
    walk(value[i], depth - 1, budget);
  }
  walk(value.arguments(), depth - 1, budget);
  require(!value[value.size()]);
}

void as_file(const std::string& path) {
  try {
    const TorchArchive archive(path);
    int budget = 1000;
    walk(archive.root(), 8, budget);
    const PickleValue root = archive.root();
    for (std::size_t i = 0; i < root.size() && i < 16; ++i) {
      const PickleTensor* tensor = root[i].tensor();
      if (tensor == nullptr || tensor->numel() == 0) continue;
      const std::int64_t all = tensor->numel(), first = all / 3;
      const std::int64_t count = std::min(all - first, kMostElements);
      std::vector<float> values(static_cast<std::size_t>(count));
      archive.read(*tensor, first,
                   View(reinterpret_cast<std::byte*>(values.data()), DType::f32, Shape{count}));
    }
    archive.verify();
  } catch (const Error&) {
  }
  try {
    const TorchWeightFile weights(path);
    for (const SafetensorsEntry& entry : weights.tensors()) require(entry.numel() >= 0);
  } catch (const Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    PickleLimits limits;
    limits.values = 10'000;
    limits.work = 1'000'000;
    const PickleTree tree = PickleMachine("pickle", limits).run(text);
    int budget = 1000;
    walk(tree.root(), 8, budget);
    for (const PickleTensor& tensor : tree.tensors()) require(tensor.numel() >= 0);
  } catch (const Error&) {
  }
  const int descriptor = ::memfd_create("input", MFD_CLOEXEC);
  require(descriptor >= 0);
  require(::write(descriptor, data, size) == static_cast<ssize_t>(size));
  as_file("/proc/self/fd/" + std::to_string(descriptor));
  ::close(descriptor);
  return 0;
}
