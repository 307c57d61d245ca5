#include "metrics_file.h"

#include <cmath>

#include "zero3d/formats/json_value.h"

namespace zero3d::tools {
namespace {

JsonValue number(double value) { return std::isfinite(value) ? JsonValue(value) : JsonValue(); }

}  // namespace

void MetricsFile::train(const StepResult& result) {
  JsonValue record = JsonValue::make_object();
  record.set("kind", JsonValue("train"));
  record.set("step", JsonValue(result.step));
  record.set("loss", number(result.loss));
  record.set("ignored_micro_batches", JsonValue(result.ignored_micro_batches));
  record.set("grad_norm", number(result.grad_norm));
  record.set("clip_factor", number(result.clip_factor));
  record.set("lr", number(result.lr));
  record.set("loss_scale", number(result.loss_scale));
  record.set("skipped", JsonValue(result.skipped));
  record.set("tokens", JsonValue(result.tokens));
  record.set("seconds", number(result.seconds));
  record.set("tokens_per_second", number(static_cast<double>(result.tokens) / result.seconds));
  lines_.write(record.dump());
}

void MetricsFile::evaluation(std::int64_t step, double loss) {
  JsonValue record = JsonValue::make_object();
  record.set("kind", JsonValue("eval"));
  record.set("step", JsonValue(step));
  record.set("loss", number(loss));
  lines_.write(record.dump());
}

}  // namespace zero3d::tools
