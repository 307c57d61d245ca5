// Any bytes as a safetensors file, as a header and as an index of shards: either an Error or
// tensors that can be read, and nothing else.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/formats/safetensors.h"
#include "zero3d/formats/safetensors_header.h"

namespace {

using namespace zero3d;

void require(bool condition) {
  if (!condition) std::abort();
}

void read_all(const SafetensorsFile& file) {
  for (const SafetensorsEntry& entry : file.tensors()) {
    require(file.find(entry.name) == &entry);
    if (!entry.dtype) continue;
    const std::int64_t count = entry.numel();
    require(entry.end - entry.begin == static_cast<std::uint64_t>(count) * size_of(*entry.dtype));
    std::vector<std::byte> values(static_cast<std::size_t>(count) * 8);
    for (const DType to : {*entry.dtype, DType::f32, DType::bf16, DType::f16}) {
      try {
        const std::int64_t first = count / 3;
        file.read(entry, first, View(values.data(), to, Shape{count - first}));
      } catch (const IoError&) {
        require(!is_floating(*entry.dtype));
      }
    }
  }
}

void as_file(const std::uint8_t* data, std::size_t size) {
  const int descriptor = ::memfd_create("input", MFD_CLOEXEC);
  require(descriptor >= 0);
  require(::write(descriptor, data, size) == static_cast<ssize_t>(size));
  try {
    read_all(SafetensorsFile("/proc/self/fd/" + std::to_string(descriptor)));
  } catch (const Error&) {
  }
  ::close(descriptor);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  as_file(data, size);
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    parse_safetensors_index("index", text);
  } catch (const Error&) {
  }
  if (text.empty()) return 0;
  // The header alone: the fuzzer need not find the size in front. The first byte sizes the data.
  try {
    const std::uint64_t bytes = static_cast<unsigned char>(text[0]);
    const auto header = parse_safetensors_header("header", text.substr(1), 8, bytes);
    for (const auto& entry : header.tensors) require(entry.end <= bytes + 8);
  } catch (const Error&) {
  }
  return 0;
}
