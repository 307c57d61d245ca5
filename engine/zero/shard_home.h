// Where this rank's shards lie between their uses when that is not the device: in host memory, or
// on drives (offload/nvme_arrays). A shard is copied to the device when a gather asks for it, and
// back when it is updated, on the streams "copy in" and "copy out"; the host waits for neither.
// What lies where is decided before the run, by a pure function.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "zero3d/device/device.h"
#include "zero3d/engine/rank_streams.h"
#include "zero3d/engine/zero/layout.h"
#include "zero3d/offload/nvme_arrays.h"
#include "zero3d/offload/offload_settings.h"
#include "zero3d/offload/stagger.h"

namespace zero3d {

struct ShardHomeOptions {
  ParameterOffload to;
  IoOptions io;
  bool checksums = false;

  bool on() const { return to.on(); }
};

enum class ShardPlace { device, host, drive };

struct ShardPlan {
  std::vector<ShardPlace> places;  ///< By unit.
  std::int64_t buffer_bytes = 0;   ///< Of one buffer, whole pages; 0: no unit lies on a drive.

  ShardPlace place(int unit) const { return places[static_cast<std::size_t>(unit)]; }
};

/// With nvme, units stay in host memory in forward order while the elements of their shards are
/// within max_in_cpu; one that does not fit is passed over. Throws Error(kInvalid) for settings out
/// of their range.
ShardPlan plan_shards(const ParamLayout& layout, const ParameterOffload& offload, DType dtype);

class ShardHome {
 public:
  /// Everything referred to must outlive this; the streams must be those of a rank that offloads,
  /// and their work over when it goes.
  ShardHome(Device& device, const ParamLayout& layout, const ShardHomeOptions& options, DType dtype,
            const RankStreams& streams);

  /// The shard of a unit in host memory; throws Error(kInvalid) where that is on a drive.
  View memory(int unit) const;
  /// Enqueues target = the elements of the unit's shard from `begin` on, on "copy in", after
  /// `updated`, if recorded, and all write() so far. The target is host or device memory.
  void read(int unit, std::int64_t begin, const View& target, const Event& updated);
  /// Elements [begin, begin + numel) of the shard become `values`, host or device memory, once
  /// `ready` is passed: the reads so far are over then. Returns the point from which `values` may
  /// change, and where a shard in memory has them.
  Event write(int unit, std::int64_t begin, const ConstView& values, const Event& ready);
  /// Blocks the host until reads are done, and drives have all that was written; throws the first
  /// error. For shards in memory the caller waits for what write() returned.
  void synchronize();
  IoCounters counters() const { return drives_ ? drives_->counters() : IoCounters{}; }

 private:
  Device& device_;
  const DType dtype_;
  Stream* in_;
  Stream* out_;
  const ShardPlan plan_;
  std::vector<StaggeredTensor> memory_;  ///< By unit; undefined: on a drive.
  std::unique_ptr<NvmeArrays> drives_;   ///< Null: no unit is there.
};

}  // namespace zero3d
