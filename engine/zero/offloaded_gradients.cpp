#include "zero3d/engine/zero/offloaded_gradients.h"

#include <algorithm>

#include "zero3d/kernels/elementwise.h"

namespace zero3d {
namespace {

std::int64_t sum_count(const std::vector<RecordLayout>& records) {
  std::int64_t count = 0;
  for (const RecordLayout& unit : records) count += unit.elements() / kernels::kNormBlock;
  return count;
}

}  // namespace

std::vector<RecordLayout> OffloadedGradients::plan_records(
    const ParamLayout& layout, const std::vector<bool>& offloaded,
    const OffloadedGradientsOptions& options) {
  std::vector<RecordLayout> records(layout.units().size());
  for (std::size_t unit = 0; unit < records.size(); ++unit) {
    if (offloaded[unit])
      records[unit] =
          RecordLayout(layout.units()[unit].shard, options.tiles.record, {{options.dtype}});
  }
  return records;
}

std::int64_t OffloadedGradients::staging_bytes(const std::vector<RecordLayout>& records) {
  return static_cast<std::int64_t>(kStaged) * bytes_of(largest_record(records), DType::f32);
}

std::int64_t OffloadedGradients::square_sum_bytes(const std::vector<RecordLayout>& records) {
  return bytes_of(sum_count(records), DType::f64);
}

OffloadedGradients::OffloadedGradients(Device& device, const ParamLayout& layout,
                                       const std::vector<bool>& offloaded,
                                       const OffloadedGradientsOptions& options,
                                       const RankStreams& streams)
    : device_(device),
      offloaded_(offloaded),
      options_(options),
      copy_out_(*streams.copy_out),
      host_(*streams.host),
      records_(plan_records(layout, offloaded, options)),
      tiles_(records_.size()),
      square_sums_(records_.size()),
      summed_(records_.size()),
      sums_(device.memory(options.tier), kNoStream, DType::f64, Shape{sum_count(records_)},
            Category::norm_workspace),
      store_(options.store(device, records_)) {
  for (const Tile& tile : plan_tiles(layout, options.tiles.tile))
    if (holds(tile.unit)) tiles_[static_cast<std::size_t>(tile.unit)].push_back(tile);
  std::int64_t first = 0;
  for (std::size_t unit = 0; unit < records_.size(); ++unit) {
    const std::int64_t count = records_[unit].elements() / kernels::kNormBlock;
    square_sums_[unit] = sums_.view().flat(first, count);
    first += count;
  }
  for (Staged& staged : staged_) {
    staged.bytes = Tensor(device.memory(options.tier), kNoStream, DType::f32,
                          Shape{largest_record(records_)}, Category::gradient_buckets);
  }
}

View OffloadedGradients::open(const Tile& tile, Stream& stream, bool contents) {
  slot_ = (slot_ + 1) % store_->slots();
  Event ready;
  const View bytes = store_->open(slot_, tile, ready, contents);
  if (ready.recorded()) stream.wait(ready);
  return bytes;
}

/// All work on the tile is ordered before the host's stream.
void OffloadedGradients::close(const Tile& tile, bool changed) {
  Event used;
  host_.record(used);
  store_->close(slot_, tile, used, changed);
}

template <typename Visit>
void OffloadedGradients::for_each_record(const Tile& tile, const View& bytes,
                                         const Visit& visit) const {
  const RecordLayout& records = records_[static_cast<std::size_t>(tile.unit)];
  for (std::int64_t done = 0; done < tile.count;) {
    const std::int64_t begin = tile.begin + done;
    const std::int64_t count = records.run(begin, tile.count - done);
    visit(begin, records.view(bytes, tile.begin, 0, begin, count));
    done += count;
  }
}

Event OffloadedGradients::add(int unit, const ConstView& values, const Event& ready, bool first,
                              bool last) {
  copy_out_.wait(ready);
  for (const Tile& tile : tiles_[static_cast<std::size_t>(unit)]) {
    const View bytes = open(tile, copy_out_, !first);
    for_each_record(tile, bytes, [&](std::int64_t begin, const View& target) {
      take(values.flat(begin, target.numel()), target, first);
    });
    Event copied;
    copy_out_.record(copied);
    host_.wait(copied);
    if (last) sum_squares(tile, bytes);
    close(tile, true);
  }
  summed_[static_cast<std::size_t>(unit)] = last;
  Event taken;
  copy_out_.record(taken);
  return taken;
}

void OffloadedGradients::take(const ConstView& values, const View& target, bool first) {
  if (first) return device_.copy(copy_out_, target, values);
  Staged& staged = staged_[next_staged_];
  next_staged_ = (next_staged_ + 1) % kStaged;
  if (staged.added.recorded()) copy_out_.wait(staged.added);
  const View piece = staged.bytes.view().flat(0, values.numel());
  device_.copy(copy_out_, piece, values);
  Event copied;
  copy_out_.record(copied);
  host_.wait(copied);
  kernels::add(host_, piece, target);
  staged.added = Event();
  host_.record(staged.added);
}

void OffloadedGradients::sum_squares(const Tile& tile, const View& bytes) {
  if (!options_.square_sums) return;
  for_each_record(tile, bytes, [&](std::int64_t begin, const View& gradient) {
    kernels::square_sums(host_, gradient,
                         square_sums_[static_cast<std::size_t>(tile.unit)].flat(
                             begin / kernels::kNormBlock, gradient.numel() / kernels::kNormBlock));
  });
}

void OffloadedGradients::require_square_sums(int unit) {
  const auto index = static_cast<std::size_t>(unit);
  if (summed_[index] || !options_.square_sums) return;
  for (const Tile& tile : tiles_[index]) {
    sum_squares(tile, open(tile, host_, true));
    close(tile, false);
  }
  summed_[index] = true;
}

void OffloadedGradients::join(Stream& stream) {
  Event now;
  host_.record(now);
  stream.wait(now);
}

std::span<const double> OffloadedGradients::host_square_sums(int unit) const {
  const ConstView sums = device_.host_read(square_sums_[static_cast<std::size_t>(unit)]);
  return {sums.as<double>(), static_cast<std::size_t>(sums.numel())};
}

void OffloadedGradients::copy_square_sums(Stream& stream, int unit, const View& sums) {
  if (!options_.square_sums) return;
  device_.copy(stream, sums, square_sums_[static_cast<std::size_t>(unit)]);
}

void OffloadedGradients::copy(Stream& stream, int unit, const View& into) {
  for (const Tile& tile : tiles_[static_cast<std::size_t>(unit)]) {
    const View bytes = open(tile, stream, true);
    for_each_record(tile, bytes, [&](std::int64_t begin, const View& gradient) {
      device_.copy(stream, into.flat(begin, gradient.numel()), gradient);
    });
    Event read;
    stream.record(read);
    host_.wait(read);
    close(tile, false);
  }
}

}  // namespace zero3d
