// A device that only counts. Its memory is addresses without bytes, out of reach of any process:
// touching one is a fault at that very access.
#include <new>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/device/device.h"
#include "zero3d/device/event_state.h"

namespace zero3d {
namespace {

constexpr std::size_t kAlignment = 64;

/// Gives every allocation an address of its own.
class AddressResource final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes) override {
    const std::uintptr_t address = next_;
    next_ += (bytes / kAlignment + 1) * kAlignment;
    return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  }
  void deallocate(void*, std::size_t) noexcept override {}
  bool holds(const void* data) const {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    return address >= kFirst && address < next_;
  }

 private:
  static constexpr std::uintptr_t kFirst = std::uintptr_t{1} << 56;  // above all user addresses
  std::uintptr_t next_ = kFirst;
};

class HostResource final : public MemoryResource {
 public:
  void* allocate(std::size_t bytes) override {
    return ::operator new(bytes, std::align_val_t(kAlignment));
  }
  void deallocate(void* data, std::size_t) noexcept override {
    ::operator delete(data, std::align_val_t(kAlignment));
  }
};

class MetaStream final : public Stream {
 public:
  MetaStream(Device& device, const std::string& name, const ReadObserver& on_read)
      : Stream(device, name, DeviceKind::meta), on_read_(on_read) {}

  using Stream::host_task;
  using Stream::launch;
  void launch(std::string, std::span<const Access> accesses, std::function<void()>) override {
    if (!on_read_) return;
    for (const Access& access : accesses)
      if (!access.write) on_read_(access.data);
  }
  void host_task(std::string, std::span<const Access>, std::function<void()>) override {}
  void record(Event& event) override { event.begin_record().complete(); }
  void wait(const Event& event) override {
    if (event.recorded()) return;
    throw Error(ErrorKind::kHazard,
                concat("stream '", name(), "' waits for an event that was never recorded"));
  }
  void then(std::function<void(const std::exception_ptr&)> next) override { next(nullptr); }
  void synchronize() override {}

 private:
  const ReadObserver& on_read_;
};

class MetaDevice final : public Device {
 public:
  explicit MetaDevice(ReadObserver on_read) : on_read_(std::move(on_read)) {}

  DeviceKind kind() const override { return DeviceKind::meta; }
  std::string description() const override { return "the device of a dry run"; }
  std::unique_ptr<Stream> create_stream(const std::string& name) override {
    return std::make_unique<MetaStream>(*this, name, on_read_);
  }
  using Device::memory;
  TrackingResource& memory(Tier tier) override {
    return tier == Tier::device ? memory_ : host_memory_;
  }
  void copy(Stream&, const View& dst, const ConstView& src) override {
    if (on_read_) on_read_(src.data());
    if (dst.bytes() == src.bytes()) return;
    throw_invalid(
        concat("copy of ", src.bytes(), " bytes into ", dst.bytes(), "; expected equal sizes"));
  }
  void fill_zero(Stream&, const View&) override {}
  ConstView host_read(const ConstView& view) override {
    require_host(view);
    return view;
  }
  View host_write(const View& view) override {
    require_host(view);
    return view;
  }
  void declare(const std::string&, std::span<const Access>, std::span<const Event>,
               Event&) override {}

 private:
  void require_host(const ConstView& view) const {
    if (!addresses_.holds(view.data())) return;
    throw_invalid(
        "a dry run has no values to read: the engine runs every block once on a device that only "
        "counts memory, so forward and backward may only enqueue work and must not look at its "
        "results on the host");
  }

  const ReadObserver on_read_;
  AddressResource addresses_;
  HostResource host_;
  TrackingResource memory_{addresses_, "memory of a dry run"};
  TrackingResource host_memory_{host_, "host memory of a dry run"};
};

}  // namespace

std::unique_ptr<Device> make_meta_device(ReadObserver on_read) {
  return std::make_unique<MetaDevice>(std::move(on_read));
}

}  // namespace zero3d
