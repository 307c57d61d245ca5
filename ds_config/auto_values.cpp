#include "zero3d/ds_config/auto_values.h"

#include <algorithm>

#include "zero3d/core/text.h"

namespace zero3d::config {

namespace {

class Resolver {
 public:
  Resolver(Reader& reader, JsonValue& root, const AutoValues& values, int replicas)
      : reader_(reader), root_(root), values_(values), replicas_(replicas) {}

  void run() {
    batch();
    optimizer_and_scheduler();
    precision();
    hidden_size();
    report();
  }

 private:
  template <typename T>
  static std::optional<JsonValue> json(const std::optional<T>& value) {
    return value ? std::optional<JsonValue>(JsonValue(*value)) : std::nullopt;
  }

  /// The value at a dotted path; null when a part of it is absent.
  JsonValue* at(std::string_view path) {
    JsonValue* node = &root_;
    while (node != nullptr && !path.empty()) {
      const std::size_t dot = path.find('.');
      node = node->find(path.substr(0, dot));
      path = dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
    }
    return node;
  }

  bool is_auto(std::string_view path) {
    const JsonValue* node = at(path);
    return node != nullptr && node->is_auto();
  }

  void put(const std::string& path, JsonValue value, ValueSource source, std::string note) {
    JsonValue* node = at(path);
    value.set_position(node->position());
    *node = std::move(value);
    reader_.mark_origin(path, source, std::move(note));
  }

  /// "auto" takes the option's value; a stated value must equal it. `value` absent: no such option
  /// was given.
  void fill(const std::string& path, const std::optional<JsonValue>& value, std::string_view option,
            bool must_match = true) {
    const JsonValue* node = at(path);
    if (node == nullptr || node->is_null()) return;
    if (node->is_auto()) {
      if (value) {
        put(path, *value, ValueSource::command_line, std::string(option));
      } else {
        missing_.push_back({path, std::string(option), node->position()});
      }
    } else if (must_match && value && !(*node == *value)) {
      reader_.error(path,
                    concat("the file says ", node->excerpt(), " but ", option, " says ",
                           value->excerpt(), "; change one of them, or write \"auto\" in the file"),
                    node->position());
    }
  }

  void batch() {
    const std::string micro = "train_micro_batch_size_per_gpu";
    const std::string accumulation = "gradient_accumulation_steps";
    const std::string global = "train_batch_size";
    const auto known = [&](const std::string& path) {
      const JsonValue* node = at(path);
      return node != nullptr && node->is_number();
    };
    if (values_.micro_batch || !is_auto(micro))
      fill(micro, json(values_.micro_batch), "--micro-batch");
    if (values_.accumulation || !is_auto(accumulation)) {
      fill(accumulation, json(values_.accumulation), "--accumulation");
    }
    std::optional<std::int64_t> total = values_.global_batch;
    std::string option = "--global-batch";
    if (!total && values_.micro_batch && values_.accumulation) {
      std::int64_t product = 0;
      if (!__builtin_mul_overflow(*values_.micro_batch, *values_.accumulation, &product) &&
          !__builtin_mul_overflow(product, replicas_, &product)) {
        total = product;
        option = concat("--micro-batch ", *values_.micro_batch, " x --accumulation ",
                        *values_.accumulation, " x dp ", replicas_);
      }
    }
    if (total || !is_auto(global)) fill(global, json(total), option);
    derive_batch(micro, accumulation, global, known);
  }

  /// What the other two of the triple determine needs no option.
  template <typename Known>
  void derive_batch(const std::string& micro, const std::string& accumulation,
                    const std::string& global, const Known& known) {
    const auto derive = [&](const std::string& path, bool determined, const char* option) {
      if (!is_auto(path)) return;
      if (determined) {
        root_.erase(path);
      } else {
        missing_.push_back({path, option, at(path)->position()});
      }
    };
    const bool micro_known = known(micro);
    const bool global_known = known(global);
    const bool accumulation_known = known(accumulation);
    const bool accumulation_auto = is_auto(accumulation);
    derive(micro, global_known && accumulation_known, "--micro-batch");
    derive(accumulation, global_known && micro_known, "--accumulation");
    derive(global, micro_known && !accumulation_auto,
           "--global-batch, or --micro-batch and --accumulation");
  }

  void optimizer_and_scheduler() {
    std::optional<JsonValue> betas;
    if (values_.betas) {
      betas = JsonValue::make_array();
      betas->push_back(JsonValue(values_.betas->first));
      betas->push_back(JsonValue(values_.betas->second));
    }
    fill("gradient_clipping", json(values_.max_grad_norm), "--max-grad-norm");
    fill("optimizer.params.lr", json(values_.lr), "--lr");
    fill("optimizer.params.betas", betas, "--betas");
    fill("optimizer.params.eps", json(values_.eps), "--eps");
    fill("optimizer.params.weight_decay", json(values_.weight_decay), "--weight-decay");
    if (is_auto("scheduler.params.warmup_min_lr")) {
      put("scheduler.params.warmup_min_lr", JsonValue(0), ValueSource::auto_value,
          "0 for \"auto\"");
    }
    fill("scheduler.params.warmup_max_lr", json(values_.lr), "--lr");
    fill("scheduler.params.total_num_steps", json(values_.steps), "--steps",
         values_.steps_must_match);
    std::optional<std::int64_t> warmup = values_.warmup_steps;
    if (warmup)
      warmup = std::max<std::int64_t>(1, *warmup);  // the schedules need a positive number
    fill("scheduler.params.warmup_num_steps", json(warmup), "--warmup-steps");
  }

  void precision() {
    for (const std::string section : {"fp16", "bf16"}) {
      const std::string path = section + ".enabled";
      if (!values_.precision.empty()) {
        const bool named = std::find(values_.precision.begin(), values_.precision.end(), section) !=
                           values_.precision.end();
        fill(path, JsonValue(named), concat("--precision ", values_.precision.front()));
      } else if (is_auto(path)) {
        put(path, JsonValue(false), ValueSource::auto_value,
            concat("false for \"auto\" without --precision ", section));
      }
    }
  }

  void hidden_size() {
    const JsonValue* stage = at("zero_optimization.stage");
    const bool stage3 = stage != nullptr && *stage == JsonValue(3);
    const auto size = [&](const std::string& path, auto&& rule, std::string_view formula) {
      if (!is_auto(path)) return;
      if (!values_.hidden_size) {
        missing_.push_back({path, "--model or --hidden-size", at(path)->position()});
      } else {
        put(path, JsonValue(static_cast<std::int64_t>(rule(*values_.hidden_size))),
            ValueSource::auto_value, concat(formula, " of hidden size ", *values_.hidden_size));
      }
    };
    size(
        "zero_optimization.reduce_bucket_size", [](std::int64_t h) { return h * h; }, "square");
    if (!stage3) return;
    size(
        "zero_optimization.stage3_prefetch_bucket_size",
        [](std::int64_t h) { return 0.9 * static_cast<double>(h) * static_cast<double>(h); },
        "0.9 x square");
    size(
        "zero_optimization.stage3_param_persistence_threshold",
        [](std::int64_t h) { return 10 * h; }, "10 times");
  }

  void report() {
    if (missing_.empty()) return;
    std::string message =
        missing_.size() == 1
            ? "this \"auto\" has nothing to take its value from; state a value in the "
              "file, or give the option:"
            : "these \"auto\" have nothing to take their values from; state values in "
              "the file, or give the options:";
    for (const Missing& entry : missing_) {
      message +=
          concat(&entry == &missing_.front() ? " " : "; ", entry.path, " (", entry.option, ")");
    }
    reader_.error(missing_.front().path, std::move(message), missing_.front().position);
    // Reported; no second complaint about the text "auto" where a number belongs.
    for (const Missing& entry : missing_) erase(entry.path);
  }

  void erase(const std::string& path) {
    const std::size_t dot = path.rfind('.');
    JsonValue* parent = dot == std::string::npos ? &root_ : at(path.substr(0, dot));
    if (parent != nullptr) parent->erase(dot == std::string::npos ? path : path.substr(dot + 1));
  }

  struct Missing {
    std::string path;
    std::string option;
    TextPosition position;
  };

  Reader& reader_;
  JsonValue& root_;
  const AutoValues& values_;
  int replicas_;
  std::vector<Missing> missing_;
};

}  // namespace

void resolve_autos(Reader& reader, JsonValue& root, const AutoValues& values, int replicas) {
  Resolver(reader, root, values, replicas).run();
}

}  // namespace zero3d::config
