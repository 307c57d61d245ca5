#include "timed_device.h"

#include <chrono>
#include <thread>

namespace zero3d::bench {
namespace {

class TimedDevice final : public Device {
 public:
  TimedDevice(std::unique_ptr<Device> inner, double rate) : inner_(std::move(inner)), rate_(rate) {}

  DeviceKind kind() const override { return inner_->kind(); }
  std::string description() const override { return inner_->description(); }
  std::unique_ptr<Stream> create_stream(const std::string& name) override {
    return inner_->create_stream(name);
  }
  using Device::memory;
  TrackingResource& memory(Tier tier) override { return inner_->memory(tier); }
  void copy(Stream& stream, const View& dst, const ConstView& src) override {
    const CopiedBytes before = copied();
    inner_->copy(stream, dst, src);
    const CopiedBytes after = copied();
    const std::int64_t bytes = after.to_device + after.to_host - before.to_device - before.to_host;
    if (bytes == 0) return;
    const std::chrono::duration<double> time(static_cast<double>(bytes) / rate_);
    stream.host_task("link", {}, [time] { std::this_thread::sleep_for(time); });
  }
  CopiedBytes copied() const override { return inner_->copied(); }
  void fill_zero(Stream& stream, const View& dst) override { inner_->fill_zero(stream, dst); }
  ConstView host_read(const ConstView& view) override { return inner_->host_read(view); }
  View host_write(const View& view) override { return inner_->host_write(view); }
  void declare(const std::string& what, std::span<const Access> accesses,
               std::span<const Event> after, Event& done) override {
    inner_->declare(what, accesses, after, done);
  }

 private:
  const std::unique_ptr<Device> inner_;
  const double rate_;
};

}  // namespace

std::unique_ptr<Device> make_timed_device(std::unique_ptr<Device> inner, double bytes_per_second) {
  return std::make_unique<TimedDevice>(std::move(inner), bytes_per_second);
}

}  // namespace zero3d::bench
