// Inputs of blocks that are to be computed again, from their forward to that: copies on the device,
// or in pinned host memory, where streams of their own bring them to and from beside the work of
// the compute stream. Order is by events alone; the host waits for nothing.
#pragma once

#include <map>
#include <utility>

#include "zero3d/device/device.h"
#include "zero3d/engine/module.h"

namespace zero3d {

/// Where kept inputs wait off the device. All null: nowhere.
struct HostTier {
  TrackingResource* memory = nullptr;
  Stream* copy_in = nullptr;   ///< To the device.
  Stream* copy_out = nullptr;  ///< From it.
};

class KeptInputs {
 public:
  /// Where `tp` are several, each of those ranks keeps an equal part of every input, which all of
  /// them hold alike, as far as it has equal parts.
  KeptInputs(Device& device, Stream& compute, const HostTier& host, const TensorParallel& tp = {})
      : device_(device), compute_(compute), host_(host), tp_(tp) {}
  ~KeptInputs();
  KeptInputs(const KeptInputs&) = delete;
  KeptInputs& operator=(const KeptInputs&) = delete;

  /// A copy as `compute` sees `values` now: blocks may write over their inputs. What was kept there
  /// before is gone.
  void keep(int block, int micro_batch, const Values& values, bool on_host);
  /// Begins to bring back what is on the host, once `compute` has come here; its host memory is
  /// given up.
  void fetch(int block, int micro_batch);
  bool has(int block, int micro_batch) const;
  /// On the device, for `compute`, which waits for the fetch.
  Values take(int block, int micro_batch);
  /// Whatever the micro-batch still keeps is gone.
  void drop(int micro_batch);

 private:
  struct Entry {
    std::vector<Shape> shapes;  ///< Of the whole inputs.
    Values on_device;
    Values on_host;
    Event copied;  ///< The last copy between the two, if there was one.
  };
  using Key = std::pair<int, int>;  // micro-batch, block

  bool divides(const Shape& shape) const {
    return !tp_.alone() && !tp_.splits_sequence() && shape.numel() % tp_.size() == 0;
  }
  Tensor join(Tensor part, const Shape& shape) const;
  void move_out(Entry& entry);
  Entry& entry_of(int block, int micro_batch);

  Device& device_;
  Stream& compute_;
  HostTier host_;
  TensorParallel tp_;
  std::map<Key, Entry> entries_;
};

}  // namespace zero3d
