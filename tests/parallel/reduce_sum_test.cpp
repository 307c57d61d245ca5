// The arithmetic of reductions on every instruction set of this machine, tails and all, against the
// scalar formula.
#include "zero3d/parallel/comm/reduce_sum.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cstring>

#include "zero3d/tests/contract/communicator_data.h"

namespace zero3d {
namespace {

using contract::Data;
using contract::reduced_bits;

/// Runs `body` once per instruction set that both the build and the machine have.
void on_each_target(const std::function<void(const char*)>& body) {
  const std::int64_t all = hwy::SupportedTargets();
  int count = 0;
  for (std::int64_t target = 1; target != 0 && target <= all; target <<= 1) {
    if ((all & target & HWY_TARGETS) == 0) continue;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body(hwy::TargetName(target));
    ++count;
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  EXPECT_GE(count, 1);
}

std::vector<std::byte> values(DType dtype, int rank, std::int64_t count) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size_of(dtype));
  for (std::int64_t i = 0; i < count; ++i)
    Data::store(bytes.data(), dtype, i, contract::value_of(rank, i));
  return bytes;
}

TEST(ReduceSum, EveryInstructionSetGivesTheScalarBits) {
  on_each_target([](const char* target) {
    for (const DType in : contract::float_dtypes())
      for (const DType out : contract::float_dtypes())
        for (const int ranks : {1, 2, 5})
          for (const std::int64_t count : {0, 1, 15, 16, 63, 64, 65, 131, 1021})
            for (const ReduceOptions& options : contract::reduce_cases()) {
              std::vector<std::vector<std::byte>> inputs;
              std::vector<const void*> pointers;
              for (int r = 0; r < ranks; ++r) inputs.push_back(values(in, r, count));
              for (const auto& input : inputs) pointers.push_back(input.data());
              // One element more than is written, to see a store past the end.
              std::vector<std::byte> sums = values(out, 99, count + 1);
              detail::reduce_sum(pointers, in, sums.data(), out, count, options);
              for (std::int64_t i = 0; i < count; ++i)
                ASSERT_EQ(Data::load_bits(sums.data(), out, i),
                          reduced_bits(ranks, i, in, out, options))
                    << target << " " << name_of(in) << " to " << name_of(out) << ", element " << i
                    << " of " << count << ", " << contract::show(options);
              ASSERT_EQ(Data::load_bits(sums.data(), out, count),
                        contract::bits_of(out, contract::value_of(99, count)));
            }
  });
}

TEST(ReduceSum, OneInputWithoutScalesKeepsEveryHalfPattern) {
  on_each_target([](const char* target) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      std::vector<std::uint16_t> in(65536), out(65536);
      for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::uint16_t>(i);
      const void* pointer = in.data();
      detail::reduce_sum({&pointer, 1}, dtype, out.data(), dtype, 65536, {});
      for (std::size_t i = 0; i < in.size(); ++i) {
        if (contract::is_nan_bits(dtype, in[i])) {
          ASSERT_TRUE(contract::is_nan_bits(dtype, out[i])) << target << " " << i;
        } else {
          ASSERT_EQ(out[i], in[i]) << target << " " << name_of(dtype);
        }
      }
    }
  });
}

}  // namespace
}  // namespace zero3d
