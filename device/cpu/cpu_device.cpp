// The CPU as a device: its memory, its streams and its copies.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/device/cpu/arena_resource.h"
#include "zero3d/device/cpu/cpu_stream.h"
#include "zero3d/device/cpu/poison_resource.h"
#include "zero3d/device/device.h"
#include "zero3d/device/parallel.h"

namespace zero3d {
namespace {

constexpr std::int64_t kCopyGrain = std::int64_t{1} << 20;

std::string memory_name(Tier tier, int rank) { return concat(name_of(tier), " of rank ", rank); }

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options);

  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string description() const override { return concat("cpu of rank ", options_.rank); }
  std::unique_ptr<Stream> create_stream(const std::string& name) override;
  using Device::memory;
  TrackingResource& memory(Tier tier) override;
  void copy(Stream& stream, const View& dst, const ConstView& src) override;
  CopiedBytes copied() const override { return {to_device_.load(), to_host_.load()}; }
  void fill_zero(Stream& stream, const View& dst) override;
  ConstView host_read(const ConstView& view) override;
  View host_write(const View& view) override;
  void declare(const std::string& what, std::span<const Access> accesses,
               std::span<const Event> after, Event& done) override;

 private:
  void host_access(const char* what, const Access& access);

  const CpuDeviceOptions options_;
  std::unique_ptr<HazardChecker> checker_;
  ArenaResource arena_;
  const HostBounds bounds_;
  ArenaResource host_arena_;
  std::unique_ptr<PoisonResource> poison_;
  TrackingResource memory_;
  const std::shared_ptr<MemoryBudget> host_budget_;
  TrackingResource pinned_;
  TrackingResource pageable_;
  std::uint64_t streams_ = 0;
  std::atomic<std::int64_t> to_device_{0};
  std::atomic<std::int64_t> to_host_{0};
};

CpuDevice::CpuDevice(const CpuDeviceOptions& options)
    : options_(options),
      checker_(options.check_hazards ? std::make_unique<HazardChecker>(description()) : nullptr),
      bounds_(arena_),
      poison_(options.poison_on_free && checker_ != nullptr
                  ? std::make_unique<PoisonResource>(arena_, *checker_)
                  : nullptr),
      memory_(poison_ != nullptr ? static_cast<MemoryResource&>(*poison_) : arena_,
              memory_name(Tier::device, options.rank),
              make_memory_budget(options.budget_bytes,
                                 "raise the budget with --device-memory, or need less: a higher "
                                 "ZeRO stage, offload, activation checkpointing or a smaller "
                                 "micro-batch")),
      host_budget_(make_memory_budget(
          options.host_budget_bytes,
          "raise the budget with --host-memory, or need less: a smaller micro-batch")),
      pinned_(host_arena_, memory_name(Tier::pinned, options.rank), host_budget_),
      pageable_(host_arena_, memory_name(Tier::pageable, options.rank), host_budget_) {
  if (options.threads < 1)
    throw_invalid(concat("a CPU device with ", options.threads, " threads; expected 1 or more"));
}

TrackingResource& CpuDevice::memory(Tier tier) {
  switch (tier) {
    case Tier::pinned:
      return pinned_;
    case Tier::pageable:
      return pageable_;
    case Tier::device:
      break;
  }
  return memory_;
}

std::unique_ptr<Stream> CpuDevice::create_stream(const std::string& name) {
  CpuStreamOptions options{options_.rank, options_.threads, 0, checker_.get(), &bounds_};
  if (options_.jitter_seed != 0) options.jitter_seed = options_.jitter_seed + ++streams_ * 7919;
  if (options_.inline_streams) return std::make_unique<InlineStream>(*this, name, options);
  return std::make_unique<QueuedStream>(*this, name, options);
}

void CpuDevice::copy(Stream& stream, const View& dst, const ConstView& src) {
  const std::size_t bytes = dst.bytes();
  if (bytes != src.bytes())
    throw_invalid(concat("copy of ", src.bytes(), " bytes into ", bytes, "; expected equal sizes"));
  if (bytes == 0) return;
  std::byte* to = dst.data();
  const std::byte* from = src.data();
  if (to < from + bytes && from < to + bytes)
    throw_invalid(concat("copy of ", bytes, " bytes between overlapping ranges"));
  const bool into_device = arena_.contains(to);
  if (into_device != arena_.contains(from))
    (into_device ? to_device_ : to_host_) += static_cast<std::int64_t>(bytes);
  stream.launch("copy", {writes(dst), reads(src)}, [to, from, bytes] {
    parallel_for(static_cast<std::int64_t>(bytes), kCopyGrain,
                 [to, from](std::int64_t begin, std::int64_t end) {
                   std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
                 });
  });
}

void CpuDevice::fill_zero(Stream& stream, const View& dst) {
  const std::size_t bytes = dst.bytes();
  if (bytes == 0) return;
  std::byte* to = dst.data();
  stream.launch("fill zero", {writes(dst)}, [to, bytes] {
    parallel_for(static_cast<std::int64_t>(bytes), kCopyGrain,
                 [to](std::int64_t begin, std::int64_t end) {
                   std::memset(to + begin, 0, static_cast<std::size_t>(end - begin));
                 });
  });
}

ConstView CpuDevice::host_read(const ConstView& view) {
  host_access("host_read", reads(view));
  return view;
}

View CpuDevice::host_write(const View& view) {
  host_access("host_write", writes(view));
  return view;
}

void CpuDevice::host_access(const char* what, const Access& access) {
  bounds_.check(what, description(), {&access, 1});
  if (checker_ != nullptr) checker_->host_access(access);
}

void CpuDevice::declare(const std::string& what, std::span<const Access> accesses,
                        std::span<const Event> after, Event& done) {
  declare_work(checker_.get(), what, accesses, after, done);
}

}  // namespace

bool CpuDeviceOptions::default_checks() {
#ifdef ZERO3D_HAZARD_CHECKS
  return true;
#else
  const char* value = std::getenv("ZERO3D_CHECK");
  return value != nullptr && std::strcmp(value, "1") == 0;
#endif
}

std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

}  // namespace zero3d
