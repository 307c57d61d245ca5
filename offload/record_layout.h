// How the optimizer's state of one unit lies in memory: records of a few thousand elements, one
// after another, each holding its elements' master (where there is one), states and workspace side
// by side, staggered (stagger.h). A tile of whole records is one contiguous range of bytes
// that starts and ends at a multiple of 4 KiB: one transfer, whatever tier it is moved to.
#pragma once

#include <cstdint>
#include <vector>

#include "zero3d/core/view.h"

namespace zero3d {

/// A run of one unit's shard that is updated together.
struct Tile {
  int unit = 0;
  std::int64_t begin = 0;  ///< A multiple of the unit's record, in elements.
  std::int64_t count = 0;  ///< Likewise, or up to the end of the shard.
};

/// What a record holds per element.
struct RecordPart {
  DType dtype = DType::f32;
  float initial = 0;  ///< Every element's value before the first update.
};

class RecordLayout {
 public:
  static constexpr std::int64_t kAlignment = 4096;  ///< Bytes; of records.

  RecordLayout() = default;  ///< No elements, no bytes.
  /// `elements` of the shard, in records of `record_elements`, both multiples of 1,024; the last
  /// record may be shorter.
  RecordLayout(std::int64_t elements, std::int64_t record_elements, std::vector<RecordPart> parts);

  std::int64_t elements() const { return elements_; }
  std::int64_t record_elements() const { return record_elements_; }
  const std::vector<RecordPart>& parts() const { return parts_; }
  std::int64_t bytes() const { return offset(elements_); }
  /// The first byte of the record that begins with this element; bytes() for elements().
  std::int64_t offset(std::int64_t element) const;
  /// Of a part, from the first byte of a record of `count` elements.
  std::int64_t part_offset(std::size_t part, std::int64_t count) const;

  /// The longest run from `element` on, of at most `limit` elements, that lies in one record.
  std::int64_t run(std::int64_t element, std::int64_t limit) const;
  /// Elements [begin, begin + count) of a part, which lie in one record; `bytes` are a tile's
  /// records, of which the first begins with element `first`.
  View view(const View& bytes, std::int64_t first, std::size_t part, std::int64_t begin,
            std::int64_t count) const;

 private:
  std::int64_t part_bytes(std::size_t part, std::int64_t count) const;
  std::int64_t record_bytes(std::int64_t count) const;

  std::int64_t elements_ = 0;
  std::int64_t record_elements_ = 1;
  std::vector<RecordPart> parts_;
};

/// Elements of the largest record.
std::int64_t largest_record(const std::vector<RecordLayout>& units);

}  // namespace zero3d
