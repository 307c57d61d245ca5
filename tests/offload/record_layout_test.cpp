// How records lie, and where the arrays of an update begin.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "zero3d/device/device.h"
#include "zero3d/offload/record_layout.h"
#include "zero3d/offload/stagger.h"

namespace zero3d {
namespace {

TEST(RecordLayout, ATileIsOneRangeOfWholePagesAndNothingOverlaps) {
  std::mt19937 random(2);
  const DType dtypes[] = {DType::f32, DType::bf16};
  for (int trial = 0; trial < 200; ++trial) {
    const std::int64_t elements = 1024 * (1 + random() % 300);
    const std::int64_t record = 1024 * (1 + random() % 80);
    std::vector<RecordPart> parts(1 + random() % 4);
    for (RecordPart& part : parts) part.dtype = dtypes[random() % 2];
    const RecordLayout layout(elements, record, parts);
    std::vector<std::byte> memory(static_cast<std::size_t>(layout.bytes()));
    const View all(memory.data(), DType::u8, Shape{layout.bytes()});
    std::set<const std::byte*> seen;
    std::int64_t payload = 0;
    for (std::int64_t begin = 0; begin < elements;) {
      const std::int64_t count = layout.run(begin, elements - begin);
      EXPECT_EQ(begin % record, 0);
      const std::int64_t from = layout.offset(begin), to = layout.offset(begin + count);
      EXPECT_EQ(from % RecordLayout::kAlignment, 0);
      EXPECT_EQ(to % RecordLayout::kAlignment, 0);
      const View bytes = all.flat(from, to - from);
      const std::byte* last = bytes.data();
      std::set<std::ptrdiff_t> bases;
      for (std::size_t part = 0; part < parts.size(); ++part) {
        const View view = layout.view(bytes, begin, part, begin, count);
        if (static_cast<std::int64_t>(view.bytes()) >= Stagger::kSmall) {
          EXPECT_TRUE(bases.insert((view.data() - bytes.data()) % Stagger::kPage).second)
              << "two parts of a record begin at the same place of a page";
        }
        EXPECT_EQ(view.numel(), count);
        EXPECT_EQ(view.dtype(), parts[part].dtype);
        EXPECT_EQ((view.data() - all.data()) % 64, 0);
        EXPECT_GE(view.data(), last);
        last = view.data() + view.bytes();
        EXPECT_LE(last, bytes.data() + bytes.bytes());
        payload += static_cast<std::int64_t>(view.bytes());
        const View inner = layout.view(all, 0, part, begin + count / 2, count - count / 2);
        EXPECT_EQ(inner.data(), view.flat(count / 2, count - count / 2).data());
      }
      begin += count;
    }
    EXPECT_LE(payload, layout.bytes());
    const std::int64_t records = (elements + record - 1) / record;
    EXPECT_LE(layout.bytes(), payload + records * std::ssize(parts) * 3 * Stagger::kPage);
  }
  EXPECT_EQ(RecordLayout().bytes(), 0);
}

TEST(Stagger, NoTwoArraysBeginAtTheSamePlaceOfAPageWhereverTheyAreAllocated) {
  const std::unique_ptr<Device> device = make_cpu_device({});
  for (const std::int64_t elements : {1 << 14, 1 << 17, 1 << 18, 1 << 22}) {
    std::vector<StaggeredTensor> arrays;
    std::set<std::intptr_t> places, pages;
    for (int colour = 0; colour < 6; ++colour) {
      const std::int64_t before = device->memory().use().current;
      const StaggeredTensor& array = arrays.emplace_back(device->memory(), DType::f32, elements,
                                                         Category::other, ArrayColour{colour});
      EXPECT_EQ(array.numel(), elements);
      EXPECT_EQ(device->memory().use().current - before,
                4 * elements + Stagger::slack(4 * elements));
      const auto base = reinterpret_cast<std::intptr_t>(array.view().data());
      EXPECT_EQ(base % 64, 0);
      places.insert(base % Stagger::kPage);
      pages.insert(base % Stagger::kPeriod / Stagger::kPage);
    }
    EXPECT_EQ(places.size(), 6u) << elements;
    if (4 * elements >= Stagger::kLarge) {
      EXPECT_EQ(pages.size(), 6u) << elements;
    }
  }
  const StaggeredTensor small(device->memory(), DType::f32, 1024, Category::other,
                              ArrayColour::gradient);
  EXPECT_EQ(Stagger::slack(4096), 0);
  EXPECT_EQ(small.numel(), 1024);
}

}  // namespace
}  // namespace zero3d
