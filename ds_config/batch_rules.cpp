// The degrees and the batch triple: train_batch_size = micro-batch x accumulation x dp.
#include <array>

#include "zero3d/core/text.h"
#include "zero3d/ds_config/rules.h"
#include "zero3d/parallel/topology.h"

namespace zero3d::config {

namespace {

/// A positive integer of the raw tree, 1 when absent or faulty (its section's reading reports
/// faults).
std::int64_t raw_degree(const JsonValue& root, const std::string& path) {
  const JsonValue* node = root.find_path(path);
  return node != nullptr && node->is_integer() && node->as_integer() >= 1 ? node->as_integer() : 1;
}

/// Why dp is not the world size.
std::string explain_dp(const ParallelDegrees& degrees) {
  if (degrees.dp == degrees.ranks) return {};
  std::string shared;
  const auto add = [&](const char* name, int value) {
    if (value > 1) append_item(shared, " x ", name, " ", value);
  };
  add("tp", degrees.tp);
  add("pp", degrees.pp);
  add("sp", degrees.sp);
  return concat(" (dp is ", degrees.dp, ", not the ", degrees.ranks, " ranks: one replica takes ",
                shared, " = ", degrees.ranks / degrees.dp, " of them)");
}

/// The multiples of `step` around `value` that are positive, as a suggestion.
std::string near_multiples(std::int64_t value, std::int64_t step) {
  const std::int64_t below = value / step * step;
  if (below > INT64_MAX - step) return std::to_string(below);
  return below == 0 ? std::to_string(step) : concat(below, " or ", below + step);
}

/// a x b x c, saturating: a product beyond 64 bits equals no batch size.
std::int64_t product(std::int64_t a, std::int64_t b, std::int64_t c) {
  std::int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result) || __builtin_mul_overflow(result, c, &result)) {
    return INT64_MAX;
  }
  return result;
}

/// One of the triple.
struct Factor {
  std::string_view key;
  std::int64_t value;
  bool given;

  Factor(const Draft& draft, std::string_view name)
      : key(name), value(draft.config.integer(name)), given(false) {
    const JsonValue* stated = draft.root.find(name);
    given = stated != nullptr && !stated->is_null();
  }
  std::string text() const { return concat(key, " ", value); }
};

class BatchTriple {
 public:
  explicit BatchTriple(const Draft& draft)
      : draft_(draft),
        dp_(draft.config.degrees.dp),
        train_(draft, "train_batch_size"),
        micro_(draft, "train_micro_batch_size_per_gpu"),
        accumulation_(draft, "gradient_accumulation_steps") {}

  void complete() {
    if (!train_.given && !micro_.given) {
      draft_.error(
          std::string(train_.key),
          concat("state ", train_.key, " or ", micro_.key,
                 accumulation_.given ? concat("; ", accumulation_.key,
                                              " alone does not say how many samples a step takes")
                                     : " (with one of them the others follow)"));
    } else if (!train_.given) {
      multiply();
    } else if (micro_.given && accumulation_.given) {
      compare();
    } else if (micro_.given) {
      divide(accumulation_, micro_);
    } else if (accumulation_.given) {
      divide(micro_, accumulation_);
    } else {
      split();
    }
  }

 private:
  void refuse(const std::string& message) const {
    draft_.error(std::string(train_.key), message + explain_dp(draft_.config.degrees));
  }

  void derive(const Factor& factor, std::int64_t value, std::string note) const {
    draft_.config.set(factor.key, JsonValue(value));
    draft_.reader.record(std::string(factor.key), ValueSource::derived, std::move(note));
  }

  /// All three are given.
  void compare() const {
    const std::string factors = concat(micro_.text(), " x ", accumulation_.text(), " x dp ", dp_);
    const std::int64_t fits = product(micro_.value, accumulation_.value, dp_);
    if (fits == INT64_MAX) return refuse(concat(factors, " is beyond 64 bits; lower them"));
    if (fits == train_.value) return;
    std::string fix = concat("set ", train_.key, " to ", fits);
    const std::int64_t micros = micro_.value * dp_, steps = accumulation_.value * dp_;
    if (train_.value % micros == 0) {
      fix += concat(", or ", accumulation_.key, " to ", train_.value / micros);
    } else if (train_.value % steps == 0) {
      fix += concat(", or ", micro_.key, " to ", train_.value / steps);
    }
    refuse(concat(train_.key, " is ", train_.value, ", but ", factors, " = ", fits, "; ", fix));
  }

  /// The batch and one factor are given.
  void divide(const Factor& target, const Factor& divisor) const {
    const std::int64_t step = product(divisor.value, dp_, 1);
    if (train_.value % step == 0) {
      return derive(target, train_.value / step, concat(train_.key, " / (", divisor.key, " x dp)"));
    }
    const std::string factors = concat(divisor.text(), " x dp ", dp_, " = ", step);
    refuse(train_.value < step
               ? concat(train_.text(), " is smaller than ", factors, ", so ", target.key,
                        " would be 0; set ", train_.key, " to ", step,
                        " or a multiple of it, or lower ", divisor.key)
               : concat(train_.text(), " is not a multiple of ", factors, "; set ", train_.key,
                        " to ", near_multiples(train_.value, step), ", or change ", divisor.key));
  }

  /// Only the batch is given.
  void split() const {
    if (train_.value % dp_ != 0) {
      return refuse(concat(train_.text(), " is not divisible by dp ", dp_, "; set it to ",
                           near_multiples(train_.value, dp_)));
    }
    derive(micro_, train_.value / dp_, concat(train_.key, " / dp"));
    derive(accumulation_, 1, "1, since neither is stated");
  }

  /// The micro-batch is given, perhaps the accumulation, but not the batch.
  void multiply() const {
    const std::int64_t steps = accumulation_.given ? accumulation_.value : 1;
    if (!accumulation_.given) derive(accumulation_, steps, "1, since it is not stated");
    const std::string factors = concat(micro_.key, " x ", accumulation_.key, " x dp");
    const std::int64_t batch = product(micro_.value, steps, dp_);
    if (batch == INT64_MAX) return refuse(concat(factors, " is beyond 64 bits; lower them"));
    derive(train_, batch, factors);
  }

  const Draft& draft_;
  const std::int64_t dp_;
  const Factor train_;
  const Factor micro_;
  const Factor accumulation_;
};

}  // namespace

namespace {

/// One degree: `path` in the file, over it `own` of our section, over both the option.
struct DegreeKeys {
  const char* path;
  const char* own;
  const char* option;
  const char* name;
  std::optional<int> given;
};

std::array<DegreeKeys, 3> degree_keys(const LoadOptions& options) {
  return {{{"tensor_parallel.autotp_size", "zero3d.tp", "--tp", "tp", options.tp},
           {"pipeline.stages", "zero3d.pp", "--pp", "pp", options.pp},
           {"sequence_parallel_size", "zero3d.sp", "--sp", "sp", options.sp}}};
}

std::int64_t degree_of(const JsonValue& root, const DegreeKeys& keys) {
  if (keys.given) return *keys.given;
  return root.find_path(keys.own) != nullptr ? raw_degree(root, keys.own)
                                             : raw_degree(root, keys.path);
}

}  // namespace

ParallelDegrees resolve_degrees(Reader& reader, const JsonValue& root, const LoadOptions& options) {
  ParallelDegrees degrees;
  degrees.ranks = options.ranks;
  std::array<std::int64_t, 3> values{};
  std::string factors;
  std::string path;
  const auto keys = degree_keys(options);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    values[i] = degree_of(root, keys[i]);
    if (values[i] < 1) {
      reader.error(keys[i].path, concat("a degree is at least 1, found ", values[i]));
      return degrees;
    }
    if (values[i] == 1) continue;
    if (path.empty()) path = keys[i].path;
    append_item(factors, " x ", keys[i].name, " ", values[i]);
  }
  const auto& [tp, pp, sp] = values;
  const std::int64_t shared = product(tp, pp, sp);
  if (shared == INT64_MAX || options.ranks % shared != 0) {
    if (factors.find('x') != std::string::npos) factors += concat(" = ", shared);
    reader.error(path, concat(options.ranks, " ranks cannot be dealt to ", factors,
                              ": ranks = dp x tp x pp x sp must come out whole; possible: ",
                              nearest_meshes(options.ranks, tp, pp, sp)));
    return degrees;
  }
  degrees.tp = static_cast<int>(tp);
  degrees.pp = static_cast<int>(pp);
  degrees.sp = static_cast<int>(sp);
  degrees.dp = static_cast<int>(options.ranks / shared);
  // DeepSpeed makes a mesh of both keys, which has to have all ranks.
  const std::int64_t replicas = raw_degree(root, "data_parallel_size");
  if (sp > 1 && root.find("data_parallel_size") != nullptr && replicas != degrees.dp)
    reader.error("data_parallel_size",
                 concat("is ", replicas, ", but ", options.ranks, " ranks with ", factors,
                        " have dp ", degrees.dp, ": state ", degrees.dp, ", or remove the key"));
  return degrees;
}

void state_degrees(const Draft& draft, const LoadOptions& options) {
  const auto stated = [&](const char* path) {
    const JsonValue* value = draft.root.find_path(path);
    return value != nullptr && value->is_integer() ? value : nullptr;
  };
  for (const DegreeKeys& keys : degree_keys(options)) {
    const std::int64_t value = degree_of(draft.root, keys);
    const bool own = !keys.given && stated(keys.own) != nullptr;
    if (!keys.given && !own) continue;
    const char* source = own ? keys.own : keys.option;
    for (const char* path : {keys.own, keys.path}) {
      const JsonValue* other = stated(path);
      if (path == source || other == nullptr || *other == JsonValue(value)) continue;
      draft.warning(path, concat("is ", other->as_integer(), ", and ", source, " says ", value,
                                 ": ", source, " is heeded"));
    }
    draft.config.set(keys.path, JsonValue(value));
    if (draft.config.has(keys.own)) draft.config.set(keys.own, JsonValue());
    draft.reader.record(keys.path, own ? ValueSource::file : ValueSource::command_line, source);
  }
}

void finish_batch(const Draft& draft) { BatchTriple(draft).complete(); }

}  // namespace zero3d::config
