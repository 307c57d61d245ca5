#include "metrics_file.h"

#include <cmath>

#include "zero3d/formats/json_value.h"

namespace zero3d::tools {
namespace {

JsonValue number(double value) { return std::isfinite(value) ? JsonValue(value) : JsonValue(); }

JsonValue offload_record(const OffloadUse& use) {
  JsonValue record = JsonValue::make_object();
  record.set("read_bytes", JsonValue(use.read_bytes));
  record.set("written_bytes", JsonValue(use.written_bytes));
  record.set("copied_in_bytes", JsonValue(use.copied_in_bytes));
  record.set("copied_out_bytes", JsonValue(use.copied_out_bytes));
  record.set("parameter_wait_seconds", number(use.parameter_wait_seconds));
  record.set("state_wait_seconds", number(use.state_wait_seconds));
  return record;
}

JsonValue tiles_record(const TileSettings& tiles) {
  JsonValue record = JsonValue::make_object();
  record.set("linear", JsonValue(tiles.linear));
  record.set("head", JsonValue(tiles.head));
  return record;
}

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
  if (result.offload) record.set("offload", offload_record(*result.offload));
  if (tiles_ != TileSettings{1, 1}) record.set("tiles", tiles_record(tiles_));
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
