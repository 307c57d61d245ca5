// A trainer that keeps its own forward and backward (network.h) and takes only the lower level of
// zero3d: parameters sharded over the ranks, gathered just before a layer uses them, gradients
// reduced while backward goes on, one optimizer step. Learns z = sin(3x) * cos(2y) on two ranks.
#include <zero3d/engine/sharded_model.h>
#include <zero3d/parallel/comm/thread_communicator.h>

#include <cstdio>
#include <string>

#include "network.h"

constexpr int kWidths[] = {2, 32, 32, 1};
constexpr int kLayers = 3, kRanks = 2, kSteps = 400, kRows = 64;

/// One block of parameters per layer: a weight and a bias.
std::vector<std::vector<zero3d::ParameterSpec>> parameters() {
  std::vector<std::vector<zero3d::ParameterSpec>> blocks;
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string name = "layer" + std::to_string(layer);
    zero3d::ParameterSpec weight, bias;
    weight.name = name + ".weight";
    weight.shape = {kWidths[layer], kWidths[layer + 1]};
    weight.initial =
        zero3d::normal_values(weight.name, 1.0f / std::sqrt(static_cast<float>(kWidths[layer])));
    bias.name = name + ".bias";
    bias.shape = {kWidths[layer + 1]};
    bias.initial = zero3d::constant_values(0.0f);
    blocks.push_back({weight, bias});
  }
  return blocks;
}

/// Points of the plane, others on each rank and step, and the heights to learn.
void draw_batch(int step, int rank, Array& points, Array& heights) {
  std::uint64_t state = static_cast<std::uint64_t>(step * kRanks + rank) * 2654435761u + 12345;
  const auto uniform = [&state] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(state >> 40) / 8388608.0f - 1;
  };
  points.clear();
  heights.clear();
  for (int row = 0; row < kRows; ++row) {
    const float x = uniform(), y = uniform();
    points.insert(points.end(), {x, y});
    heights.push_back(std::sin(3 * x) * std::cos(2 * y));
  }
}

/// One micro-batch: work on parameters and gradients goes on the compute stream, in order.
void forward_and_backward(zero3d::ShardedModel& model, const Array& points, const Array& heights,
                          zero3d::Tensor& loss) {
  using zero3d::reads, zero3d::writes;
  zero3d::Stream& stream = model.compute();
  std::vector<Array> values(kLayers + 1);
  values[0] = points;
  model.begin_training(0);
  for (int k = 0; k < kLayers; ++k) {
    const zero3d::Op op = zero3d::forward_of(k);
    const auto p = model.acquire(op);
    stream.launch("forward", {reads(p[0]), reads(p[1])}, [&values, p, k] {
      values[k + 1] = layer_forward(values[k], p[0].as<float>(), p[1].as<float>(), kWidths[k],
                                    kWidths[k + 1], k + 1 == kLayers);
    });
    model.release(op);
  }
  Array gradient;
  const auto seed = static_cast<float>(model.loss_seed(1));
  const zero3d::View sum = loss.view();
  stream.launch("loss", {writes(sum)}, [&, sum, seed] {
    sum.as<float>()[0] = 0;
    sum.as<float>()[1] = kRows;
    for (int row = 0; row < kRows; ++row) {
      const float error = values[kLayers][row] - heights[row];
      sum.as<float>()[0] += error * error;
      gradient.push_back(2 * error / kRows * seed);
    }
  });
  model.add_loss(loss);
  model.begin_backward(0, true);
  for (int k = kLayers - 1; k >= 0; --k) {
    const zero3d::Op op = zero3d::backward_of(k);
    const auto p = model.acquire(op);
    const auto g = model.gradients(op);
    stream.launch("backward", {reads(p[0]), writes(g[0].view), writes(g[1].view)},
                  [&values, &gradient, p, g, k] {
                    gradient = layer_backward(gradient, values[k], values[k + 1], p[0].as<float>(),
                                              g[0].view.as<float>(), g[1].view.as<float>(),
                                              kWidths[k], kWidths[k + 1], k + 1 == kLayers);
                  });
    model.release(op);
  }
  stream.synchronize();  // the arrays above end with this function
}

double train(zero3d::Communicator& world) {
  zero3d::TrainSettings settings;
  settings.micro_batch = kRows;
  settings.gradients.max_norm = 1;
  settings.optimizer = {.type = "Adam", .params = {{"lr", 0.01}}};
  settings.sharding.what = zero3d::sharding_policy(3);
  settings.sharding.persistent_parameter = 0;
  zero3d::CpuDeviceOptions device_options;
  device_options.rank = world.rank();
  const auto device = zero3d::make_cpu_device(device_options);
  const zero3d::Mesh mesh(world);
  zero3d::ShardedModel model(settings, parameters(), mesh, *device);
  zero3d::Tensor loss(device->memory(), zero3d::kNoStream, zero3d::DType::f32, {2},
                      zero3d::Category::activations);

  Array points, heights;
  double first = 0, last = 0;
  for (int step = 0; step < kSteps; ++step) {
    draw_batch(step, world.rank(), points, heights);
    forward_and_backward(model, points, heights, loss);
    const zero3d::StepOutcome outcome = model.step();
    if (world.rank() == 0 && step % 50 == 0)
      std::printf("step %3d  loss %.5f  norm %.4f\n", step + 1, outcome.loss,
                  outcome.gradient_norm);
    (step == 0 ? first : last) = outcome.loss;
  }
  if (world.rank() == 0) std::printf("loss %.5f -> %.5f\n", first, last);
  return last / first;
}

int main() {
  try {
    double ratio = 1;
    zero3d::run_ranks(kRanks, [&](zero3d::Communicator& world) {
      const double mine = train(world);
      if (world.rank() == 0) ratio = mine;
    });
    return ratio < 0.1 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
