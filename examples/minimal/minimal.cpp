// Trains the model of next_byte.h on two data-parallel ranks with ZeRO stage 3: as a ds_config
// says, then with the same settings filled in by hand.
#include <zero3d/ds_config/settings.h>
#include <zero3d/parallel/comm/thread_communicator.h>

#include <cstdio>
#include <string_view>

#include "next_byte.h"

constexpr std::string_view kConfig = R"({
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 2,
  "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": 0.02, "weight_decay": 0.01}},
  "zero_optimization": {"stage": 3}
})";
const zero3d::TrainSettings kSettings = {
    .micro_batch = 4,
    .accumulation = 2,
    .sharding = {.what = zero3d::sharding_policy(3)},
    .gradients = {.max_norm = 1},
    .optimizer = {.type = "AdamW", .params = {{"lr", 0.02}, {"weight_decay", 0.01}}}};

constexpr std::string_view kText =
    "the quick brown fox jumps over the lazy dog while the cat sleeps by the fire; "
    "she sells sea shells by the sea shore and the shells she sells are sea shells for sure; ";
constexpr int kRanks = 2, kSteps = 60;
constexpr std::int64_t kRows = 4, kSequence = 24;

/// A rank's rows of one micro-batch: bytes of the text and the bytes that follow them.
struct Rows {
  std::vector<std::int32_t> tokens, targets;
  explicit Rows(std::size_t first) {
    for (std::size_t i = 0; i < kRows * kSequence; ++i) {
      tokens.push_back(kText[(first + i) % kText.size()]);
      targets.push_back(kText[(first + i + 1) % kText.size()]);
    }
  }
  zero3d::MicroBatch batch() const { return {view(tokens), view(targets)}; }

 private:
  static zero3d::ConstView view(const std::vector<std::int32_t>& values) {
    return {
        reinterpret_cast<const std::byte*>(values.data()), zero3d::DType::i32, {kRows, kSequence}};
  }
};

/// The last loss as a share of the first.
double train(zero3d::TrainingSession engine, zero3d::Communicator& world) {
  double first = 0, last = 0;
  for (int step = 0; step < kSteps; ++step) {
    const auto place = static_cast<std::size_t>(step * 4 + world.rank() * 2);
    const Rows rows[] = {Rows(place * 17), Rows(place * 17 + 17)};
    const zero3d::MicroBatch window[] = {rows[0].batch(), rows[1].batch()};
    const zero3d::StepResult result = engine->train_batch(window);
    if (world.rank() == 0 && step % 10 == 0)
      std::printf("step %2d  loss %.4f  norm %.4f\n", step + 1, result.loss, result.grad_norm);
    (step == 0 ? first : last) = result.loss;
  }
  if (world.rank() == 0) std::printf("loss %.4f -> %.4f\n", first, last);
  return last / first;
}

int main() {
  try {
    double ratio = 1;
    zero3d::run_ranks(kRanks, [&](zero3d::Communicator& world) {
      const NextByte model;
      const double mine = train(zero3d::initialize(kConfig, model, world), world);
      const double same = train(zero3d::initialize(kSettings, model, world), world);
      if (world.rank() == 0) ratio = mine == same ? mine : 1;
    });
    return ratio < 0.5 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
