// The degrees and the batch triple: train_batch_size = micro-batch x accumulation x dp.
#include "zero3d/core/text.h"
#include "zero3d/ds_config/rules.h"

namespace zero3d::config {

namespace {

constexpr std::string_view kTrain = "train_batch_size";
constexpr std::string_view kMicro = "train_micro_batch_size_per_gpu";
constexpr std::string_view kAccumulation = "gradient_accumulation_steps";

/// A positive integer at `section`.`key` of the raw tree, 1 when absent or faulty (the section's
/// own reading reports faults).
std::int64_t raw_degree(const JsonValue& root, std::string_view section, std::string_view key) {
  const JsonValue* node = section.empty() ? &root : root.find(section);
  node = node == nullptr ? nullptr : node->find(key);
  return node != nullptr && node->is_integer() && node->as_integer() >= 1 ? node->as_integer() : 1;
}

struct Named {
  std::string path;
  std::int64_t value = 1;
};

/// Why dp is not the world size.
std::string explain_dp(const ParallelDegrees& degrees) {
  if (degrees.dp == degrees.ranks) return {};
  std::string shared;
  const auto add = [&](const char* name, int value) {
    if (value > 1) shared += concat(shared.empty() ? "" : " x ", name, " ", value);
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

class BatchTriple {
 public:
  BatchTriple(Reader& reader, const JsonValue& root, Config& config)
      : reader_(reader),
        root_(root),
        config_(config),
        dp_(config.degrees.dp),
        train_(config.integer(kTrain)),
        micro_(config.integer(kMicro)),
        accumulation_(config.integer(kAccumulation)) {}

  void finish() {
    complete();
    config_.set(kTrain, JsonValue(train_));
    config_.set(kMicro, JsonValue(micro_));
    config_.set(kAccumulation, JsonValue(accumulation_));
  }

 private:
  void complete() {
    const bool train = given(kTrain);
    const bool micro = given(kMicro);
    const bool accumulation = given(kAccumulation);
    if (!train && !micro) {
      reader_.error(std::string(kTrain),
                    concat("state ", kTrain, " or ", kMicro,
                           accumulation ? concat("; ", kAccumulation,
                                                 " alone does not say how many "
                                                 "samples a step takes")
                                        : std::string(" (with one of them the others follow)")));
      return;
    }
    if (train && micro && accumulation) {
      all_given();
    } else if (train && micro) {
      derive_from_train(accumulation_, kAccumulation, kMicro, micro_);
    } else if (train && accumulation) {
      derive_from_train(micro_, kMicro, kAccumulation, accumulation_);
    } else if (train) {
      only_train();
    } else {
      derive_train(accumulation);
    }
  }

  bool given(std::string_view key) const {
    const JsonValue* value = root_.find(key);
    return value != nullptr && !value->is_null();
  }

  TextPosition position(std::string_view key) const {
    const JsonValue* value = root_.find(key);
    return value == nullptr ? TextPosition{} : value->position();
  }

  void refuse(const std::string& message) {
    reader_.error(std::string(kTrain), message + explain_dp(config_.degrees), position(kTrain));
  }

  void all_given() {
    const std::int64_t fits = product(micro_, accumulation_, dp_);
    if (fits == train_ && fits != INT64_MAX) return;
    if (fits == INT64_MAX) {
      refuse(concat(kMicro, " ", micro_, " x ", kAccumulation, " ", accumulation_, " x dp ", dp_,
                    " is beyond 64 bits; lower them"));
      return;
    }
    std::string fix = concat("set ", kTrain, " to ", fits);
    if (train_ % product(micro_, dp_, 1) == 0) {
      fix += concat(", or ", kAccumulation, " to ", train_ / (micro_ * dp_));
    } else if (train_ % product(accumulation_, dp_, 1) == 0) {
      fix += concat(", or ", kMicro, " to ", train_ / (accumulation_ * dp_));
    }
    refuse(concat(kTrain, " is ", train_, ", but ", kMicro, " ", micro_, " x ", kAccumulation, " ",
                  accumulation_, " x dp ", dp_, " = ", fits, "; ", fix));
  }

  void derive_from_train(std::int64_t& target, std::string_view target_key,
                         std::string_view divisor_key, std::int64_t divisor) {
    const std::int64_t step = product(divisor, dp_, 1);
    if (train_ % step != 0) {
      const std::string factors = concat(divisor_key, " ", divisor, " x dp ", dp_, " = ", step);
      if (train_ < step) {
        refuse(concat(kTrain, " ", train_, " is smaller than ", factors, ", so ", target_key,
                      " would be 0; set ", kTrain, " to ", step, " or a multiple of it, or lower ",
                      divisor_key));
      } else {
        refuse(concat(kTrain, " ", train_, " is not a multiple of ", factors, "; set ", kTrain,
                      " to ", near_multiples(train_, step), ", or change ", divisor_key));
      }
      return;
    }
    target = train_ / step;
    reader_.record(std::string(target_key), ValueSource::derived,
                   concat(kTrain, " / (", divisor_key, " x dp)"));
  }

  void only_train() {
    if (train_ % dp_ != 0) {
      refuse(concat(kTrain, " ", train_, " is not divisible by dp ", dp_, "; set it to ",
                    near_multiples(train_, dp_)));
      return;
    }
    micro_ = train_ / dp_;
    accumulation_ = 1;
    reader_.record(std::string(kMicro), ValueSource::derived, concat(kTrain, " / dp"));
    reader_.record(std::string(kAccumulation), ValueSource::derived, "1, since neither is stated");
  }

  void derive_train(bool accumulation) {
    if (!accumulation) {
      accumulation_ = 1;
      reader_.record(std::string(kAccumulation), ValueSource::derived, "1, since it is not stated");
    }
    train_ = product(micro_, accumulation_, dp_);
    if (train_ == INT64_MAX) {
      refuse(concat(kMicro, " x ", kAccumulation, " x dp is beyond 64 bits; lower them"));
      return;
    }
    reader_.record(std::string(kTrain), ValueSource::derived,
                   concat(kMicro, " x ", kAccumulation, " x dp"));
  }

  Reader& reader_;
  const JsonValue& root_;
  Config& config_;
  std::int64_t dp_;
  std::int64_t train_;
  std::int64_t micro_;
  std::int64_t accumulation_;
};

}  // namespace

ParallelDegrees resolve_degrees(Reader& reader, const JsonValue& root, const LoadOptions& options) {
  Named tp{"tensor_parallel.autotp_size", raw_degree(root, "tensor_parallel", "autotp_size")};
  Named pp{"pipeline.stages", raw_degree(root, "pipeline", "stages")};
  Named sp{"sequence_parallel_size", raw_degree(root, "", "sequence_parallel_size")};
  if (options.tp) tp.value = *options.tp;
  if (options.pp) pp.value = *options.pp;
  ParallelDegrees degrees;
  degrees.ranks = options.ranks;
  for (const Named* degree : {&tp, &pp}) {
    if (degree->value >= 1) continue;
    reader.error(degree->path, concat("a degree is at least 1, found ", degree->value));
    return degrees;
  }
  const std::int64_t shared = product(tp.value, pp.value, sp.value);
  if (shared == INT64_MAX || options.ranks % shared != 0) {
    std::string factors;
    std::string path;
    for (const Named* degree : {&tp, &pp, &sp}) {
      if (degree->value == 1) continue;
      if (path.empty()) path = degree->path;
      factors += concat(factors.empty() ? "" : " x ", degree->path, " ", degree->value);
    }
    reader.error(path, concat(options.ranks, " ranks cannot be split by ", factors, " = ", shared,
                              ": ranks = dp x tp x pp must come out whole; change it, or run on a "
                              "multiple of ",
                              shared, " ranks"));
    return degrees;
  }
  degrees.tp = static_cast<int>(tp.value);
  degrees.pp = static_cast<int>(pp.value);
  degrees.sp = static_cast<int>(sp.value);
  degrees.dp = static_cast<int>(options.ranks / shared);
  return degrees;
}

void finish_batch(const Draft& draft) {
  BatchTriple(draft.reader, draft.root, draft.config).finish();
}

}  // namespace zero3d::config
