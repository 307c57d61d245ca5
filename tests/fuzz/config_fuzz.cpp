// Any bytes as a ds_config: either messages, or a configuration whose written form loads again to
// the same one. Byte 0 chooses the ranks, the degrees and whether options fill "auto".
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "zero3d/core/error.h"
#include "zero3d/ds_config/load.h"
#include "zero3d/ds_config/settings.h"
#include "zero3d/ds_config/trainable.h"
#include "zero3d/formats/hjson.h"

namespace {

using namespace zero3d;

void require(bool condition) {
  if (!condition) std::abort();
}

void check_reader(std::string_view text) {
  std::vector<HjsonProblem> duplicates;
  try {
    const JsonValue value = parse_hjson(text, "fuzz", duplicates);
    std::vector<HjsonProblem> none;
    require(parse_hjson(value.dump(), "dump", none) == value);
    require(none.empty());
  } catch (const HjsonError& error) {
    require(error.position().line >= 0);
  }
}

LoadOptions options_of(std::uint8_t choice) {
  LoadOptions options;
  options.ranks = 1 << (choice & 3);
  options.strict = (choice & 4) != 0;
  if ((choice & 8) != 0) options.tp = 2;
  if ((choice & 16) != 0) options.pp = 2;
  if ((choice & 32) != 0) {
    options.autos.lr = 1e-3;
    options.autos.betas = {0.9, 0.95};
    options.autos.micro_batch = 2;
    options.autos.accumulation = 3;
    options.autos.hidden_size = 1024;
    options.autos.warmup_steps = 0;
    options.autos.precision = {"bf16"};
  }
  return options;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  check_reader(text);
  const LoadOptions options = options_of(data[0]);
  const LoadResult loaded = load_config_text(text, "fuzz", options);
  for (const auto& entry : loaded.errors) require(!entry.message.empty());
  if (!loaded.ok()) return 0;
  if (check_trainable(loaded, {.allow_unsupported = true}).ok())
    (void)train_settings(loaded.config);  // has no objections left
  LoadOptions again;
  again.ranks = options.ranks;
  const LoadResult second = load_config_text(loadable_json(loaded.config).dump(), "again", again);
  require(second.ok());
  require(config_fingerprint(second.config) == config_fingerprint(loaded.config));
  return 0;
}
