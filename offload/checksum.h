// Checksums of the pages of a file, to find out what a drive or the way to it has changed.
#pragma once

#include <cstdint>

#include "zero3d/core/view.h"

namespace zero3d {

/// Of each page (4,096 bytes; the last may be shorter) of `bytes`, which lie at `offset` of their
/// file: depends on that too, so that a page in the wrong place is found. Never 0. Any change
/// within one aligned word of 8 bytes changes it; others go unseen once in 2^64.
void checksum_pages(const ConstView& bytes, std::int64_t offset, std::uint64_t* sums);
/// The offset of the first page that does not have its checksum, -1 if all do; a checksum of 0 is
/// of a page never written, which may hold anything.
std::int64_t first_damaged_page(const ConstView& bytes, std::int64_t offset,
                                const std::uint64_t* sums);

}  // namespace zero3d
