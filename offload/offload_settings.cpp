// Offload settings in words, and held to their ranges.
#include "zero3d/offload/offload_settings.h"

#include <cmath>
#include <limits>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

std::string memory_of(bool pinned) { return pinned ? "pinned host memory" : "host memory"; }

/// "drives (/a, /b)".
std::string drives(const std::vector<std::string>& paths) {
  return concat(paths.size() == 1 ? "a drive (" : "drives (", joined(paths, ", "), ")");
}

std::string describe(const OptimizerOffload& optimizer) {
  if (optimizer.ratio == 0)
    return "of masters, moments and gradients nothing (a ratio of 0): all stay on the device";
  std::string text = "masters, moments and gradients";
  if (optimizer.ratio < 1) text += concat(" of ", optimizer.ratio, " of the parameters");
  if (optimizer.device == OffloadDevice::cpu)
    return concat(text, " in ", memory_of(optimizer.pin_memory));
  text += concat(" on ", drives(optimizer.paths), " through ", optimizer.buffer_count,
                 optimizer.buffer_count == 1 ? " buffer of " : " buffers of ",
                 memory_of(optimizer.pin_memory));
  if (optimizer.pipeline_read) text += ", read ahead";
  if (optimizer.pipeline_write) text += ", written behind";
  return text;
}

std::string describe(const ParameterOffload& parameters) {
  const std::string text = "shards of parameters";
  if (parameters.device == OffloadDevice::cpu)
    return concat(text, " in ", memory_of(parameters.pin_memory));
  return concat(
      text, " on ", drives(parameters.paths), " through ", parameters.buffer_count,
      " buffers of at most ", format_count(parameters.buffer_elements), " elements of ",
      memory_of(parameters.pin_memory), "; ",
      parameters.max_in_cpu == 0
          ? "none stay there"
          : concat("the first ", format_count(parameters.max_in_cpu), " elements stay there"));
}

/// A kind of state that goes to drives needs folders on them.
void require_paths(const char* kind, OffloadDevice device, const std::vector<std::string>& paths) {
  if (device == OffloadDevice::nvme && paths.empty())
    throw_invalid(concat("TrainSettings::offload.", kind,
                         " goes to nvme and names no path; expected one folder per drive"));
}

}  // namespace

std::string_view name_of(OffloadDevice device) {
  constexpr std::string_view kNames[] = {"none", "cpu", "nvme"};
  return kNames[static_cast<std::size_t>(device)];
}

std::vector<std::string> describe_offload(const OffloadSettings& settings) {
  std::vector<std::string> lines;
  if (settings.optimizer.on()) lines.push_back(describe(settings.optimizer));
  if (settings.parameters.on()) lines.push_back(describe(settings.parameters));
  if (settings.activations)
    lines.push_back("what forward keeps for recomputation in pinned host memory");
  if (settings.uses_drives()) {
    const IoOptions& io = settings.io;
    lines.push_back(concat("requests of ", format_bytes(io.block_size), ", ", io.queue_depth,
                           " under way", settings.checksums ? ", with checksums" : ""));
  }
  return lines;
}

void require_in_range(const OffloadSettings& settings) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const auto in_range = [](const char* field, std::int64_t value, std::int64_t least,
                           std::int64_t most) {
    if (value < least || value > most)
      throw_invalid(concat("TrainSettings::offload.", field, " is ", value,
                           "; expected a number from ", least,
                           most == kMost ? " on" : concat(" to ", most)));
  };
  const OptimizerOffload& optimizer = settings.optimizer;
  in_range("optimizer.buffer_count", optimizer.buffer_count, 1, OffloadSettings::kMostBuffers);
  if (!(optimizer.ratio >= 0 && optimizer.ratio <= 1))
    throw_invalid(concat("TrainSettings::offload.optimizer.ratio is ", optimizer.ratio,
                         "; expected a number from 0 to 1"));
  require_paths("optimizer", optimizer.device, optimizer.paths);
  const ParameterOffload& parameters = settings.parameters;
  in_range("parameters.buffer_count", parameters.buffer_count, 1, OffloadSettings::kMostBuffers);
  in_range("parameters.buffer_elements", parameters.buffer_elements, 1, kMost);
  in_range("parameters.max_in_cpu", parameters.max_in_cpu, 0, kMost);
  require_paths("parameters", parameters.device, parameters.paths);
  require_in_range(settings.io);
}

}  // namespace zero3d
