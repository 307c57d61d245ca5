// Every instruction set gives the bits of the scalar path, whatever the size, alignment and dtypes,
// and writes nothing outside its range; one that the CPU lacks is an error.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>

#include "zero3d/core/error.h"
#include "zero3d/kernels/cpu/optimizer.h"
#include "zero3d/kernels/isa.h"
#include "zero3d/tests/kernels/kit.h"

namespace zero3d::kernels {
namespace {

using cpu::UpdateLoops;

constexpr std::int64_t kSizes[] = {0,  1,  3,  7,  8,  9,   15,  16,  17,
                                   31, 32, 33, 63, 65, 511, 512, 513, 1027};
constexpr std::int64_t kGuard = 64;
constexpr std::byte kGuardByte{0xA5};

/// An array between guard bytes, beginning `offset` bytes after an aligned address.
class Guarded {
 public:
  Guarded(DType dtype, std::int64_t count, std::int64_t offset, const std::vector<float>& values)
      : bytes_(static_cast<std::size_t>(2 * kGuard + offset + count * 4 + 64), kGuardByte),
        used_(static_cast<std::size_t>(count) * size_of(dtype)) {
    const auto base = reinterpret_cast<std::uintptr_t>(bytes_.data());
    begin_ =
        static_cast<std::size_t>((64 - base % 64) % 64) + kGuard + static_cast<std::size_t>(offset);
    view_ = View(bytes_.data() + begin_, dtype, Shape{count});
    for (std::int64_t i = 0; i < count; ++i)
      test::write_element(view_.data(), dtype, i, values[static_cast<std::size_t>(i)]);
  }
  Array array() const { return {view_.data(), view_.dtype()}; }
  std::vector<std::byte> contents() const { return {view_.data(), view_.data() + used_}; }
  bool guards_intact() const {
    for (std::size_t i = 0; i < bytes_.size(); ++i)
      if ((i < begin_ || i >= begin_ + used_) && bytes_[i] != kGuardByte) return false;
    return true;
  }
  double at(std::int64_t i) const { return test::read_element(view_.data(), view_.dtype(), i); }

 private:
  std::vector<std::byte> bytes_;
  std::size_t used_;
  std::size_t begin_ = 0;
  View view_;
};

struct Case {
  std::int64_t count = 0, offset = 0;
  DType master = DType::f32, gradient = DType::f32, state = DType::f32;
  std::optional<DType> copy;
};

std::vector<float> normal_values(std::uint64_t count) {
  std::vector<float> values;
  for (std::uint64_t i = 0; i < count; ++i) values.push_back(random_normal(1, 1, i));
  return values;
}

/// Values that meet every rounding: normal ones, subnormals of each dtype, zeros, and what
/// overflows fp16.
std::vector<float> values_for(std::int64_t count, unsigned seed) {
  static const std::vector<float> normal = normal_values(8 * 1027);
  const auto from = normal.begin() + static_cast<std::ptrdiff_t>(seed * 1027);
  std::vector<float> values(from, from + count);
  const float special[] = {0.0f, -0.0f, 1e-41f, -3e-8f, 6e-5f, 70000.0f, -1e-20f, 1.00390625f};
  for (std::int64_t i = 0; i < count; i += 5)
    values[static_cast<std::size_t>(i)] = special[static_cast<std::size_t>(i / 5) % 8];
  return values;
}

struct Subject {
  explicit Subject(const Case& c)
      : master(c.master, c.count, c.offset, values_for(c.count, 1)),
        gradient(c.gradient, c.count, c.offset, values_for(c.count, 2)),
        copy(c.copy.value_or(DType::f32), c.copy ? c.count : 0, c.offset,
             values_for(c.copy ? c.count : 0, 3)) {
    for (unsigned s = 0; s < 3; ++s) {
      std::vector<float> values = values_for(c.count, 4 + s);
      for (float& value : values) value = std::abs(value);
      states.emplace_back(c.state, c.count, c.offset, values);
    }
    arrays.master = master.array();
    arrays.gradient = gradient.array();
    for (std::size_t s = 0; s < 3; ++s) arrays.states[s] = states[s].array();
    if (c.copy) arrays.copy = copy.array();
  }
  std::vector<std::vector<std::byte>> contents() const {
    return {master.contents(),    gradient.contents(),  copy.contents(),
            states[0].contents(), states[1].contents(), states[2].contents()};
  }
  bool guards_intact() const {
    return master.guards_intact() && gradient.guards_intact() && copy.guards_intact() &&
           states[0].guards_intact() && states[1].guards_intact() && states[2].guards_intact();
  }

  Guarded master, gradient, copy;
  std::vector<Guarded> states;
  ElementArrays arrays;
};

using Run =
    std::function<void(const UpdateLoops&, const ElementArrays&, std::int64_t, std::int64_t)>;

/// Every rule's loop, with constants of a plausible step.
std::vector<std::pair<const char*, Run>> all_rules() {
  const AdamConstants adam = {0.73f, 0.1f, 0.001f, 9.3f, 1e-8f, 3e-3f, 1e-4f, true};
  const LionConstants lion = {0.73f, 0.1f, 0.01f, 1e-3f, 1e-4f};
  const AdagradConstants adagrad = {0.73f, 1e-2f, 1e-10f, 0.01f};
  const SgdConstants sgd = {0.73f, 0.1f, 0.01f, 0.9f, 0.8f, true, true};
  const RmspropConstants rmsprop = {0.73f, 1e-2f, 0.01f, 1e-8f, 0.01f, 0.9f, true, true};
  const LambConstants lamb = {0.73f, 0.1f, 0.001f, 1e-8f, 0.01f, true};
  const DescentConstants descent = {0.02f, 1e-3f};
  const BlendConstants blend = {0.73f, 0.95f, 0.05f};
#define ZERO3D_RUN(loop, constants)                                                       \
  {                                                                                       \
#loop, [=](const UpdateLoops& table, const ElementArrays& arrays, std::int64_t begin, \
               std::int64_t end) { table.loop(constants, arrays, begin, end); }           \
  }
  return {ZERO3D_RUN(adam_decoupled, adam),
          ZERO3D_RUN(adam_classic, adam),
          ZERO3D_RUN(lion, lion),
          ZERO3D_RUN(adagrad, adagrad),
          ZERO3D_RUN(sgd, sgd),
          ZERO3D_RUN(sgd_momentum, sgd),
          ZERO3D_RUN(rmsprop, rmsprop),
          ZERO3D_RUN(rmsprop_momentum, rmsprop),
          ZERO3D_RUN(rmsprop_centered, rmsprop),
          ZERO3D_RUN(rmsprop_centered_momentum, rmsprop),
          ZERO3D_RUN(lamb, lamb),
          ZERO3D_RUN(descent, descent),
          ZERO3D_RUN(blend, blend)};
#undef ZERO3D_RUN
}

std::vector<Case> dtype_cases() {
  std::vector<Case> cases;
  for (const DType gradient : {DType::f32, DType::bf16, DType::f16})
    for (const std::optional<DType> copy : {std::optional<DType>(), std::optional(DType::bf16),
                                            std::optional(DType::f16), std::optional(DType::f32)})
      cases.push_back({.gradient = gradient, .copy = copy});
  cases.push_back({.state = DType::bf16});
  cases.push_back(
      {.master = DType::bf16, .gradient = DType::bf16, .state = DType::bf16, .copy = DType::bf16});
  cases.push_back({.master = DType::f16, .gradient = DType::f16, .copy = DType::f16});
  return cases;
}

void expect_same_as_scalar(Isa isa, const char* rule, const Run& run, const Case& c) {
  Subject expected(c), found(c);
  run(cpu::update_loops(Isa::scalar), expected.arrays, 0, c.count);
  run(cpu::update_loops(isa), found.arrays, 0, c.count);
  EXPECT_EQ(expected.contents(), found.contents())
      << rule << " by " << name_of(isa) << ", " << c.count << " elements at offset " << c.offset
      << ", master " << name_of(c.master) << ", gradient " << name_of(c.gradient) << ", states "
      << name_of(c.state);
  EXPECT_TRUE(found.guards_intact()) << rule << " by " << name_of(isa) << ", " << c.count;
  EXPECT_TRUE(expected.guards_intact()) << rule << " by scalar, " << c.count;
}

TEST(UpdateLoops, EveryInstructionSetGivesTheBitsOfTheScalarPath) {
  for (const Isa isa : available_isas())
    for (const auto& [name, run] : all_rules())
      for (Case c : dtype_cases())
        for (const std::int64_t count : kSizes) {
          c.count = count;
          c.offset = count % 3 == 0 ? 0 : count % 3 == 1 ? 4 : 12;
          expect_same_as_scalar(isa, name, run, c);
        }
  // Adam's everyday cases at every offset.
  for (const Isa isa : available_isas())
    for (const bool mixed : {false, true})
      for (const std::int64_t count : kSizes)
        for (const std::int64_t offset : {0, 4, 12}) {
          Case c{.count = count, .offset = offset};
          if (mixed) c.gradient = DType::bf16, c.copy = DType::bf16;
          expect_same_as_scalar(isa, "adam", all_rules()[0].second, c);
        }
}

TEST(UpdateLoops, AnElementsResultDoesNotDependOnWhereItStands) {
  for (const Isa isa : available_isas())
    for (const auto& [name, run] : all_rules()) {
      const Case c{.count = 1027, .gradient = DType::bf16, .copy = DType::bf16};
      Subject whole(c), pieces(c);
      run(cpu::update_loops(isa), whole.arrays, 0, c.count);
      for (std::int64_t begin = 0, length = 1; begin < c.count;
           begin += length, length = length % 37 + 5)
        run(cpu::update_loops(isa), pieces.arrays, begin, std::min(begin + length, c.count));
      EXPECT_EQ(whole.contents(), pieces.contents()) << name << " by " << name_of(isa);
    }
}

TEST(UpdateLoops, TheCopyIsTheMasterRoundedAmongNanAndInfinitiesToo) {
  const Case c{.count = 1027, .gradient = DType::bf16, .copy = DType::bf16};
  for (const Isa isa : available_isas()) {
    Subject subject(c);
    std::byte* const master = subject.arrays.master.data;
    for (std::int64_t i = 0; i < c.count; i += 37) {
      const double largest = std::numeric_limits<float>::max();  // Infinite as bf16.
      const double special[] = {std::nan(""), largest, -largest, -std::nan("")};
      test::write_element(master, DType::f32, i, special[i % 4]);
    }
    all_rules()[0].second(cpu::update_loops(isa), subject.arrays, 0, c.count);
    const auto* copy = reinterpret_cast<const bf16*>(subject.arrays.copy.data);
    for (std::int64_t i = 0; i < c.count; ++i) {
      const bf16 expected = to_bf16(reinterpret_cast<const float*>(master)[i]);
      ASSERT_EQ(copy[i].bits, expected.bits) << name_of(isa) << ", element " << i;
    }
    EXPECT_TRUE(std::isnan(to_float(copy[0]))) << name_of(isa);
    EXPECT_TRUE(std::isinf(to_float(copy[37]))) << name_of(isa);
  }
}

TEST(UpdateLoops, AdamIsWithinRoundingOfADoubleOracle) {
  const AdamConstants k = {0.73f, 0.1f, 0.001f, 9.3f, 1e-8f, 3e-3f, 1e-4f, true};
  for (const Isa isa : available_isas())
    for (const std::int64_t count : kSizes) {
      const Case c{.count = count};
      const Subject before(c);
      Subject after(c);
      cpu::update_loops(isa).adam_decoupled(k, after.arrays, 0, count);
      for (std::int64_t i = 0; i < count; ++i) {
        const double g = before.gradient.at(i) * k.factor, p = before.master.at(i);
        const double c1 = k.one_minus_beta1, c2 = k.one_minus_beta2;
        const double m = (1 - c1) * before.states[0].at(i) + c1 * g;
        const double v = (1 - c2) * before.states[1].at(i) + c2 * g * g;
        const double change =
            k.step_size * m / (std::sqrt(v) * k.inverse_root_correction2 + k.eps) + k.decay * p;
        EXPECT_NEAR(after.master.at(i), p - change, 1e-6 * (std::abs(p) + std::abs(change)) + 1e-38)
            << i;
      }
    }
}

class IsaVariable {
 public:
  explicit IsaVariable(const char* value) {
    if (const char* before = std::getenv("ZERO3D_ISA")) before_ = before;
    setenv("ZERO3D_ISA", value, 1);
  }
  ~IsaVariable() {
    if (before_)
      setenv("ZERO3D_ISA", before_->c_str(), 1);
    else
      unsetenv("ZERO3D_ISA");
  }

 private:
  std::optional<std::string> before_;
};

TEST(Isa, ForcingOneThatIsMissingIsAnError) {
  const std::vector<Isa> available = available_isas();
  ASSERT_EQ(available.front(), Isa::scalar);
  for (const Isa isa : {Isa::scalar, Isa::neon, Isa::avx2, Isa::avx512}) {
    if (std::find(available.begin(), available.end(), isa) != available.end()) {
      EXPECT_EQ(choose_isa(isa), isa);
      continue;
    }
    try {
      choose_isa(isa);
      ADD_FAILURE() << name_of(isa) << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
      EXPECT_NE(std::string(error.what()).find(name_of(isa)), std::string::npos);
    }
  }
}

TEST(Isa, TheEnvironmentChooses) {
  {
    const IsaVariable variable("scalar");
    EXPECT_EQ(choose_isa(), Isa::scalar);
    EXPECT_EQ(choose_isa(available_isas().back()), available_isas().back())
        << "an argument goes first";
  }
  {
    const IsaVariable variable("mmx");
    EXPECT_THROW(choose_isa(), Error);
  }
  for (const Isa isa : available_isas()) EXPECT_EQ(parse_isa(name_of(isa)), isa);
}

TEST(LambStep, TrustRatioIsOneForZeroNormsAndHeldToItsRange) {
  const LambStepConstants constants = {.step_size = 1, .min_coeff = 0.01, .max_coeff = 10};
  EXPECT_EQ(trust_ratio(constants, 0, 4), 1);
  EXPECT_EQ(trust_ratio(constants, 4, 0), 1);
  EXPECT_EQ(trust_ratio(constants, 4, 1), 2);
  EXPECT_EQ(trust_ratio(constants, 1e6, 1), 10);
  EXPECT_EQ(trust_ratio(constants, 1, 1e8), 0.01);
}

}  // namespace
}  // namespace zero3d::kernels
