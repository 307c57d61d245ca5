#include "train_facts.h"

#include <algorithm>
#include <span>
#include <sstream>

#include "zero3d/core/random.h"
#include "zero3d/core/text.h"
#include "zero3d/models/build.h"

namespace zero3d::tools {
namespace {

/// Line breaks and tabs as blanks.
std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
  return text;
}

std::string quoted(const std::vector<std::string>& parts) {
  return concat("'", joined(parts, "' '"), "'");
}

template <typename T>
std::uint64_t hash_of(const std::vector<T>& values) {
  return hash_name(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

/// The first elements of up to `pieces` pieces of `size`, spread over `total`: its head, its tail,
/// and some between.
std::vector<std::int64_t> spread(std::int64_t total, std::int64_t size, std::int64_t pieces) {
  std::vector<std::int64_t> firsts;
  const std::int64_t last = std::max<std::int64_t>(0, total - size);
  for (std::int64_t i = 0; i < pieces; ++i) {
    const std::int64_t first = last / (pieces - 1) * i + last % (pieces - 1) * i / (pieces - 1);
    if (firsts.empty() || first > firsts.back()) firsts.push_back(first);
  }
  return firsts;
}

std::string describe_weights(const TrainPlan& plan) {
  constexpr std::int64_t kPiece = 64, kPieces = 4;
  if (plan.weights == nullptr) return "drawn";
  std::vector<float> sample;
  for (const ParameterSpec& spec : list_parameters(*build_model(plan.model))) {
    for (const std::int64_t first : spread(spec.shape.numel(), kPiece, kPieces)) {
      const GlobalRun run{first, std::min(kPiece, spec.shape.numel() - first), 0};
      sample.resize(sample.size() + static_cast<std::size_t>(run.count));
      float* values = sample.data() + sample.size() - run.count;
      plan.weights->read(spec, {&run, 1},
                         View(reinterpret_cast<std::byte*>(values), DType::f32, Shape{run.count}));
    }
  }
  return concat("of the folder, like ", hash_of(sample));
}

}  // namespace

std::string describe_tokens(const Dataset* data) {
  constexpr std::int64_t kPiece = 4096, kPieces = 64;
  if (data == nullptr) return "none";
  const TokenFile& file = data->tokens();
  std::vector<std::int32_t> sample;
  for (const std::int64_t first : spread(file.tokens(), kPiece, kPieces)) {
    const std::int64_t count = std::min(kPiece, file.tokens() - first);
    sample.resize(sample.size() + static_cast<std::size_t>(count));
    file.read(first, count, sample.data() + sample.size() - count);
  }
  return concat(file.tokens(), " tokens like ", hash_of(sample));
}

std::string describe_facts(const TrainPlan& plan) {
  const TrainRequest& request = plan.request;
  std::string facts;  // name and value in turn, a line each
  const auto add = [&facts](const char* name, const auto& value) {
    facts += concat(name, "\n", one_line(concat(value)), "\n");
  };
  const auto add_output = [&add](const char* name, const std::string& path) {
    add(name, path.empty() ? "absent" : "given");
  };
  add("the configuration (--config and its options)", config_fingerprint(plan.loaded.config));
  add("the model (--model)", to_config_json(plan.model, DType::f32));
  add("the weights (--model, --from-scratch)", describe_weights(plan));
  add("the tokens of --data", describe_tokens(plan.data.get()));
  add("the tokens of --eval-data", describe_tokens(plan.eval_data.get()));
  add("--device", plan.device == DeviceKind::cuda ? "cuda" : "cpu");
  add("--seq-len", plan.sequence_length);
  add("--steps", request.steps);
  add("--order", request.order);
  add("--seed", request.seed);
  add("--freeze", quoted(request.freeze));
  add("--no-decay", quoted(request.no_decay));
  add("--eval-interval", request.eval_interval);
  add_output("--export", request.export_folder);
  add_output("--metrics", request.metrics);
  add_output("--trace", request.trace);
  add("--save", request.save);
  add("--save-interval", request.save_interval);
  add("--keep-last", request.keep_last);
  add("--save-async", request.save_async);
  add("the checkpoint of --resume",
      plan.resumed == nullptr ? "none" : to_text(plan.resumed->run().state));
  add("--override", quoted(request.overrides));
  add("--map", quoted(request.map));
  add_output("--print-schedule", request.print_schedule);
  add("--generate", request.generate);
  add("--generate-tokens", request.generate_tokens);
  add("--temperature", request.temperature);
  add("--max-skipped-steps", request.max_skipped_steps);
  add("--comm-timeout", request.comm_timeout);
  add("--io-timeout", request.io_timeout);
  add("--dry-run", request.dry_run);
  add("--reduce-each-micro-batch", request.reduce_each_micro_batch);
  return facts;
}

std::string find_disagreement(const std::vector<std::string>& all) {
  const auto lines_of = [](const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  };
  const std::vector<std::string> first = lines_of(all.front());
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const std::vector<std::string> lines = lines_of(all[rank]);
    for (std::size_t i = 0; i + 1 < first.size() && i + 1 < lines.size(); i += 2) {
      if (lines[i + 1] == first[i + 1]) continue;
      return concat("rank ", rank, " disagrees with rank 0 about ", first[i], ": ", lines[i + 1],
                    " and ", first[i + 1], "; start every rank with the same options and files");
    }
  }
  return "";
}

}  // namespace zero3d::tools
