// Runs that only the API can make (scopes, boundaries set by hand, evaluation in between, edited
// parameters), each under every ZeRO stage that allows it; prints a line per run: its name, and
// digests of its norms and losses, and of parameters, masters and moments. Driven by
// tools/fingerprints.py; no test by itself.
#include <cstdio>
#include <cstring>

#include "zero3d/core/text.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

constexpr int kRanks = 2;
constexpr int kAccumulation = 3;
constexpr int kSteps = 3;

std::uint64_t fnv(const void* data, std::size_t bytes, std::uint64_t hash) {
  const auto* byte = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; ++i) hash = (hash ^ byte[i]) * 0x100000001b3u;
  return hash;
}

std::uint64_t fnv(const std::vector<std::byte>& bytes, std::uint64_t hash) {
  return fnv(bytes.data(), bytes.size(), hash);
}

std::uint64_t digest(const ModelState& state) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const auto& [name, parameter] : state) {
    hash = fnv(name.data(), name.size(), hash);
    hash = fnv(parameter.value, hash);
    hash = fnv(parameter.master, hash);
    for (const std::vector<std::byte>& moment : parameter.states) hash = fnv(moment, hash);
  }
  return hash;
}

/// What rank 0 saw on its way, in order.
struct Seen {
  std::uint64_t hash = 0xcbf29ce484222325u;
  void add(double value) { hash = fnv(&value, sizeof value, hash); }
  void add(const StepResult& step) {
    add(step.loss);
    add(step.grad_norm);
    add(static_cast<double>(step.tokens));
  }
};

TokenBatch batch_at(int rank, int step, int micro) {
  return nano_batch({rank, step, micro}, kRanks, kAccumulation, 2);
}

using Body = std::function<void(Engine&, int rank, Seen&)>;

struct Scenario {
  const char* name;
  std::vector<int> stages;
  const char* top;  ///< More keys of the ds_config.
  Body body;
};

void micro_batch(Engine& engine, int rank, int step, int micro) {
  engine.forward(batch_at(rank, step, micro).view());
  engine.backward();
}

void pieces(Engine& engine, int rank, Seen& seen) {
  for (int step = 0; step < kSteps; ++step) {
    for (int micro = 0; micro < kAccumulation; ++micro) {
      micro_batch(engine, rank, step, micro);
      seen.add(engine.loss());
      engine.step();
    }
    seen.add(engine.last_step());
  }
}

void whole_batches(Engine& engine, int rank, Seen& seen) {
  for (int step = 0; step < kSteps; ++step) {
    std::vector<TokenBatch> batches;
    std::vector<MicroBatch> views;
    for (int micro = 0; micro < kAccumulation; ++micro)
      batches.push_back(batch_at(rank, step, micro));
    for (const TokenBatch& batch : batches) views.push_back(batch.view());
    seen.add(engine.train_batch(views));
    for (const double rate : engine.get_lr()) seen.add(rate);
  }
}

void without_sync(Engine& engine, int rank, Seen& seen) {
  for (int step = 0; step < kSteps; ++step) {
    engine.no_sync([&] {
      for (int micro = 0; micro < 2; ++micro) micro_batch(engine, rank, step, micro);
    });
    engine.set_gradient_accumulation_boundary(true);
    micro_batch(engine, rank, step, 2);
    engine.step();
    seen.add(engine.last_step());
  }
}

void coalesced(Engine& engine, int rank, Seen& seen) {
  for (int step = 0; step < kSteps; ++step) {
    engine.coalesce_grad_reduction([&] {
      for (int micro = 0; micro < 2; ++micro) micro_batch(engine, rank, step, micro);
    });
    engine.set_gradient_accumulation_boundary(true);
    micro_batch(engine, rank, step, 2);
    engine.step();
    seen.add(engine.last_step());
  }
}

/// Windows of two, one and three micro-batches.
void boundaries_by_hand(Engine& engine, int rank, Seen& seen) {
  for (int step = 0; step < kSteps; ++step) {
    const int window = step == 0 ? 2 : step == 1 ? 1 : 3;
    for (int micro = 0; micro < window; ++micro) {
      engine.set_gradient_accumulation_boundary(micro + 1 == window);
      micro_batch(engine, rank, step, micro);
      engine.step();
    }
    seen.add(engine.last_step());
  }
}

/// managed_gradient_accumulation false: a window ends when the caller steps.
void unmanaged(Engine& engine, int rank, Seen& seen) {
  for (int step = 0; step < kSteps; ++step) {
    for (int micro = 0; micro <= step; ++micro) micro_batch(engine, rank, step, micro);
    engine.step();
    seen.add(engine.last_step());
  }
}

void evaluation_between(Engine& engine, int rank, Seen& seen) {
  const std::vector<std::int32_t> prompt = {1, 2, 3, 5, 8};
  for (int step = 0; step < kSteps; ++step) {
    for (int micro = 0; micro < kAccumulation; ++micro) {
      const TokenBatch held_out = batch_at(rank, 100 + step, micro);
      const MicroBatch view = held_out.view();
      seen.add(engine.eval_batch({&view, 1}));
      micro_batch(engine, rank, step, micro);
      engine.step();
    }
    for (const float logit : engine.next_logits(prompt)) seen.add(static_cast<double>(logit));
    seen.add(engine.last_step());
  }
}

/// Rank 1 doubles two parameters between steps.
void edited_parameters(Engine& engine, int rank, Seen& seen) {
  for (int step = 0; step < kSteps; ++step) {
    for (int micro = 0; micro < kAccumulation; ++micro) {
      micro_batch(engine, rank, step, micro);
      engine.step();
    }
    seen.add(engine.last_step());
    engine.model().with_parameters(
        {"transformer.ln_f.weight", "transformer.h.1.attn.c_attn.weight"}, 1,
        [&](const ParameterSpec&, View view) {
          if (rank != 1) return;
          for (std::int64_t i = 0; i < view.numel(); ++i) {
            if (view.dtype() == DType::f32) view.as<float>()[i] *= 2;
            if (view.dtype() == DType::bf16)
              view.as<bf16>()[i] = from_float<bf16>(2 * to_float(view.as<bf16>()[i]));
          }
        });
  }
}

const std::vector<Scenario>& scenarios() {
  const std::vector<int> all = {0, 1, 2, 3};
  static const std::vector<Scenario> list = {
      {"pieces", all, "", pieces},
      {"train_batch", all, "", whole_batches},
      {"no_sync", {0, 1}, "", without_sync},
      {"coalesce", {1, 2, 3}, "", coalesced},
      {"boundaries", all, "", boundaries_by_hand},
      {"unmanaged", all, R"(, "managed_gradient_accumulation": false)", unmanaged},
      {"evaluation", all, "", evaluation_between},
      {"edited", all, "", edited_parameters}};
  return list;
}

void run(const Scenario& scenario, int stage, bool tied, const char* precision) {
  Seen seen;
  ModelConfig model = nano_gpt2(tied);
  model.embedding_dropout = model.residual_dropout = model.attention_dropout = 0.1;
  RunOptions options = nano_options(model, kRanks, kAccumulation);
  options.body = [&](Engine& engine, Module&, int rank) {
    Seen mine;
    scenario.body(engine, rank, mine);
    if (rank == 0) seen = mine;
  };
  const RunResult result = run_engine(
      concat(R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": )",
             kAccumulation,
             R"(, "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}})",
             scenario.top, precision,
             R"(, "zero_optimization": {"stage3_param_persistence_threshold": 20, "stage": )",
             stage, "}}"),
      options);
  std::printf("%s-z%d%s%s %016llx %016llx\n", scenario.name, stage, tied ? "-tied" : "",
              *precision ? "-bf16" : "", static_cast<unsigned long long>(seen.hash),
              static_cast<unsigned long long>(digest(result.state)));
}

}  // namespace
}  // namespace zero3d::test

int main() {
  using namespace zero3d::test;
  for (const Scenario& scenario : scenarios()) {
    for (const int stage : scenario.stages) {
      run(scenario, stage, true, "");
      run(scenario, stage, false, R"(, "bf16": {"enabled": true})");
    }
  }
}
