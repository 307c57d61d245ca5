// The keys of fp16, bf16, torch_autocast and data_types.
#include "zero3d/core/text.h"
#include "zero3d/ds_config/field.h"
#include "zero3d/ds_config/reader.h"

namespace zero3d::config {

namespace {

constexpr std::nullopt_t none = std::nullopt;
constexpr std::string_view kSpellings =
    "fp16|float16|half|torch.float16|fp32|float32|float|torch.float32|bf16|bfloat16|"
    "torch.bfloat16|int8|torch.int8";

/// A number, kept as an integer when it is whole.
void read_min_scale(Reader& r, const Stated& s, JsonValue& out) {
  const Reader::Converted read = r.to_number(s);
  if (!read) return;
  const auto whole = static_cast<std::int64_t>(read->as_number());
  out = JsonValue(whole) == *read ? JsonValue(whole) : *read;
}

constexpr std::array kFp16Rows = strictly(std::array{
    flag("enabled", false, "Parameters, activations and gradients in fp16, with loss scaling."),
    flag("auto_cast", false, "Cast floating inputs of the model to fp16.").none(),
    number("loss_scale", 0.0, "0 scales the loss dynamically; another value is the fixed scale.")
        .at_least(0)
        .plain(),
    integer("initial_scale_power", 16, "Dynamic scaling starts at 2 to this power."),
    integer("loss_scale_window", 1000, "Clean steps in a row before the dynamic scale doubles.")
        .plain(),
    integer("hysteresis", 2,
            "Overflows to bear before the dynamic scale halves; 0 never shrinks it."),
    flag("consecutive_hysteresis", false,
         "Refill the hysteresis on every clean step, not only when the scale grows."),
    integer("min_loss_scale", 1,
            "The dynamic scale never falls below this; a fraction is allowed (DeepSpeed refuses "
            "it).")
        .typed("float")
        .between(-9e15, 9e15)
        .plain()
        .by(read_min_scale),
    flag("fp16_master_weights_and_grads", false,
         "Master weights and accumulated gradients in fp16; needs ZeRO stage 1 to 3.")});

constexpr std::array kBf16Rows = strictly(std::array{
    flag("enabled", false, "Parameters, activations and gradients in bf16."),
    flag("immediate_grad_update", false,
         "Accumulate into the high-precision buffer as each gradient appears.")
        .none(),
    flag("check_grad_overflow", true,
         "Skip a step whose gradients are not finite; false lets them into the weights."),
    flag("bf16_master_weights_and_grads", false,
         "Master weights and accumulated gradients in bf16; needs ZeRO stage 1 to 3."),
    flag("bf16_optimizer_states", false, "Moments in bf16; needs bf16_master_weights_and_grads.")});

void read_modules(Reader& r, const Stated& s, JsonValue& out) {
  if (s.value.is_string()) {
    r.train_error(s.path, concat("expected a list of strings; write [", s.value.excerpt(), "]"),
                  s.value.position());
  } else if (const Reader::Converted read = r.to_texts(s); read && !is_falsy(*read)) {
    out = *read;
  }
}

constexpr std::array kTorchAutocastRows = {
    flag("enabled", false, "Keep fp32 weights and run matrix products in a 16-bit dtype."),
    text("dtype", none, "The 16-bit dtype.").one_of(kSpellings).not_null().check(),
    texts("lower_precision_safe_modules", none,
          "Classes of modules that run in that dtype; absent: linear and convolution layers.")
        .not_null()
        .check()
        .by(read_modules)};

void read_keep(Reader& r, const Stated& s, JsonValue& out) {
  if (s.value.is_auto()) return;
  if (!s.value.is_array()) {
    r.refuse(s, "\"auto\" or a list of name patterns");
  } else {
    out = r.to_texts(s).value_or(out);
  }
}

constexpr std::array kDataTypesRows = {
    text("grad_accum_dtype", none,
         "In which gradients are added up over micro-batches. zero3d: fp32 by default.")
        .one_of(kSpellings),
    text("param_dtype", none, "Must equal what the fp16 and bf16 sections imply.")
        .one_of(kSpellings),
    text("buffer_dtype", none, "Cast floating buffers of the model to this.")
        .one_of(kSpellings)
        .none(),
    text("keep_in_fp32_modules", "auto",
         "Buffers to keep in fp32: name patterns, * wild; \"auto\" asks the model.")
        .typed("\"auto\" or list of strings")
        .or_auto()
        .check()
        .none()
        .by(read_keep)};

}  // namespace

constexpr Section kFp16 = {kFp16Rows, true};
constexpr Section kBf16 = {kBf16Rows, true};
constexpr Section kTorchAutocast = {kTorchAutocastRows};
constexpr Section kDataTypes = {kDataTypesRows};

}  // namespace zero3d::config
