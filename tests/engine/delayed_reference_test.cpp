// Delayed updates against their definition, written down a second time element by element: which
// value every parameter has after every step, to the bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "zero3d/core/text.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

constexpr std::int64_t kBlock = 1024;
constexpr float kLr = 0.01f;
constexpr double kDecay = 0.1;

/// Blocks differ in size of their gradients, and change places as steps go by.
float gradient_of(int parameter, int step, std::int64_t element) {
  const auto block = static_cast<int>(element / kBlock);
  const auto word = static_cast<int>((element * 7 + step * 13 + parameter * 5) % 11) - 5;
  return static_cast<float>(word) * std::exp2f(static_cast<float>((block * 3 + step / 4) % 5 - 3));
}

/// One parameter under the definition.
class Reference {
 public:
  Reference(int index, std::int64_t elements, const DelayedUpdateSettings& settings)
      : index_(index),
        settings_(settings),
        value(static_cast<std::size_t>(elements), 1.0f),
        master(value),
        m(value.size()),
        v(value.size()),
        sum_(value.size()),
        blocks_(static_cast<std::size_t>((elements + kBlock - 1) / kBlock)) {}

  /// Applied step number `number`, from 0, with the gradients of `step`.
  void apply(std::int64_t number, int step) {
    const std::int64_t after = number - settings_.warm_up;
    const bool warms = after < 0;
    const std::int64_t round = settings_.update_every;
    const bool first = warms || after % round == 0;
    const bool ends = warms || after % round == round - 1;
    if (!warms && first && (after == 0 || after - last_choice_ >= settings_.select_every)) {
      choose(step);
      last_choice_ = after;
    }
    for (std::size_t i = 0; i < value.size(); ++i) {
      const float g = gradient_of(index_, step, static_cast<std::int64_t>(i));
      sum_[i] = waiting_ == 0 ? g : sum_[i] + g;
    }
    ++waiting_;
    if (ends && !(settings_.overlap && !warms)) {
      update_rest();
      take_effect();
    } else if (ends) {
      if (ahead_) take_effect();
      update_rest();
      ahead_ = true;
    }
    update_chosen(step);
  }

  void flush() {
    if (waiting_ > 0) update_rest();
    take_effect();
  }

  int waiting() const { return waiting_; }
  std::size_t chosen() const {
    return static_cast<std::size_t>(
        std::count_if(blocks_.begin(), blocks_.end(), [](const Block& b) { return b.chosen; }));
  }

 private:
  struct Block {
    bool chosen = false;
    int updates = 0;
  };
  int index_;
  DelayedUpdateSettings settings_;

 public:
  std::vector<float> value, master, m, v;

 private:
  void choose(int step) {
    std::vector<double> squares(blocks_.size());
    for (std::size_t i = 0; i < value.size(); ++i) {
      const double g = gradient_of(index_, step, static_cast<std::int64_t>(i));
      squares[i / kBlock] += g * g;
    }
    std::vector<std::size_t> order(blocks_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return squares[a] > squares[b]; });
    const auto count =
        static_cast<std::size_t>(std::ceil(settings_.share * static_cast<double>(order.size())));
    for (Block& block : blocks_) block.chosen = false;
    for (std::size_t i = 0; i < count; ++i) blocks_[order[i]].chosen = true;
  }

  template <typename Gradient>
  void update(bool chosen, const Gradient& gradient) {
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      if (blocks_[b].chosen != chosen) continue;
      ++blocks_[b].updates;
      const std::size_t end = std::min(value.size(), (b + 1) * kBlock);
      for (std::size_t i = b * kBlock; i < end; ++i) adam(i, gradient(i), blocks_[b].updates);
    }
  }

  void adam(std::size_t i, float g, int t) {
    const double lr = 0.01;
    const auto b1 = static_cast<float>(1 - 0.9), b2 = static_cast<float>(1 - 0.999);
    const auto rate = static_cast<float>(lr / (1 - std::pow(0.9, t)));
    const auto root = static_cast<float>(1 / std::sqrt(1 - std::pow(0.999, t)));
    const auto decay = static_cast<float>(lr * kDecay);
    m[i] = (m[i] - b1 * m[i]) + b1 * g;
    v[i] = (v[i] - b2 * v[i]) + b2 * (g * g);
    const float step = rate * (m[i] / (std::sqrt(v[i]) * root + 1e-8f));
    master[i] = master[i] - (step + decay * master[i]);
  }

  void update_chosen(int step) {
    update(true,
           [&](std::size_t i) { return gradient_of(index_, step, static_cast<std::int64_t>(i)); });
    for (std::size_t i = 0; i < value.size(); ++i)
      if (blocks_[i / kBlock].chosen) value[i] = master[i];
  }

  void update_rest() {
    const float mean = 1.0f / static_cast<float>(waiting_);
    update(false, [&](std::size_t i) { return sum_[i] * mean; });
    waiting_ = 0;
  }

  void take_effect() {
    for (std::size_t i = 0; i < value.size(); ++i)
      if (!blocks_[i / kBlock].chosen) value[i] = master[i];
    ahead_ = false;
  }

  std::vector<float> sum_;
  std::vector<Block> blocks_;
  int waiting_ = 0;
  bool ahead_ = false;
  std::int64_t last_choice_ = 0;
};

const std::vector<std::int64_t> kSizes = {5000, 2048, 10};

RunOptions reference_options() {
  RunOptions options = probe_options(
      [](int) {
        std::vector<ProbeBlockSpec> blocks;
        for (std::size_t p = 0; p < kSizes.size(); ++p) {
          ProbeParameter parameter = probe_parameter(concat("p", p), Shape{kSizes[p]}, {});
          parameter.gradient = [p](const ProbeClock& at, std::int64_t i) {
            if (at.step == 5 && i == 3) return std::numeric_limits<float>::infinity();
            return gradient_of(static_cast<int>(p), at.step, i);
          };
          blocks.push_back({{parameter}});
        }
        return blocks;
      },
      1);
  options.steps = 15;
  return options;
}

TrainSettings reference_settings(const DelayedUpdateSettings& delayed) {
  TrainSettings settings = settings_of(
      R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0, "optimizer": {"type": "AdamW",
          "params": {"lr": 0.01, "weight_decay": 0.1}},
          "zero_optimization": {"stage": 2, "sub_group_size": 2048}})",
      1);
  settings.offload.optimizer.device = OffloadDevice::cpu;
  settings.delayed_updates = delayed;
  return settings;
}

void expect_values(Engine& engine, const std::vector<Reference>& reference,
                   const std::string& when) {
  std::size_t next = 0;
  engine.model().for_each_parameter([&](const ParameterSpec& spec, const ConstView& value) {
    const std::vector<float>& want = reference[next++].value;
    ASSERT_EQ(value.numel(), static_cast<std::int64_t>(want.size()));
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(value.as<float>()[i], want[i]) << spec.name << " element " << i << " " << when;
    }
  });
}

class DelayedReference : public ::testing::TestWithParam<DelayedUpdateSettings> {};

TEST_P(DelayedReference, EveryValueAfterEveryStepIsTheDefinitions) {
  const DelayedUpdateSettings settings = GetParam();
  std::vector<Reference> reference;
  for (std::size_t p = 0; p < kSizes.size(); ++p)
    reference.emplace_back(static_cast<int>(p), kSizes[p], settings);
  RunOptions options = reference_options();
  std::int64_t applied = 0;
  options.after_step = [&](Engine& engine, int, int step) {
    EXPECT_EQ(engine.was_step_applied(), step != 5);
    if (step != 5) {
      for (Reference& parameter : reference) parameter.apply(applied, step);
      ++applied;
    }
    ASSERT_TRUE(engine.last_step().updates);
    EXPECT_EQ(engine.last_step().updates->waiting, reference[0].waiting()) << "after step " << step;
    EXPECT_EQ(engine.last_step().updates->on_device > 0, step != 5 && reference[0].chosen() > 0);
    expect_values(engine, reference, concat("after step ", step));
  };
  options.after = [&](Engine& engine, int) {
    engine.flush_updates();
    for (Reference& parameter : reference) parameter.flush();
    expect_values(engine, reference, "after the flush");
  };
  const RunResult result = run_engine(reference_settings(settings), options);
  for (std::size_t p = 0; p < kSizes.size(); ++p) {
    const ParameterState& state = result.state.at(concat("p", p));
    EXPECT_EQ(ParameterState::floats(state.value), reference[p].master) << p;
    EXPECT_EQ(ParameterState::floats(state.states[0]), reference[p].m) << p;
    EXPECT_EQ(ParameterState::floats(state.states[1]), reference[p].v) << p;
  }
  EXPECT_EQ(reference[0].chosen(), settings.warm_up < 14 ? 2u : 0u) << "of five: something waits";
}

INSTANTIATE_TEST_SUITE_P(
    All, DelayedReference,
    ::testing::Values(
        DelayedUpdateSettings{.update_every = 1, .share = 0.4, .select_every = 1},
        DelayedUpdateSettings{.update_every = 3, .share = 0.4, .select_every = 3},
        DelayedUpdateSettings{.update_every = 3, .share = 0.4, .select_every = 6, .warm_up = 2},
        DelayedUpdateSettings{.update_every = 1, .share = 0.4, .select_every = 2, .overlap = true},
        DelayedUpdateSettings{.update_every = 3, .share = 0.4, .select_every = 3, .overlap = true},
        DelayedUpdateSettings{
            .update_every = 4, .share = 0.4, .select_every = 4, .overlap = true, .warm_up = 3},
        DelayedUpdateSettings{
            .update_every = 4, .share = 0.4, .select_every = 8, .overlap = true, .warm_up = 20}));

}  // namespace
}  // namespace zero3d::test
