// What stands in the tree for "auto", before it is read.
#include <algorithm>

#include "zero3d/core/text.h"
#include "zero3d/ds_config/rules.h"

namespace zero3d::config {

namespace {

class Resolver {
 public:
  Resolver(Reader& reader, JsonValue& root, const AutoValues& values, int replicas)
      : reader_(reader), root_(root), values_(values), replicas_(replicas) {}

  std::set<std::string> run() {
    batch();
    optimizer_and_scheduler();
    precision();
    hidden_size();
    return report();
  }

 private:
  template <typename T>
  static std::optional<JsonValue> json(const std::optional<T>& value) {
    return value ? std::optional<JsonValue>(JsonValue(*value)) : std::nullopt;
  }

  bool is_auto(std::string_view path) const {
    const JsonValue* node = root_.find_path(path);
    return node != nullptr && node->is_auto();
  }

  bool is_number(std::string_view path) const {
    const JsonValue* node = root_.find_path(path);
    return node != nullptr && node->is_number();
  }

  void put(const std::string& path, JsonValue value, ValueSource source, std::string note) {
    JsonValue* node = root_.find_path(path);
    value.set_position(node->position());
    *node = std::move(value);
    reader_.mark_origin(path, source, std::move(note));
  }

  /// Nothing fills this "auto", which `option` would.
  void miss(const std::string& path, std::string option) {
    missing_.push_back({path, std::move(option), root_.find_path(path)->position()});
  }

  /// "auto" takes a given option's value; a stated value must equal it.
  void take(const std::string& path, const std::optional<JsonValue>& value, std::string option,
            bool must_match = true) {
    const JsonValue* node = root_.find_path(path);
    if (!value || node == nullptr || node->is_null()) return;
    if (node->is_auto()) {
      put(path, *value, ValueSource::command_line, std::move(option));
    } else if (must_match && !(*node == *value)) {
      reader_.error(path,
                    concat("the file says ", node->excerpt(), " but ", option, " says ",
                           value->excerpt(), "; change one of them, or write \"auto\" in the file"),
                    node->position());
    }
  }

  /// As take(), of an "auto" that nothing else fills.
  void fill(const std::string& path, const std::optional<JsonValue>& value, std::string option,
            bool must_match = true) {
    if (!value && is_auto(path)) return miss(path, std::move(option));
    take(path, value, std::move(option), must_match);
  }

  void batch() {
    const std::string micro = "train_micro_batch_size_per_gpu";
    const std::string accumulation = "gradient_accumulation_steps";
    const std::string global = "train_batch_size";
    take(micro, json(values_.micro_batch), "--micro-batch");
    take(accumulation, json(values_.accumulation), "--accumulation");
    take(global, json(values_.global_batch), "--global-batch");
    if (!values_.global_batch && values_.micro_batch && values_.accumulation) {
      std::int64_t product = 0;
      if (!__builtin_mul_overflow(*values_.micro_batch, *values_.accumulation, &product) &&
          !__builtin_mul_overflow(product, replicas_, &product)) {
        take(global, JsonValue(product),
             concat("--micro-batch ", *values_.micro_batch, " x --accumulation ",
                    *values_.accumulation, " x dp ", replicas_));
      }
    }
    // What the other two of the triple determine needs no option.
    const auto derive = [&](const std::string& path, bool determined, const char* option) {
      if (!is_auto(path)) return;
      if (!determined) return miss(path, option);
      root_.erase(path);
    };
    const bool micro_known = is_number(micro), global_known = is_number(global);
    const bool accumulation_known = is_number(accumulation);
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
    std::optional<std::int64_t> warmup = values_.warmup_steps;
    if (warmup) warmup = std::max<std::int64_t>(1, *warmup);  // schedules need a positive number
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
    fill("scheduler.params.warmup_num_steps", json(warmup), "--warmup-steps");
  }

  void precision() {
    for (const std::string section : {"fp16", "bf16"}) {
      const std::string path = section + ".enabled";
      if (!values_.precision.empty()) {
        const auto& given = values_.precision;
        const bool named = std::find(given.begin(), given.end(), section) != given.end();
        fill(path, JsonValue(named), concat("--precision ", given.front()));
      } else if (is_auto(path)) {
        put(path, JsonValue(false), ValueSource::auto_value,
            concat("false for \"auto\" without --precision ", section));
      }
    }
  }

  void hidden_size() {
    using Rule = std::int64_t (*)(std::int64_t);
    const auto size = [&](const std::string& key, std::string_view formula, Rule rule) {
      const std::string path = "zero_optimization." + key;
      if (!is_auto(path)) return;
      if (!values_.hidden_size) return miss(path, "--model or --hidden-size");
      put(path, JsonValue(rule(*values_.hidden_size)), ValueSource::auto_value,
          concat(formula, " of hidden size ", *values_.hidden_size));
    };
    size("reduce_bucket_size", "square", [](std::int64_t h) { return h * h; });
    const JsonValue* stage = root_.find_path("zero_optimization.stage");
    if (stage == nullptr || !(*stage == JsonValue(3))) return;
    size("stage3_prefetch_bucket_size", "0.9 x square", [](std::int64_t h) {
      return static_cast<std::int64_t>(0.9 * static_cast<double>(h) * static_cast<double>(h));
    });
    size("stage3_param_persistence_threshold", "10 times", [](std::int64_t h) { return 10 * h; });
  }

  std::set<std::string> report() {
    if (missing_.empty()) return {};
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
    std::set<std::string> paths;
    for (const auto& [path, option, position] : missing_) {
      paths.insert(path);
      const std::size_t dot = path.rfind('.');
      JsonValue* parent = dot == std::string::npos ? &root_ : root_.find_path(path.substr(0, dot));
      parent->erase(path.substr(dot + 1));
    }
    return paths;
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

std::set<std::string> resolve_autos(Reader& reader, JsonValue& root, const AutoValues& values,
                                    int replicas) {
  return Resolver(reader, root, values, replicas).run();
}

}  // namespace zero3d::config
