#include "metrics_file.h"

#include <cmath>
#include <fstream>
#include <optional>

#include "zero3d/formats/hjson.h"
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

/// The step of a record, or nothing for a line that is none.
std::optional<std::int64_t> step_of(const std::string& line) {
  std::vector<HjsonProblem> duplicates;
  try {
    const JsonValue record = parse_hjson(line, "metrics", duplicates);
    const JsonValue* const step = record.find("step");
    if (step != nullptr && step->is_integer()) return step->as_integer();
  } catch (const HjsonError&) {
  }
  return std::nullopt;
}

/// Bytes of the whole lines before the first record of `first_step` or a later one.
std::int64_t bytes_before(const std::string& path, std::int64_t first_step) {
  std::ifstream in(path, std::ios::binary);
  std::int64_t bytes = 0;
  for (std::string line; std::getline(in, line) && !in.eof();) {
    const auto step = step_of(line);
    if (!step || *step >= first_step) break;
    bytes += static_cast<std::int64_t>(line.size()) + 1;
  }
  return bytes;
}

JsonValue update_record(const UpdateUse& use) {
  JsonValue record = JsonValue::make_object();
  record.set("on_device", JsonValue(use.on_device));
  record.set("on_host", JsonValue(use.on_host));
  record.set("waiting_steps", JsonValue(use.waiting));
  record.set("chosen", JsonValue(use.chosen));
  return record;
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, std::int64_t first_step) : lines_(path) {
  if (first_step > 1 && lines_.is_regular()) lines_.keep(bytes_before(path, first_step));
}

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
  if (result.updates) record.set("updates", update_record(*result.updates));
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
