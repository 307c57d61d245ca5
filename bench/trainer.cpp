#include "trainer.h"

#include <algorithm>
#include <cstdio>
#include <random>

#include "zero3d/core/text.h"
#include "zero3d/core/trace.h"
#include "zero3d/ds_config/settings.h"
#include "zero3d/models/build.h"

namespace zero3d::bench {
namespace {

std::vector<double> ratios(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) result.push_back(a[i] / b[i]);
  return result;
}

GridDegrees degrees_of(const TrainerOptions& options, const Communicator& world) {
  return options.degrees.dp > 0 ? options.degrees : GridDegrees{.dp = world.size()};
}

}  // namespace

std::string ds_config(std::int64_t micro_batch, const std::string& dtype, int stage,
                      const std::string& zero) {
  const std::string precision = dtype == "bf16" ? R"("bf16": {"enabled": true}, )" : "";
  return concat(R"({"train_micro_batch_size_per_gpu": )", micro_batch, ", ", precision,
                R"("optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, )",
                R"("zero_optimization": {"stage": )", stage, zero.empty() ? "" : ", ", zero, "}}");
}

ModelConfig gpt2_config(double dropout) {
  ModelConfig model = built_in_model_config("gpt2");
  model.embedding_dropout = model.attention_dropout = model.residual_dropout = dropout;
  return model;
}

double gpt2_product_flop(const ModelConfig& model, std::int64_t tokens) {
  const double layer = static_cast<double>(model.hidden_size) *
                       static_cast<double>(4 * model.hidden_size + 2 * model.intermediate_size);
  const double head =
      static_cast<double>(model.hidden_size) * static_cast<double>(model.vocab_size);
  return 6.0 * static_cast<double>(tokens) * (static_cast<double>(model.layers) * layer + head);
}

Trainer::Trainer(const TrainerOptions& options, std::unique_ptr<Communicator> communicator)
    : communicator_(std::move(communicator)),
      mesh_(*communicator_, degrees_of(options, *communicator_)),
      module_(build_model(options.model)) {
  CpuDeviceOptions device;
  device.rank = communicator_->rank();
  device.threads = options.threads;
  device_ = make_cpu_device(device);
  EngineOptions engine;
  engine.sequence_length = options.sequence;
  TrainSettings settings = load_settings(options.config, mesh_.size(Axis::dp));
  settings.tp = mesh_.size(Axis::tp);
  settings.pp = mesh_.size(Axis::pp);
  if (options.change) options.change(settings);
  engine_ = std::make_unique<Engine>(settings, *module_, mesh_, *device_, engine);

  const std::int64_t batch = settings.micro_batch;
  const std::int64_t micro_batches = settings.accumulation;
  const std::int64_t row = options.sequence + 1;  // targets are the next tokens
  std::minstd_rand random(static_cast<unsigned>(mesh_.rank(Axis::dp) + 1));
  std::uniform_int_distribution<std::int32_t> token(
      0, static_cast<std::int32_t>(options.model.vocab_size - 1));
  tokens_.resize(static_cast<std::size_t>(micro_batches * batch * row));
  for (std::int32_t& value : tokens_) value = token(random);
  for (std::int64_t i = 0; i < micro_batches; ++i) {
    const auto view = [&](std::int64_t shift) {
      const std::int32_t* first = tokens_.data() + i * batch * row + shift;
      return ConstView(reinterpret_cast<const std::byte*>(first), DType::i32,
                       Shape{batch, options.sequence});
    };
    batches_.push_back({view(0), view(1)});
  }
}

Trainer::~Trainer() = default;

double Trainer::step() {
  communicator_->exchange("");
  const std::int64_t begin = now_ns();
  engine_->train_batch(batches_);
  engine_->model().synchronize();
  communicator_->exchange("");
  return static_cast<double>(now_ns() - begin) * 1e-9;
}

std::vector<std::vector<double>> in_turns(int rounds,
                                          const std::vector<std::function<double()>>& sides) {
  std::vector<std::vector<double>> times(sides.size());
  for (int round = -1; round < rounds; ++round) {
    for (std::size_t side = 0; side < sides.size(); ++side) {
      const double seconds = sides[side]();
      if (round >= 0) times[side].push_back(seconds);
    }
  }
  return times;
}

double wanted_factor(double slow, double fast, double share) {
  constexpr double kSlow = 0.35, kFast = 0.80;
  return slow - (slow - fast) * std::clamp((share - kSlow) / (kFast - kSlow), 0.0, 1.0);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double median_ratio(const std::vector<double>& a, const std::vector<double>& b) {
  return median(ratios(a, b));
}

std::string ratio_text(const std::vector<double>& a, const std::vector<double>& b) {
  const std::vector<double> all = ratios(a, b);
  const auto [low, high] = std::minmax_element(all.begin(), all.end());
  char text[64];
  std::snprintf(text, sizeof text, "%.3f (%.3f to %.3f)", median(all), *low, *high);
  return text;
}

}  // namespace zero3d::bench
