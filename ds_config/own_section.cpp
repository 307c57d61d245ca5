// The keys of zero3d, the section of our own: DeepSpeed has none for them, and ignores it.
#include "zero3d/ds_config/field.h"
#include "zero3d/ds_config/reader.h"

namespace zero3d::config {

namespace {

constexpr std::nullopt_t none = std::nullopt;
constexpr std::string_view kWithDrive = "only with device nvme";

constexpr std::string_view kWithStages = "only with a pp degree above 1";

bool has_stages(const Config& c) { return c.degrees.pp > 1; }
bool uses_drives(const Config& c) { return c.uses_drives(); }

void read_paths(Reader& r, const Stated& s, JsonValue& out) {
  if (s.value.is_null()) return;
  const Reader::Converted read = r.to_texts(s);
  if (!read) return;
  if (read->items().empty()) {
    r.refuse(s, "one folder per drive", "remove the key to use nvme_path");
    return;
  }
  for (const JsonValue& path : read->items())
    if (path.as_string().empty()) {
      r.refuse(s, "folders with names", "an empty path names none; \".\" is the folder of the run");
      return;
    }
  out = JsonValue::make_array();
  for (const JsonValue& path : read->items())
    out.push_back(JsonValue(plain_path(path.as_string())));
}

constexpr std::array kOwnRows = {
    integer("tp", none, "The tp degree, over tensor_parallel.autotp_size; `--tp` overrides both.")
        .own()
        .at_least(1),
    integer("pp", none, "The pp degree, over pipeline.stages; `--pp` overrides both.")
        .own()
        .at_least(1),
    integer("sp", none, "The sp degree, over sequence_parallel_size; `--sp` overrides both.")
        .own()
        .at_least(1),
    flag("sequence_parallel", false,
         "Outside of attention and MLP each tensor-parallel rank has a part of every sequence: "
         "norms, dropout and residual sums are divided too, and the same bytes travel. Not sp: "
         "those ranks hold all of every layer.")
        .own()
        .only("only with a tp degree above 1", [](const Config& c) { return c.degrees.tp > 1; }),
    text(
        "schedule", "1f1b",
        "Order of forward and backward in a pipeline: all forwards first, one of each in turn, the "
        "same with several chunks of the model on a rank, or weight gradients apart to fill what "
        "is left of the bubble. Results do not depend on it. `--schedule` overrides it.")
        .own()
        .one_of("gpipe|1f1b|interleaved|zb-h1|zb-v")
        .only(kWithStages, has_stages),
    integer("virtual_stages", none,
            "Chunks of the model on each rank, of interleaved (2 or more) and zb-v (2). "
            "`--virtual-stages` overrides it.")
        .own()
        .at_least(1)
        .only(kWithStages, has_stages),
    text("partition", none, "As pipeline.partition, over it; `--partition` overrides both.")
        .own()
        .only(kWithStages, has_stages),
    texts("nvme_paths", none,
          "Folders that share what goes to nvme, one per drive, instead of nvme_path.")
        .own()
        .by(read_paths)
        .only(kWithDrive, uses_drives),
    flag("checksums", false, "Hold what is read from a drive to what was written, page by page.")
        .own()
        .only(kWithDrive, uses_drives),
    integer("linear_tiles", 0,
            "Tiles of every linear layer, one gathered at a time; 1: uncut; 0: as few as "
            "`--device-memory` needs. More than 1 goes without tensor parallelism.")
        .own()
        .auto_means_default()
        .at_least(0),
    integer("head_tiles", 0,
            "Tiles of the token table, and of the head with its logits and cross-entropy; 0 and 1 "
            "as above.")
        .own()
        .auto_means_default()
        .at_least(0)};

}  // namespace

constexpr Section kOwn = {kOwnRows, false, true};

}  // namespace zero3d::config
