#include "metrics_file.h"

#include <cerrno>
#include <cmath>

#include "zero3d/core/error.h"
#include "zero3d/formats/json_value.h"

namespace zero3d::tools {
namespace {

JsonValue number(double value) { return std::isfinite(value) ? JsonValue(value) : JsonValue(); }

}  // namespace

MetricsFile::MetricsFile(const std::string& path) : path_(path) {
  if (path.empty()) return;
  out_.open(path, std::ios::trunc);
  if (!out_) throw IoError(path, errno, "cannot write metrics");
}

void MetricsFile::train(const StepResult& result) {
  if (path_.empty()) return;
  JsonValue record = JsonValue::make_object();
  record.set("kind", JsonValue("train"));
  record.set("step", JsonValue(result.step));
  record.set("loss", number(result.loss));
  record.set("grad_norm", number(result.grad_norm));
  record.set("clip_factor", number(result.clip_factor));
  record.set("lr", number(result.lr));
  record.set("loss_scale", number(result.loss_scale));
  record.set("skipped", JsonValue(result.skipped));
  record.set("tokens", JsonValue(result.tokens));
  record.set("seconds", number(result.seconds));
  record.set("tokens_per_second", number(static_cast<double>(result.tokens) / result.seconds));
  write(record.dump());
}

void MetricsFile::evaluation(std::int64_t step, double loss) {
  if (path_.empty()) return;
  JsonValue record = JsonValue::make_object();
  record.set("kind", JsonValue("eval"));
  record.set("step", JsonValue(step));
  record.set("loss", number(loss));
  write(record.dump());
}

void MetricsFile::write(const std::string& line) {
  out_ << line << "\n" << std::flush;
  if (!out_) throw IoError(path_, errno, "cannot write metrics");
}

}  // namespace zero3d::tools
