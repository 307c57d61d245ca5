#include "zero3d/ds_config/deepspeed_values.h"

#include "zero3d/core/text.h"

namespace zero3d {

void write_json(PickleWriter& out, const JsonValue& value) {
  switch (value.kind()) {
    case JsonValue::Kind::null:
      return out.none();
    case JsonValue::Kind::boolean:
      return out.boolean(value.as_bool());
    case JsonValue::Kind::integer:
      return out.integer(value.as_integer());
    case JsonValue::Kind::number:
      return out.real(value.as_number());
    case JsonValue::Kind::string:
      return out.text(value.as_string());
    case JsonValue::Kind::array:
      out.begin_list();
      for (const JsonValue& item : value.items()) write_json(out, item);
      return out.end_list();
    case JsonValue::Kind::object:
      out.begin_dict();
      for (const JsonMember& member : value.members()) {
        out.text(member.name);
        write_json(out, member.value);
      }
      return out.end_dict();
  }
}

void write_member(PickleWriter& out, const char* name, std::int64_t value) {
  out.text(name);
  out.integer(value);
}

std::vector<std::int64_t> dims_of(const SavedParameter& parameter) {
  std::vector<std::int64_t> result;
  for (int dim = 0; dim < parameter.shape.rank(); ++dim) result.push_back(parameter.shape[dim]);
  return result;
}

void write_sizes(PickleWriter& out, const SavedParameters& parameters) {
  out.begin_ordered_dict();
  for (const SavedParameter* parameter : parameters) {
    out.text(parameter->name);
    out.global("torch", "Size");
    out.begin_tuple();
    out.begin_tuple();
    for (const std::int64_t dim : dims_of(*parameter)) out.integer(dim);
    out.end_tuple();
    out.end_tuple();
    out.reduce();
  }
  out.end_dict();
}

void write_zero_stage(PickleWriter& out, int stage) {
  out.global("deepspeed.runtime.zero.config", "ZeroStageEnum");
  out.begin_tuple();
  out.integer(stage);
  out.end_tuple();
  out.reduce();
}

void write_loss_scaler(PickleWriter& out, const SavedRun& run, const JsonValue& ds_config) {
  const LossScaler::State& state = run.state.scaler;
  const bool dynamic = run.scale == SavedScale::dynamic;
  out.global("deepspeed.runtime.fp16.loss_scaler", dynamic ? "DynamicLossScaler" : "LossScaler");
  out.object();
  out.begin_dict();
  out.text("cur_scale");
  out.real(state.scale);
  out.text("dynamic");
  out.boolean(dynamic);
  if (dynamic) {
    const auto of_config = [&](const char* key, std::int64_t otherwise) {
      const JsonValue* const value = ds_config.find_path(concat("fp16.", key));
      return value != nullptr && value->is_integer() ? value->as_integer() : otherwise;
    };
    const auto number = [&](const char* name, std::int64_t value) {
      out.text(name);
      out.integer(value);
    };
    const JsonValue* const refills = ds_config.find_path("fp16.consecutive_hysteresis");
    number("cur_iter", state.iteration);
    number("last_overflow_iter", state.last_overflow);
    out.text("scale_factor");
    out.real(2);
    number("scale_window", of_config("loss_scale_window", 1000));
    number("min_scale", of_config("min_loss_scale", 1));
    number("delayed_shift", of_config("hysteresis", 2));
    number("cur_hysteresis", state.hysteresis);
    out.text("consecutive_hysteresis");
    out.boolean(refills != nullptr && refills->is_bool() && refills->as_bool());
    out.text("raise_error_at_min_scale");
    out.boolean(true);
    out.text("dtype");
    out.global("torch", "float16");
  }
  out.end_dict();
  out.build();
}

void write_param_group(PickleWriter& out, const JsonValue& ds_config, double lr,
                       std::size_t parameters) {
  const JsonValue* const given = ds_config.find_path("optimizer.params");
  const auto value = [&](const char* name, JsonValue otherwise) {
    const JsonValue* const found = given == nullptr ? nullptr : given->find(name);
    out.text(name);
    write_json(out, found == nullptr || found->is_null() ? otherwise : *found);
  };
  JsonValue betas = JsonValue::make_array();
  betas.push_back(JsonValue(0.9));
  betas.push_back(JsonValue(0.999));
  out.begin_dict();
  out.text("lr");
  out.real(lr);
  value("bias_correction", JsonValue(true));
  value("betas", betas);
  value("eps", JsonValue(1e-8));
  value("weight_decay", JsonValue(0.0));
  value("amsgrad", JsonValue(false));
  write_member(out, "step", 0);
  out.text("params");
  out.begin_list();
  for (std::size_t i = 0; i < parameters; ++i) out.integer(static_cast<std::int64_t>(i));
  out.end_list();
  out.end_dict();
}

void write_fragments(PickleWriter& out, const FlatTensor& flat) {
  out.begin_ordered_dict();
  for (const FlatSegment& segment : flat.segments) {
    out.text(segment.parameter->name);
    out.global("deepspeed.utils.tensor_fragment", "fragment_address");
    out.object();
    out.begin_dict();
    write_member(out, "numel", segment.count);
    write_member(out, "start", segment.offset);
    out.end_dict();
    out.build();
  }
  out.end_dict();
}

}  // namespace zero3d
