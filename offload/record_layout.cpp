#include "zero3d/offload/record_layout.h"

#include <algorithm>

#include "zero3d/core/multiples.h"
#include "zero3d/offload/stagger.h"

namespace zero3d {

RecordLayout::RecordLayout(std::int64_t elements, std::int64_t record_elements,
                           std::vector<RecordPart> parts)
    : elements_(elements), record_elements_(record_elements), parts_(std::move(parts)) {}

std::int64_t RecordLayout::part_bytes(std::size_t part, std::int64_t count) const {
  return bytes_of(count, parts_[part].dtype);
}

std::int64_t RecordLayout::part_offset(std::size_t part, std::int64_t count) const {
  std::int64_t offset = 0;
  for (std::size_t i = 1; i <= part; ++i) {
    offset += part_bytes(i - 1, count);
    offset = Stagger::place(offset, part_bytes(i, count), static_cast<int>(i));
  }
  return offset;
}

std::int64_t RecordLayout::record_bytes(std::int64_t count) const {
  if (parts_.empty() || count == 0) return 0;
  const std::size_t last = parts_.size() - 1;
  return round_up(part_offset(last, count) + part_bytes(last, count), kAlignment);
}

std::int64_t RecordLayout::offset(std::int64_t element) const {
  const std::int64_t rest = element % record_elements_;
  return element / record_elements_ * record_bytes(record_elements_) + record_bytes(rest);
}

std::int64_t RecordLayout::run(std::int64_t element, std::int64_t limit) const {
  return std::min(limit, record_elements_ - element % record_elements_);
}

View RecordLayout::view(const View& bytes, std::int64_t first, std::size_t part, std::int64_t begin,
                        std::int64_t count) const {
  const std::int64_t record = begin / record_elements_ * record_elements_;
  const std::int64_t held = std::min(record_elements_, elements_ - record);
  ZERO3D_CHECK(begin >= first && begin + count <= record + held, "a run within one record");
  const RecordPart& entry = parts_[part];
  const std::int64_t size = bytes_of(1, entry.dtype);
  const std::int64_t at =
      offset(record) - offset(first) + part_offset(part, held) + (begin - record) * size;
  return View(bytes.flat(at, count * size).data(), entry.dtype, Shape{count});
}

std::int64_t largest_record(const std::vector<RecordLayout>& units) {
  std::int64_t largest = 0;
  for (const RecordLayout& unit : units)
    largest = std::max(largest, std::min(unit.elements(), unit.record_elements()));
  return largest;
}

}  // namespace zero3d
