// The keys of what leaves the device and how: offload_param, offload_optimizer, aio, and zero3d,
// which DeepSpeed ignores. Sizes are counted in elements unless a row says bytes.
#include <utility>

#include "zero3d/core/text.h"
#include "zero3d/ds_config/field.h"
#include "zero3d/ds_config/reader.h"

namespace zero3d::config {

namespace {

constexpr std::nullopt_t none = std::nullopt;
constexpr std::string_view kDevices = "none|cpu|nvme";
constexpr std::string_view kDeviceType = "\"none\", \"cpu\" or \"nvme\"";
constexpr std::string_view kWithDrive = "only with device nvme";
constexpr std::string_view kWithDevice = "only with a device";

/// A path as Python's pathlib writes it: one slash between names, none at the end, no ".".
std::string plain_path(std::string_view text) {
  const bool absolute = !text.empty() && text.front() == '/';
  const bool two = text.substr(0, 2) == "//" && text.substr(0, 3) != "///";  // POSIX: its own root
  std::string path(two ? "//" : absolute ? "/" : "");
  std::string_view between;
  while (!text.empty()) {
    const std::size_t end = text.find('/');
    const std::string_view name = text.substr(0, end);
    if (!name.empty() && name != ".") path += concat(std::exchange(between, "/"), name);
    text = end == std::string_view::npos ? "" : text.substr(end + 1);
  }
  return path.empty() ? "." : path;
}

void read_path(Reader& r, const Stated& s, JsonValue& out) {
  if (s.value.is_null()) return;
  const Reader::Converted read = r.to_text(s);
  if (read) out = JsonValue(plain_path(read->as_string()));
}

void read_paths(Reader& r, const Stated& s, JsonValue& out) {
  if (s.value.is_null()) return;
  const Reader::Converted read = r.to_texts(s);
  if (!read) return;
  if (read->items().empty()) {
    r.refuse(s, "one folder per drive", "remove the key to use nvme_path");
    return;
  }
  out = JsonValue::make_array();
  for (const JsonValue& path : read->items())
    out.push_back(JsonValue(plain_path(path.as_string())));
}

bool offloads_parameters(const Config& c) { return c.offloads("offload_param"); }
bool parameters_to_drive(const Config& c) { return c.offloads_to_drive("offload_param"); }
bool offloads_optimizer(const Config& c) { return c.offloads("offload_optimizer"); }
bool optimizer_to_drive(const Config& c) { return c.offloads_to_drive("offload_optimizer"); }
bool uses_drives(const Config& c) { return c.uses_drives(); }
/// Heeded by DeepSpeed at stage 3 only.
bool divides_optimizer(const Config& c) { return offloads_optimizer(c) && c.stage() == 3; }

constexpr std::array kOffloadParamRows = strictly(std::array{
    text("device", "none", "Where parameter shards live between uses.")
        .one_of(kDevices)
        .typed(kDeviceType),
    text("nvme_path", none,
         "Folder on the drive, made where it is not there; needed for nvme. `zero3d.nvme_paths` "
         "takes its place.")
        .by(read_path)
        .only(kWithDrive, parameters_to_drive),
    integer("buffer_count", 5, "Staging buffers for nvme: shards on their way at a time.")
        .at_least(0)
        .only(kWithDrive, parameters_to_drive),
    integer("buffer_size", 100'000'000,
            "Elements of a staging buffer at most; larger shards go through in pieces.")
        .at_least(0)
        .only(kWithDrive, parameters_to_drive),
    integer("max_in_cpu", 1'000'000'000, "Elements kept in host memory before the drive is used.")
        .at_least(0)
        .only(kWithDrive, parameters_to_drive),
    flag("pin_memory", true, "Page-locked host memory. On the CPU device: ordinary memory.")
        .only(kWithDevice, offloads_parameters)});

constexpr std::array kOffloadOptimizerRows = strictly(std::array{
    text("device", "none", "Where master weights, moments and gradients live.")
        .one_of(kDevices)
        .typed(kDeviceType),
    text("nvme_path", none,
         "Folder on the drive, made where it is not there; needed for nvme, at every stage. "
         "`zero3d.nvme_paths` takes its place.")
        .by(read_path)
        .only(kWithDrive, optimizer_to_drive),
    integer("buffer_count", 4, "Staging buffers for nvme: tiles in memory at a time.")
        .at_least(0)
        .only(kWithDrive, optimizer_to_drive),
    flag("pin_memory", true, "Page-locked host memory. On the CPU device: ordinary memory.")
        .only(kWithDevice, offloads_optimizer),
    flag("pipeline_read", false, "Read the next tile while one is updated.")
        .only(kWithDrive, optimizer_to_drive),
    flag("pipeline_write", false, "Write the last tile while one is updated.")
        .only(kWithDrive, optimizer_to_drive),
    flag("fast_init", false,
         "A quick first write of the states to the drive. Here they never are a pass of their own: "
         "the first update makes them.")
        .none(),
    number("ratio", 1.0,
           "Share of the parameters that is updated on the CPU, the rest on the device; below 1 "
           "needs stage 3.")
        .between(0, 1)
        .only("only with a device, at stage 3", divides_optimizer),
    flag("super_offload", false,
         "SuperOffload's worker process (stage 3). Refused: plain offload gives the same results, "
         "and `ratio` leaves a share on the device.")
        .refuse("", never),
    number("cpuadam_cores_perc", 0.8, "Share of the cores for that worker.").between(0, 1).none()});

void read_gds(Reader& r, const Stated& s, JsonValue& out) {
  out = JsonValue(!is_falsy(s.value));
  if (out.as_bool())
    r.refuse(s, "false: GPUDirect Storage needs a CUDA device, and this run has none");
}

constexpr std::array kAioRows = {
    integer("block_size", 1'048'576,
            "Bytes of one request to the drive, rounded up to a multiple of 4096.")
        .above(0),
    integer("queue_depth", 8, "Requests in flight.").above(0),
    integer("intra_op_parallelism", 1, "Threads for one tensor, where io_uring is not to be had.")
        .above(0),
    flag("single_submit", false, "Submit requests one by one."),
    flag("overlap_events", true, "Submit while others complete."),
    flag("use_gds", false, "GPUDirect Storage; needs a CUDA device.")
        .check()
        .by(read_gds)
        .refuse("", never)};

constexpr std::array kOwnRows = {
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
            "`--device-memory` needs.")
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

constexpr Section kOffloadParam = {kOffloadParamRows, true};
constexpr Section kOffloadOptimizer = {kOffloadOptimizerRows, true};
constexpr Section kAio = {kAioRows};
constexpr Section kOwn = {kOwnRows, false, true};

}  // namespace zero3d::config
