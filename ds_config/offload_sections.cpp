// The keys of what leaves the device and how: offload_param, offload_optimizer, aio. Sizes are
// counted in elements unless a row says bytes.
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

void read_path(Reader& r, const Stated& s, JsonValue& out) {
  if (s.value.is_null()) return;
  const Reader::Converted read = r.to_text(s);
  if (read && read->as_string().empty())
    r.train_error(s.path,
                  "an empty path is the folder that the run happens to start in: name the "
                  "folder on the drive (\".\" for that one)",
                  s.value.position());
  if (read) out = JsonValue(plain_path(read->as_string()));
}

bool offloads_parameters(const Config& c) { return c.offloads("offload_param"); }
bool parameters_to_drive(const Config& c) { return c.offloads_to_drive("offload_param"); }
bool offloads_optimizer(const Config& c) { return c.offloads("offload_optimizer"); }
bool optimizer_to_drive(const Config& c) { return c.offloads_to_drive("offload_optimizer"); }
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
    integer("buffer_count", 5,
            "Staging buffers for nvme, 1 to 1024: shards on their way at a time.")
        .at_least(0)
        .only(kWithDrive, parameters_to_drive),
    integer(
        "buffer_size", 100'000'000,
        "Elements of a staging buffer at most, with nvme 1 or more; larger shards go through in "
        "pieces.")
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
    integer("buffer_count", 4, "Staging buffers for nvme, 1 to 1024: tiles in memory at a time.")
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
            "Bytes of one request to the drive, rounded up to a multiple of 4096; at most 1 GiB.")
        .above(0),
    integer("queue_depth", 8, "Requests in flight, at most 4096.").above(0),
    integer("intra_op_parallelism", 1,
            "Threads for one tensor, where io_uring is not to be had; at most 1024.")
        .above(0),
    flag("single_submit", false, "Submit requests one by one."),
    flag("overlap_events", true, "Submit while others complete."),
    flag("use_gds", false, "GPUDirect Storage; needs a CUDA device.")
        .check()
        .by(read_gds)
        .refuse("", never)};

}  // namespace

constexpr Section kOffloadParam = {kOffloadParamRows, true};
constexpr Section kOffloadOptimizer = {kOffloadOptimizerRows, true};
constexpr Section kAio = {kAioRows};

}  // namespace zero3d::config
