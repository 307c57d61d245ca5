// What an engine gives out beside training: evaluation, logits for generation, and the model as a
// file.
#include <cstring>
#include <filesystem>

#include "zero3d/core/error.h"
#include "zero3d/core/log.h"
#include "zero3d/core/multiples.h"
#include "zero3d/engine/block_runner.h"
#include "zero3d/engine/engine.h"
#include "zero3d/engine/pause.h"
#include "zero3d/formats/convert.h"
#include "zero3d/formats/safetensors_writer.h"

namespace zero3d {
namespace {

/// Of batches with a target.
struct Losses {
  double sum = 0;
  double count = 0;
};

/// What the one stage that has something has.
std::vector<float> from_last_stage(Communicator& stages, const std::vector<float>& mine) {
  const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(float));
  std::vector<float> values;
  for (const std::string& part : stages.exchange(bytes)) {
    if (part.empty()) continue;
    values.resize(part.size() / sizeof(float));
    std::memcpy(values.data(), part.data(), part.size());
  }
  return values;
}

}  // namespace

/// A forward pass that saves nothing, waited for; its outputs are where the model ends.
Values Engine::run_evaluation(const MicroBatch& batch, bool whole) {
  Values outputs;
  fail_together(mesh_.world(), [&] {
    model_->begin_evaluation();
    runner_->begin(0, {.tokens = batch.tokens,
                       .targets = batch.targets,
                       .trains = false,
                       .borders = &borders(batch.tokens.shape(), false, whole),
                       .whole = whole});
    for (const Op& op : model_->plan().evaluation) runner_->run(op);
    if (model_->plan().stage.ends_model()) outputs = runner_->take_outputs(0);
    model_->compute().synchronize();
  });
  return outputs;
}

double Engine::eval_batch(std::span<const MicroBatch> micro_batches) {
  window_->require_no_forward("eval_batch()");
  accept(micro_batches);
  const Pause pause(mesh_.world(), *model_, last_step_end_ns_);
  Losses losses;
  for (const MicroBatch& batch : micro_batches) {
    const Values outputs = run_evaluation(batch);
    if (outputs.empty()) continue;
    if (const auto loss = mean_loss(Readback(model_->compute(), outputs[0]))) {
      losses.sum += *loss;
      ++losses.count;
    }
  }
  if (!model_->part().counts_loss) losses = {};
  Losses total;
  for (const std::string& part :
       mesh_.world().exchange(std::string(reinterpret_cast<const char*>(&losses), sizeof losses))) {
    Losses value;
    std::memcpy(&value, part.data(), sizeof value);
    total.sum += value.sum;
    total.count += value.count;
  }
  return total.sum / total.count;
}

std::vector<float> Engine::next_logits(std::span<const std::int32_t> tokens) {
  const auto length = static_cast<std::int64_t>(tokens.size());
  if (length == 0) throw_invalid("next_logits needs at least one token");
  window_->require_no_forward("next_logits()");
  // Planned as a training batch would be, which has rows for every rank. Samples of any length are
  // not cut: ranks of sp all do the same.
  const bool whole = mesh_.size(Axis::sp) > 1;
  plan_for(
      {1, settings_.split_rows ? round_up<std::int64_t>(length, mesh_.size(Axis::tp)) : length},
      whole);
  const Pause pause(mesh_.world(), *model_, last_step_end_ns_);
  const ConstView view(reinterpret_cast<const std::byte*>(tokens.data()), DType::i32,
                       Shape{1, length});
  const Values outputs = run_evaluation({view, ConstView()}, whole);
  std::vector<float> last;
  if (!outputs.empty()) {
    const ConstView logits = outputs[0].view();
    const std::int64_t vocabulary = logits.shape().last();
    last.resize(static_cast<std::size_t>(vocabulary));
    const Readback copy(model_->compute(), logits.flat(logits.numel() - vocabulary, vocabulary));
    const ConstView row = copy.wait();
    convert_elements(row.dtype(), row.data(), DType::f32, reinterpret_cast<std::byte*>(last.data()),
                     last.size());
  }
  return mesh_.size(Axis::pp) == 1 ? last : from_last_stage(mesh_.group(Axis::pp), last);
}

void Engine::flush_updates() {
  window_->require_start();
  if (!settings_.delayed_updates.on()) return;
  const Pause pause(mesh_.world(), *model_, last_step_end_ns_);
  fail_together(mesh_.world(), [&] {
    model_->flush_updates();
    model_->synchronize();
  });
}

void Engine::offload_states(const MovableStates& which) {
  window_->require_start();
  model_->offload_states(which);
}

void Engine::reload_states() {
  model_->reload_states();
  last_step_end_ns_ = now_ns();
}

bool Engine::save_16bit_model(const std::string& folder, const std::string& filename) {
  if (settings_.sharding.what.parameters && !settings_.sharding.gather_to_save) {
    log_warning(
        "save_16bit_model saves nothing: parameters are sharded, and gathering 16-bit weights on "
        "model save is off");
    return false;
  }
  const Pause pause(mesh_.world(), *model_, last_step_end_ns_);
  std::vector<TensorDeclaration> tensors;
  for (const ParameterSpec& spec : model_->plan().model_layout().whole_parameters())
    tensors.push_back({spec.name, spec.shape, model_->plan().dtype()});
  fail_together(mesh_.world(), [&] {
    std::unique_ptr<SafetensorsWriter> writer;
    if (mesh_.leads()) {
      std::filesystem::create_directories(folder);
      writer = std::make_unique<SafetensorsWriter>(
          (std::filesystem::path(folder) / filename).string(), std::move(tensors));
    }
    model_->for_each_parameter([&](const ParameterSpec& spec, const ConstView& value) {
      if (writer) writer->write(spec.name, value);
    });
    if (writer) {
      writer->commit();
      module_.write_beside_weights(folder, model_->plan().dtype());
    }
  });
  return true;
}

}  // namespace zero3d
