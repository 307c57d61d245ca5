// The CPU as a device: its memory, its streams and its copies.
#include <cstdlib>
#include <cstring>
#include <new>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/device/cpu/cpu_stream.h"
#include "zero3d/device/device.h"
#include "zero3d/device/parallel.h"

namespace zero3d {
namespace {

constexpr std::int64_t kCopyGrain = std::int64_t{1} << 20;

class HeapResource final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes, const char*) override {
    return ::operator new(bytes == 0 ? 64 : bytes, std::align_val_t(64));
  }
  void deallocate(void* data, std::size_t, const char*) noexcept override {
    ::operator delete(data, std::align_val_t(64));
  }
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options);

  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string description() const override { return concat("cpu of rank ", options_.rank); }
  std::unique_ptr<Stream> create_stream(const std::string& name) override;
  TrackingResource& memory() override { return memory_; }
  TrackingResource& host_memory() override { return host_memory_; }
  void copy(Stream& stream, const View& dst, const ConstView& src) override;
  void fill_zero(Stream& stream, const View& dst) override;
  ConstView host_read(const ConstView& view) override { return view; }
  View host_write(const View& view) override { return view; }

 private:
  const CpuDeviceOptions options_;
  HeapResource heap_;
  TrackingResource memory_;
  TrackingResource host_memory_;
  std::uint64_t streams_ = 0;
};

CpuDevice::CpuDevice(const CpuDeviceOptions& options)
    : options_(options),
      memory_(heap_, concat("device memory of rank ", options.rank), options.budget_bytes),
      host_memory_(heap_, concat("host memory of rank ", options.rank)) {
  if (options.threads < 1)
    throw_invalid(concat("a CPU device with ", options.threads, " threads; expected 1 or more"));
}

std::unique_ptr<Stream> CpuDevice::create_stream(const std::string& name) {
  CpuStreamOptions options{options_.rank, options_.threads, 0};
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
