#include "zero3d/engine/zero/shard_home.h"

#include <algorithm>

#include "zero3d/core/error.h"
#include "zero3d/core/multiples.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

void check(const ParameterOffload& offload) {
  const auto refuse = [](const char* key, auto found, const char* expected) {
    throw_invalid(concat("offload_param.", key, " is ", found, "; expected ", expected));
  };
  constexpr int kMostBuffers = 65536;
  if (offload.buffer_count < 1 || offload.buffer_count > kMostBuffers)
    refuse("buffer_count", offload.buffer_count, "1 to 65536");
  if (offload.buffer_elements < 1) refuse("buffer_size", offload.buffer_elements, "1 or more");
  if (offload.max_in_cpu < 0) refuse("max_in_cpu", offload.max_in_cpu, "0 or more");
}

}  // namespace

ShardPlan plan_shards(const ParamLayout& layout, const ParameterOffload& offload, DType dtype) {
  ShardPlan plan;
  plan.places.assign(layout.units().size(), offload.on() ? ShardPlace::host : ShardPlace::device);
  if (offload.device != OffloadDevice::nvme) return plan;
  check(offload);
  std::int64_t room = offload.max_in_cpu;
  std::int64_t largest = 0;
  for (int index = 0; index < layout.unit_count(); ++index) {
    const std::int64_t shard = layout.unit(index).shard;
    if (shard <= room) {
      room -= shard;
      continue;
    }
    plan.places[static_cast<std::size_t>(index)] = ShardPlace::drive;
    largest = std::max(largest, shard);
  }
  plan.buffer_bytes =
      round_up(bytes_of(std::min(offload.buffer_elements, largest), dtype), IoTransfer::kPage);
  return plan;
}

ShardHome::ShardHome(Device& device, const ParamLayout& layout, const ShardHomeOptions& options,
                     DType dtype, const RankStreams& streams)
    : device_(device),
      dtype_(dtype),
      in_(streams.copy_in.get()),
      out_(streams.copy_out.get()),
      plan_(plan_shards(layout, options.to, dtype)),
      memory_(layout.units().size()) {
  ZERO3D_CHECK(in_ != nullptr && out_ != nullptr, "the streams of a rank that offloads");
  std::vector<std::int64_t> on_drives;
  for (int index = 0; index < layout.unit_count(); ++index) {
    const std::int64_t shard = layout.unit(index).shard;
    const bool in_memory = plan_.place(index) == ShardPlace::host;
    if (in_memory)
      memory_[static_cast<std::size_t>(index)] =
          StaggeredTensor(device.memory(options.to.tier()), dtype, shard, Category::parameters,
                          ArrayColour::parameter);
    on_drives.push_back(in_memory ? 0 : bytes_of(shard, dtype));
  }
  if (plan_.buffer_bytes == 0) return;
  NvmeArraysOptions drives;
  drives.name = "parameters";
  drives.paths = options.to.paths;
  drives.buffer_count = options.to.buffer_count;
  drives.buffer_bytes = plan_.buffer_bytes;
  drives.checksums = options.checksums;
  drives.io = options.io;
  drives_ = std::make_unique<NvmeArrays>(device, on_drives, drives, *in_, *out_);
}

View ShardHome::memory(int unit) const {
  if (plan_.place(unit) == ShardPlace::drive)
    throw_invalid(
        concat("the shard of unit ", unit, " lies on a drive; update it by update_shard()"));
  return memory_[static_cast<std::size_t>(unit)].view();
}

void ShardHome::read(int unit, std::int64_t begin, const View& target, const Event& updated) {
  if (plan_.place(unit) == ShardPlace::drive)
    return drives_->read(unit, bytes_of(begin, dtype_), target);
  if (updated.recorded()) in_->wait(updated);
  device_.copy(*in_, target, memory(unit).flat(begin, target.numel()));
}

Event ShardHome::write(int unit, std::int64_t begin, const ConstView& values, const Event& ready) {
  if (plan_.place(unit) == ShardPlace::drive)
    return drives_->write(unit, bytes_of(begin, dtype_), values, ready);
  out_->wait(ready);
  device_.copy(*out_, memory(unit).flat(begin, values.numel()), values);
  Event copied;
  out_->record(copied);
  return copied;
}

void ShardHome::synchronize() {
  in_->synchronize();
  if (drives_ != nullptr) drives_->finish();
}

}  // namespace zero3d
