// Descriptions of fp16, bf16, torch_autocast and data_types.
#include "zero3d/ds_config/precision_sections.h"

#include "zero3d/core/text.h"
#include "zero3d/ds_config/field.h"

namespace zero3d::config {

const Section& fp16_section() {
  static const Section section = [] {
    SectionBuilder<Fp16Config> b("fp16", true);
    b.add("enabled", &Fp16Config::enabled,
          "Parameters, activations and gradients in fp16, with loss scaling.");
    b.add("auto_cast", &Fp16Config::auto_cast, "Cast floating inputs of the model to fp16.");
    b.add("loss_scale", &Fp16Config::loss_scale,
          "0 scales the loss dynamically; another value is the fixed scale.")
        .at_least(0)
        .plain();
    b.add("initial_scale_power", &Fp16Config::initial_scale_power,
          "Dynamic scaling starts at 2 to this power.");
    b.add("loss_scale_window", &Fp16Config::loss_scale_window,
          "Clean steps in a row before the dynamic scale doubles.")
        .plain();
    b.add("hysteresis", &Fp16Config::hysteresis,
          "Overflows to bear before the dynamic scale halves; 0 never shrinks it.");
    b.add("consecutive_hysteresis", &Fp16Config::consecutive_hysteresis,
          "Refill the hysteresis on every clean step, not only when the scale grows.");
    b.custom(
         "min_loss_scale", "float",
         "The dynamic scale never falls below this; a fraction is allowed (DeepSpeed refuses it).",
         [](Reader& r, const Field& f, const std::string& path, const JsonValue& value,
            Fp16Config& out) {
           if (const auto read = r.to_number(f, path, value)) out.min_loss_scale = *read;
         },
         [](const Fp16Config& in) {
           const auto whole = static_cast<std::int64_t>(in.min_loss_scale);
           return static_cast<double>(whole) == in.min_loss_scale ? JsonValue(whole)
                                                                  : JsonValue(in.min_loss_scale);
         })
        .between(-9e15, 9e15)
        .plain();
    b.add("fp16_master_weights_and_grads", &Fp16Config::fp16_master_weights_and_grads,
          "Master weights and accumulated gradients in fp16; needs ZeRO stage 1 to 3.");
    return b.build();
  }();
  return section;
}

const Section& bf16_section() {
  static const Section section = [] {
    SectionBuilder<Bf16Config> b("bf16", true);
    b.add("enabled", &Bf16Config::enabled, "Parameters, activations and gradients in bf16.");
    b.add("immediate_grad_update", &Bf16Config::immediate_grad_update,
          "Accumulate into the high-precision buffer as each gradient appears.");
    b.add("check_grad_overflow", &Bf16Config::check_grad_overflow,
          "Skip a step whose gradients are not finite; false lets them into the weights.");
    b.add("bf16_master_weights_and_grads", &Bf16Config::bf16_master_weights_and_grads,
          "Master weights and accumulated gradients in bf16; needs ZeRO stage 1 to 3.");
    b.add("bf16_optimizer_states", &Bf16Config::bf16_optimizer_states,
          "Moments in bf16; needs bf16_master_weights_and_grads.");
    return b.build();
  }();
  return section;
}

const Section& torch_autocast_section() {
  static const Section section = [] {
    SectionBuilder<TorchAutocastConfig> b("torch_autocast", false);
    b.add("enabled", &TorchAutocastConfig::enabled,
          "Keep fp32 weights and run matrix products in a 16-bit dtype.");
    b.add("dtype", &TorchAutocastConfig::dtype, "The 16-bit dtype.")
        .one_of({"fp16", "float16", "half", "torch.float16", "bf16", "bfloat16", "torch.bfloat16",
                 "fp32", "float32", "float", "torch.float32", "int8", "torch.int8"})
        .not_null()
        .check();
    b.custom(
         "lower_precision_safe_modules", "list of strings",
         "Classes of modules that run in that dtype; absent: linear and convolution layers.",
         [](Reader& r, const Field& f, const std::string& path, const JsonValue& value,
            TorchAutocastConfig& out) {
           if (value.is_string()) {
             r.train_error(path,
                           concat("expected a list of strings; write [", value.excerpt(), "]"),
                           value.position());
           } else if (auto read = r.to_texts(f, path, value)) {
             out.lower_precision_safe_modules = std::move(*read);
           }
         },
         [](const TorchAutocastConfig& in) {
           return in.lower_precision_safe_modules.empty()
                      ? JsonValue()
                      : write_value(in.lower_precision_safe_modules);
         })
        .check();
    return b.build();
  }();
  return section;
}

const Section& data_types_section() {
  static const Section section = [] {
    SectionBuilder<DataTypesConfig> b("data_types", false);
    const std::vector<std::string> spellings = {
        "fp16",          "float16", "half",     "torch.float16",  "fp32", "float32",   "float",
        "torch.float32", "bf16",    "bfloat16", "torch.bfloat16", "int8", "torch.int8"};
    b.add("grad_accum_dtype", &DataTypesConfig::grad_accum_dtype,
          "In which gradients are added up over micro-batches. zero3d: fp32 by default.")
        .one_of(spellings);
    b.add("param_dtype", &DataTypesConfig::param_dtype,
          "Must equal what the fp16 and bf16 sections imply.")
        .one_of(spellings);
    b.add("buffer_dtype", &DataTypesConfig::buffer_dtype,
          "Cast floating buffers of the model to this.")
        .one_of(spellings);
    b.custom(
         "keep_in_fp32_modules", "\"auto\" or list of strings",
         "Buffers to keep in fp32: name patterns, * wild; \"auto\" asks the model.",
         [](Reader& r, const Field& f, const std::string& path, const JsonValue& value,
            DataTypesConfig& out) {
           if (value.is_auto()) return;
           if (!value.is_array()) {
             r.refuse(f, path, value, "\"auto\" or a list of name patterns");
           } else if (auto read = r.to_texts(f, path, value)) {
             out.keep_in_fp32_modules = std::move(*read);
           }
         },
         [](const DataTypesConfig& in) {
           return in.keep_in_fp32_modules ? write_value(*in.keep_in_fp32_modules)
                                          : JsonValue("auto");
         })
        .or_auto()
        .check();
    return b.build();
  }();
  return section;
}

}  // namespace zero3d::config
