#include "zero3d/engine/kept_inputs.h"

#include <limits>
#include <utility>

#include "zero3d/core/error.h"

namespace zero3d {
namespace {

/// Of the shape and dtype of each of `values`; what is undefined stays so.
Values allocate_like(const Values& values, TrackingResource& memory, const Stream& order) {
  Values made;
  for (const Tensor& value : values) {
    Tensor& tensor = made.emplace_back();
    if (value.defined())
      tensor = Tensor(memory, order, value.dtype(), value.shape(), Category::activations);
  }
  return made;
}

void enqueue_copies(Device& device, Stream& stream, const Values& from, const Values& to) {
  for (std::size_t i = 0; i < from.size(); ++i)
    if (from[i].defined()) device.copy(stream, to[i], from[i]);
}

void mark_used(Values& values, const Event& until) {
  for (Tensor& value : values)
    if (value.defined()) value.used_on(until);
}

/// `stream` waits for what `other` has been given so far.
void follow(Stream& stream, Stream& other) {
  Event here;
  other.record(here);
  stream.wait(here);
}

}  // namespace

KeptInputs::~KeptInputs() {
  while (!entries_.empty()) drop(entries_.begin()->first.first);
}

void KeptInputs::keep(int block, int micro_batch, const Values& values, bool on_host) {
  ZERO3D_CHECK(!on_host || host_.copy_out != nullptr, "inputs kept on the host have streams there");
  Entry entry;
  for (const Tensor& value : values) {
    Tensor& kept = entry.on_device.emplace_back();
    entry.shapes.push_back(value.defined() ? value.shape() : Shape());
    if (!value.defined()) continue;
    ConstView part = value.view();
    if (divides(value.shape())) {
      const std::int64_t elements = value.numel() / tp_.size();
      part = part.flat(tp_.rank() * elements, elements);
    }
    kept = Tensor(device_.memory(), compute_, value.dtype(), part.shape(), Category::activations);
    device_.copy(compute_, kept, part);
  }
  if (on_host) move_out(entry);
  entries_.insert_or_assign({micro_batch, block}, std::move(entry));
}

/// The device's copy is free for others as soon as the host has it.
void KeptInputs::move_out(Entry& entry) {
  entry.on_host = allocate_like(entry.on_device, *host_.memory, *host_.copy_out);
  follow(*host_.copy_out, compute_);
  enqueue_copies(device_, *host_.copy_out, entry.on_device, entry.on_host);
  host_.copy_out->record(entry.copied);
  mark_used(entry.on_device, entry.copied);
  entry.on_device.clear();
}

void KeptInputs::fetch(int block, int micro_batch) {
  Entry& entry = entry_of(block, micro_batch);
  entry.on_device = allocate_like(entry.on_host, device_.memory(), compute_);
  follow(*host_.copy_in, compute_);  // the bytes may have had another use there
  host_.copy_in->wait(entry.copied);
  enqueue_copies(device_, *host_.copy_in, entry.on_host, entry.on_device);
  host_.copy_in->record(entry.copied);
  mark_used(entry.on_host, entry.copied);
  entry.on_host.clear();
}

bool KeptInputs::has(int block, int micro_batch) const {
  return entries_.contains({micro_batch, block});
}

Values KeptInputs::take(int block, int micro_batch) {
  Entry& entry = entry_of(block, micro_batch);
  ZERO3D_CHECK(entry.on_host.empty(), "kept inputs are fetched before they are used");
  if (entry.copied.recorded()) compute_.wait(entry.copied);
  Values values = std::move(entry.on_device);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i].defined() && divides(entry.shapes[i]))
      values[i] = join(std::move(values[i]), entry.shapes[i]);
  entries_.erase({micro_batch, block});
  return values;
}

/// The whole of what ranks kept parts of.
Tensor KeptInputs::join(Tensor part, const Shape& shape) const {
  Tensor whole(device_.memory(), compute_, part.dtype(), shape, Category::activations);
  tp_.all_gather(compute_, part, whole);
  Event joined;
  compute_.record(joined);
  part.used_on(joined);  // the others read it until then
  return whole;
}

void KeptInputs::drop(int micro_batch) {
  const auto begin = entries_.lower_bound({micro_batch, std::numeric_limits<int>::min()});
  const auto end = entries_.upper_bound({micro_batch, std::numeric_limits<int>::max()});
  for (auto entry = begin; entry != end; ++entry) {
    // Fetched and not taken: compute has not waited for the copy.
    if (entry->second.copied.recorded()) mark_used(entry->second.on_device, entry->second.copied);
  }
  entries_.erase(begin, end);
}

KeptInputs::Entry& KeptInputs::entry_of(int block, int micro_batch) {
  const auto found = entries_.find({micro_batch, block});
  ZERO3D_CHECK(found != entries_.end(), "inputs of a block that keeps none");
  return found->second;
}

}  // namespace zero3d
