// Models whose layers are cut into tiles: at one cut the same bits at every stage, on every tier
// and however a step is ordered, and the uncut model's results but for the rounding of sums.
#include <gtest/gtest.h>

#include <cmath>

#include "zero3d/core/text.h"
#include "zero3d/engine/memory_fit.h"
#include "zero3d/engine/tiling.h"
#include "zero3d/kernels/elementwise.h"
#include "zero3d/models/choose_tiles.h"
#include "zero3d/tests/engine/schedules.h"
#include "zero3d/tests/support/log_capture.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

std::string json_of(int stage, const std::string& precision = "", const std::string& zero = "",
                    const std::string& more = "") {
  return concat(R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
      "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}})",
                precision, more, R"(, "zero_optimization": {"stage": )", stage,
                R"(, "stage3_param_persistence_threshold": 0)", zero, "}}");
}

RunOptions cut_options(const ModelConfig& model, const TileSettings& tiles, int ranks) {
  RunOptions options = nano_options(model, ranks, 2);
  options.make_module = [model, tiles](int) { return build_model(model, tiles); };
  return options;
}

struct Shape2 {
  const char* name;
  ModelConfig model;
};

std::vector<Shape2> shapes() {
  return {{"gpt2 tied", nano_gpt2(true)},
          {"gpt2 untied", nano_gpt2(false)},
          {"llama tied", nano_llama(true)},
          {"llama untied", nano_llama(false)}};
}

ModelConfig with_dropout(ModelConfig model) {
  model.embedding_dropout = model.attention_dropout = model.residual_dropout = 0.1;
  return model;
}

/// Norm of the difference over the norm.
double distance(const std::vector<float>& expected, const std::vector<float>& actual) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(static_cast<double>(expected[i]) - actual[i], 2);
    norm += std::pow(expected[i], 2);
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

TEST(Tiles, OperationsGoUpInForwardAndDownInBackward) {
  const std::vector<Op> plain = plan_step({2, 0}, 1);
  const std::vector<int> tiles = {1, 3};
  std::vector<std::pair<int, int>> order;
  for (const Op& op : with_tiles(plain, tiles))
    if (uses_parameters(op.kind)) order.emplace_back(op.block, op.tile);
  EXPECT_EQ(order, (std::vector<std::pair<int, int>>{
                       {0, 0}, {1, 0}, {1, 1}, {1, 2}, {1, 2}, {1, 1}, {1, 0}, {0, 0}}));
  EXPECT_EQ(with_tiles(plain, std::vector<int>{1, 1}), plain);
}

/// The first loss and gradients, and what training makes of them.
TEST(Tiles, GiveTheUncutModelsResults) {
  const std::vector<TileSettings> cuts[] = {
      {{2, 1}, {70, 70}}, {{3, 3}}, {{1, 3}, {3, 2}}, {{2, 3}}};  // 70: more tiles than outputs
  std::size_t next = 0;
  for (const auto& [name, plain] : shapes()) {
    const ModelConfig model = plain.tied ? plain : with_dropout(plain);
    const RunResult uncut = run_engine(json_of(3), cut_options(model, {}, 1));
    for (const TileSettings& tiles : cuts[next++]) {
      SCOPED_TRACE(concat(name, ", tiles ", tiles.linear, " and ", tiles.head));
      const RunResult cut = run_engine(json_of(3), cut_options(model, tiles, 1));
      EXPECT_TRUE(close(uncut, cut, 1e-6));
      for (const auto& [parameter, gradient] : uncut.gradients[0])
        EXPECT_LT(distance(gradient, cut.gradients[0].at(parameter)), 1e-6) << parameter;
    }
  }
}

/// Outputs of a linear layer are sums over its inputs, which no tile cuts.
TEST(Tiles, OfLinearLayersKeepTheBitsOfForward) {
  for (const ModelConfig& model : {nano_gpt2(true), nano_llama(false)}) {
    RunOptions options = cut_options(model, {}, 1);
    options.steps = 1;
    const RunResult uncut = run_engine(json_of(3), options);
    options.make_module = [&](int) { return build_model(model, {3, 1}); };
    EXPECT_EQ(uncut.steps[0].loss, run_engine(json_of(3), options).steps[0].loss);
  }
}

TEST(Tiles, AgreeOverStagesAndTiersToTheBit) {
  const TemporaryFolder folder;
  const LogCapture log;
  const char* bf16 = R"(, "bf16": {"enabled": true})";
  const char* fp16 = R"(, "fp16": {"enabled": true, "loss_scale": 128})";
  struct Scenario {
    ModelConfig model;
    const char* precision;
    TileSettings tiles;
    int ranks;
  };
  for (const auto& [model, precision, tiles, ranks] : {Scenario{nano_gpt2(true), "", {3, 3}, 2},
                                                       {nano_llama(false), bf16, {2, 3}, 2},
                                                       {nano_gpt2(false), fp16, {3, 2}, 1},
                                                       {nano_llama(true), bf16, {1, 3}, 2}}) {
    SCOPED_TRACE(concat("tiles ", tiles.linear, " and ", tiles.head, precision));
    RunOptions options = cut_options(model, tiles, ranks);
    options.steps = 2;
    const RunResult whole = run_engine(json_of(0, precision), options);
    EXPECT_TRUE(same_bits(whole, run_engine(json_of(1, precision), options)));
    const RunResult sharded = run_engine(json_of(2, precision), options);
    const RunResult gathered = run_engine(json_of(3, precision), options);
    EXPECT_TRUE(same_bits(sharded, gathered));
    for (const std::string& place :
         {std::string(R"({"device": "cpu"})"),
          concat(R"({"device": "nvme", "nvme_path": ")", folder.path().string(), R"("})")}) {
      const std::string offload =
          concat(R"(, "offload_optimizer": )", place, R"(, "offload_param": )", place);
      const RunResult moved = run_engine(json_of(3, precision, offload), options);
      for (std::size_t step = 0; step < moved.steps.size(); ++step) {
        EXPECT_EQ(gathered.steps[step].loss, moved.steps[step].loss);
        EXPECT_EQ(gathered.steps[step].grad_norm, moved.steps[step].grad_norm);
      }
      for (const auto& [parameter, state] : gathered.state) {
        EXPECT_EQ(state.value, moved.state.at(parameter).value) << parameter;
        EXPECT_EQ(state.states, moved.state.at(parameter).states) << parameter;
      }
    }
    if (kSanitized) break;
  }
}

/// The uncut run in 16 bit: sums over tiles are in fp32 and rounded once, as whole ones are.
TEST(Tiles, RoundAsTheUncutModelIn16Bit) {
  for (const char* precision :
       {R"(, "bf16": {"enabled": true})", R"(, "fp16": {"enabled": true, "loss_scale": 128})"}) {
    for (const ModelConfig& model : {nano_gpt2(true), nano_llama(false)}) {
      SCOPED_TRACE(precision);
      const RunResult uncut = run_engine(json_of(3, precision), cut_options(model, {}, 1));
      const RunResult cut = run_engine(json_of(3, precision), cut_options(model, {3, 3}, 1));
      EXPECT_NEAR(cut.steps[0].loss / uncut.steps[0].loss, 1, 1e-6);
      EXPECT_TRUE(close(uncut, cut, 2e-3));
    }
  }
}

TEST(Tiles, AreComputedAgainToTheSameBits) {
  for (const ModelConfig& model : {nano_gpt2(true), nano_llama(false)}) {
    RunOptions options = cut_options(with_dropout(model), {3, 2}, 1);
    options.steps = 2;
    const RunResult kept = run_engine(json_of(3), options);
    for (
        const char* again :
        {R"(, "pipeline": {"activation_checkpoint_interval": 1})",
         R"(, "pipeline": {"activation_checkpoint_interval": 5})",
         R"(, "activation_checkpointing": {"number_checkpoints": 2, "cpu_checkpointing": true})"}) {
      SCOPED_TRACE(again);
      const RunResult result = run_engine(json_of(3, "", "", again), options);
      EXPECT_TRUE(same_bits(kept, result));
      EXPECT_EQ(result.memory[0].peak, result.estimates[0].total());
    }
  }
}

/// Other orders of a step: forward ahead, weight gradients later; at a jittered pace.
TEST(Tiles, AgreeWhateverTheScheduleDoesBetweenThem) {
  for (const ModelConfig& model : {nano_gpt2(true), nano_llama(false)}) {
    RunOptions options = cut_options(with_dropout(model), {2, 3}, 2);
    options.jitter_seed = 5;
    options.body = [](Engine& engine, Module&, int rank) {
      for (int step = 0; step < 2; ++step) {
        const TokenBatch first = nano_batch({rank, step, 0}, 2, 2, 2);
        const TokenBatch second = nano_batch({rank, step, 1}, 2, 2, 2);
        engine.train_batch(std::vector<MicroBatch>{first.view(), second.view()});
      }
    };
    const RunResult plain = run_engine(json_of(3), options);
    for (const NamedSchedule& c : hand_written_schedules()) {
      SCOPED_TRACE(c.name);
      options.engine.schedule = c.schedule;
      const RunResult result = run_engine(json_of(3), options);
      EXPECT_TRUE(same_bits(plain, result));
      for (std::size_t rank = 0; rank < result.memory.size(); ++rank)
        EXPECT_EQ(result.memory[rank].peak, result.estimates[rank].total());
    }
    if (kSanitized) break;
  }
}

TEST(Tiles, TakeTheMemoryOfThePlan) {
  for (const auto& [name, model] : shapes()) {
    for (const bool offload : {false, true}) {
      const TileSettings tiles = offload ? TileSettings{3, 3} : TileSettings{2, 1};
      SCOPED_TRACE(concat(name, ", tiles ", tiles.linear, " and ", tiles.head));
      TrainSettings settings = settings_of(json_of(3, R"(, "bf16": {"enabled": true})"), 2);
      if (offload) settings.offload.parameters.device = OffloadDevice::cpu;
      RunOptions options = cut_options(model, tiles, 2);
      options.steps = 1;
      const RunResult result = run_engine(settings, options);
      for (std::size_t rank = 0; rank < result.memory.size(); ++rank)
        EXPECT_EQ(result.memory[rank].peak, result.estimates[rank].total());
    }
  }
}

/// Of all tiles alike, as names say; of layers and of the table below which nothing trains.
TEST(Tiles, FreezeByNameAsTheUncutModel) {
  struct Scenario {
    ModelConfig model;
    const char* kept;
  };
  for (const auto& [model, kept] : {Scenario{nano_gpt2(false), "h.1"},
                                    {nano_gpt2(true), "wte"},
                                    {nano_llama(false), "lm_head"},
                                    {nano_llama(true), "mlp"},
                                    {nano_llama(false), "nothing"}}) {
    {
      SCOPED_TRACE(concat("all but ", kept));
      RunOptions options = cut_options(model, {}, 1);
      options.steps = 2;
      options.engine.adjust = [&kept = kept](ParameterSpec& spec) {
        spec.frozen = spec.name.find(kept) == std::string::npos &&
                      spec.name.find("norm.weight") == std::string::npos &&
                      spec.name.find("ln_f.weight") == std::string::npos;
      };
      const RunResult uncut = run_engine(json_of(3), options);
      options.make_module = [&model = model](int) { return build_model(model, {3, 3}); };
      const RunResult cut = run_engine(json_of(3), options);
      EXPECT_TRUE(close(uncut, cut, 1e-6));
      for (const auto& [parameter, gradient] : uncut.gradients[0])
        EXPECT_LT(distance(gradient, cut.gradients[0].at(parameter)), 1e-6) << parameter;
      EXPECT_EQ(cut.memory[0].peak, cut.estimates[0].total());
    }
  }
}

/// Whole, under its one name, for exports and edits; evaluation and the next token's logits.
TEST(Tiles, AreOneParameterToOthers) {
  const std::string json = json_of(3, "", "", "");
  for (const auto& [name, model] : shapes()) {
    SCOPED_TRACE(name);
    std::map<std::string, std::vector<float>> values[2];
    std::vector<float> logits[2];
    double losses[2] = {0, 0};
    const std::string edited = model.family == ModelConfig::Family::gpt2
                                   ? "transformer.h.1.attn.c_attn.weight"
                                   : "model.layers.1.mlp.down_proj.weight";
    for (const int cut : {0, 1}) {
      RunOptions options = cut_options(model, cut ? TileSettings{3, 2} : TileSettings{}, 2);
      options.body = [&](Engine& engine, Module&, int rank) {
        std::vector<std::string> order;
        engine.model().with_parameters({edited}, 1, [&](const ParameterSpec& spec, View view) {
          ASSERT_EQ(view.shape(), spec.shape);
          for (std::int64_t i = 0; i < view.numel(); ++i)
            view.as<float>()[i] = rank == 1 ? 0.01f * static_cast<float>(i % 17) : 7.0f;
        });
        engine.model().for_each_parameter([&](const ParameterSpec& spec, const ConstView& value) {
          EXPECT_EQ(value.shape(), spec.shape) << spec.name;
          order.push_back(spec.name);
          if (rank == 0)
            values[cut][spec.name].assign(value.as<float>(), value.as<float>() + value.numel());
        });
        std::vector<std::string> declared;
        for (const ParameterSpec& spec : list_parameters(*build_model(model)))
          declared.push_back(spec.name);
        EXPECT_EQ(order, declared) << "the order of files";
        const TokenBatch batch = nano_batch({rank, 0, 0}, 2, 2, 2);
        const double loss = engine.eval_batch(std::vector<MicroBatch>{batch.view()});
        const std::vector<float> next = engine.next_logits(std::vector<std::int32_t>{3, 1, 4, 1});
        if (rank == 0) losses[cut] = loss, logits[cut] = next;
        const TokenBatch first = nano_batch({rank, 0, 0}, 2, 2, 2);
        engine.train_batch(std::vector<MicroBatch>{first.view(), first.view()});
      };
      run_engine(json, options);
    }
    EXPECT_EQ(values[0], values[1]);
    EXPECT_NEAR(losses[0], losses[1], 1e-6 * losses[0]);
    EXPECT_LT(distance(logits[0], logits[1]), 1e-6);
  }
}

/// Of the loss along the gradient of each piece, by evaluation: the cut head and all below it.
TEST(Tiles, GradientsAreTheSlopeOfTheLoss) {
  for (const ModelConfig& model : {nano_gpt2(true), nano_llama(false)}) {
    const std::string json = R"({"train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW", "params": {"lr": 0, "weight_decay": 0}}})";
    RunOptions options = cut_options(model, {3, 3}, 1);
    options.steps = 1;
    const std::map<std::string, std::vector<float>> gradients =
        run_engine(json, options).gradients[0];
    options.body = [&](Engine& engine, Module&, int) {
      const TokenBatch first = nano_batch({0, 0, 0}, 1, 2, 2);
      const TokenBatch second = nano_batch({0, 0, 1}, 1, 2, 2);
      const std::vector<MicroBatch> batches{first.view(), second.view()};
      const auto moved = [&](const std::string& name, double step) {
        const std::vector<float>& direction = gradients.at(name);
        engine.model().with_parameters({name}, 0, [&](const ParameterSpec&, View view) {
          for (std::size_t i = 0; i < direction.size(); ++i)
            view.as<float>()[i] += static_cast<float>(step * direction[i]);
        });
        return engine.eval_batch(batches);
      };
      for (const auto& [name, gradient] : gradients) {
        double size = 0;
        for (const float value : gradient) size += static_cast<double>(value) * value;
        size = std::sqrt(size);
        if (size < 1e-3) continue;  // of keys' biases, which change nothing
        const double step = 0.02 / size;
        const double above = moved(name, step), below = moved(name, -2 * step);
        moved(name, step);
        EXPECT_NEAR((above - below) / 0.04, size, 5e-3 * size + 1e-4) << name;
      }
      engine.train_batch(batches);
    };
    run_engine(json, options);
  }
}

/// As few tiles as the budget asks for, of what is left open; the run then keeps within it.
TEST(Tiles, AreAsFewAsTheBudgetAsksFor) {
  ModelConfig model = nano_llama(false);
  model.vocab_size = 4000;
  model.intermediate_size = 600;
  const TrainSettings settings = settings_of(json_of(3, "", R"(,
      "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"},
      "stage3_max_live_parameters": 0, "reduce_bucket_size": 1000)"),
                                             1);
  auto world = make_self_communicator();
  const Mesh mesh(*world);
  EngineOptions engine;
  engine.sequence_length = kNanoSequence;
  const auto fits = [&](const TileSettings& tiles, std::int64_t budget) {
    return message_of<OutOfMemory>(
               [&] { plan_memory(settings, *build_model(model, tiles), mesh, engine, budget); })
        .empty();
  };
  const auto least = [&](const TileSettings& tiles) {  // budget that does
    std::int64_t low = 0, high = 1 << 24;
    while (low + 1 < high) (fits(tiles, (low + high) / 2) ? high : low) = (low + high) / 2;
    return high;
  };
  const auto chosen = [&](TrainSettings asked, std::int64_t budget) {
    return choose_tiles(model, asked, mesh, engine, budget);
  };
  const std::int64_t uncut = least({1, 1});
  EXPECT_EQ(chosen(settings, -1), (TileSettings{1, 1}));
  EXPECT_EQ(chosen(settings, uncut), (TileSettings{1, 1})) << "no cut where none is needed";
  const TileSettings first = chosen(settings, uncut - 1);
  EXPECT_EQ(first, (TileSettings{1, 2})) << "the head is the largest";
  for (std::int64_t budget = uncut - 1; budget > uncut / 5; budget /= 2) {
    const TileSettings tiles = chosen(settings, budget);
    if (tiles == TileSettings{1, 1}) break;
    EXPECT_TRUE(fits(tiles, budget)) << tiles.linear << " and " << tiles.head;
    EXPECT_FALSE(tiles.head > 1 && fits({tiles.linear, 1}, budget));
    EXPECT_FALSE(tiles.linear > 1 && fits({1, tiles.head}, budget));
  }
  TrainSettings asked = settings;
  asked.tiles = {0, 5};
  EXPECT_EQ(chosen(asked, least({1, 5}) - 1).head, 5);
  asked.tiles = {1, 1};
  EXPECT_EQ(chosen(asked, 1000), (TileSettings{1, 1})) << "as it is asked";
  const LogCapture log;
  const TileSettings smallest = chosen(settings, 1000);
  for (const int level : {1, 2, 4, 16, 64}) EXPECT_LE(least(smallest), least({level, level}));
  EXPECT_EQ(log.with("no cut of its layers").size(), 1u);

  RunOptions options = cut_options(model, first, 1);
  options.steps = 1;
  options.engine.sequence_length = kNanoSequence;
  options.budget_bytes = uncut - 1;
  const RunResult run = run_engine(settings, options);
  EXPECT_LE(run.memory[0].peak, uncut - 1);
  options.make_module = [&](int) { return build_model(model); };
  const std::string message = message_of<OutOfMemory>([&] { run_engine(settings, options); });
  EXPECT_NE(message.find("head_tiles"), std::string::npos) << message;
}

/// Norms of whole parameters, decay by name, optimizers that see elements alone.
TEST(Tiles, AreUpdatedAsWholeParameters) {
  for (const char* optimizer : {"Lamb", "Lion", "Adagrad", "SGD"}) {
    SCOPED_TRACE(optimizer);
    const std::string json =
        concat(R"({"train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 3},
        "optimizer": {"type": ")",
               optimizer, R"(", "params": {"lr": 0.001, "weight_decay": 0.1}}})");
    RunOptions options = cut_options(nano_llama(true), {}, 2);
    options.engine.adjust = [](ParameterSpec& spec) {
      spec.decay = spec.name.find("up_proj") == std::string::npos;
    };
    const RunResult uncut = run_engine(json, options);
    options.make_module = [](int) { return build_model(nano_llama(true), {3, 3}); };
    const RunResult cut = run_engine(json, options);
    EXPECT_TRUE(close(uncut, cut, 1e-6));
    for (const auto& [name, state] : uncut.state)
      EXPECT_LT(distance(ParameterState::floats(state.value),
                         ParameterState::floats(cut.state.at(name).value)),
                2e-5)
          << name;
  }
}

/// One block in two tiles, each with a weight of its own: y = x (a + b), its loss that sum. With
/// `asks` the first tile asks for the weight of the second.
class TwoTiles final : public Block {
 public:
  explicit TwoTiles(bool asks) : asks_(asks) {}
  std::string name() const override { return "two tiles"; }
  std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> specs(2);
    for (int tile = 0; tile < 2; ++tile) {
      ParameterSpec& spec = specs[static_cast<std::size_t>(tile)];
      spec.name = tile == 0 ? "a" : "b";
      spec.shape = Shape{2};
      spec.initial = constant_values(static_cast<float>(tile + 1));
      spec.tile = tile;
    }
    return specs;
  }
  Values forward(BlockContext& context, Values inputs, Saved&) override {
    const std::size_t mine = static_cast<std::size_t>(context.tile());
    if (asks_) context.parameter(1 - mine);
    if (mine == 0) {
      inputs.clear();
      inputs.push_back(context.allocate(DType::f32, {2}));
      kernels::fill(context.stream(), inputs[0], 0);
    }
    kernels::add(context.stream(), context.parameter(mine), inputs[0]);
    return inputs;
  }
  Values backward_inputs(BlockContext&, Values gradients, Saved&) override { return gradients; }
  void backward_weights(BlockContext& context, Saved&) override {
    const std::size_t mine = static_cast<std::size_t>(context.tile());
    EXPECT_FALSE(context.trains(1 - mine) && !context.trains(mine));
    kernels::fill(context.stream(), context.write_gradient(mine), static_cast<float>(mine + 3));
  }

 private:
  const bool asks_;
};

struct TwoTilesModule final : Module {
  explicit TwoTilesModule(bool asks) { list.push_back(std::make_unique<TwoTiles>(asks)); }
  const std::vector<std::unique_ptr<Block>>& blocks() const override { return list; }
  std::vector<std::unique_ptr<Block>> list;
};

TEST(Tiles, OfABlockOfOnesOwn) {
  RunOptions options;
  options.ranks = 2;
  options.steps = 1;
  options.batch = [](const Moment&) { return TokenBatch(1, 1); };
  options.make_module = [](int) { return std::make_unique<TwoTilesModule>(false); };
  const RunResult run = run_engine(json_of(3), options);
  EXPECT_EQ(run.steps[0].loss, 1.0) << "(1 + 2) / (1 + 2)";
  EXPECT_EQ(run.gradients[0].at("a"), (std::vector<float>{6, 6})) << "of two micro-batches";
  EXPECT_EQ(run.gradients[0].at("b"), (std::vector<float>{8, 8}));
  options.make_module = [](int) { return std::make_unique<TwoTilesModule>(true); };
  const std::string message = message_of<Error>([&] { run_engine(json_of(3), options); });
  EXPECT_NE(message.find("block 'two tiles' asks in tile 0 for parameter 1"), std::string::npos)
      << message;
  options.make_module = [](int) { return std::make_unique<TwoTilesModule>(false); };
  options.body = [](Engine& engine, Module&, int) {
    EXPECT_NE(message_of<Error>([&] {
                engine.model().acquire({.block = 0, .tile = 2});
              }).find("tile 2 of block 0, which has tiles 0 to 1"),
              std::string::npos);
    const TokenBatch batch(1, 1);
    engine.train_batch(std::vector<MicroBatch>{batch.view(), batch.view()});
  };
  run_engine(json_of(3), options);
}

TEST(Tiles, AreWhatTheFileSays) {
  const auto tiles = [](const char* section) {
    return settings_of(json_of(0, "", "", concat(R"(, "zero3d": )", section)), 1).tiles;
  };
  EXPECT_EQ(tiles("{}"), (TileSettings{0, 0}));
  EXPECT_EQ(tiles(R"({"linear_tiles": 2, "head_tiles": "auto"})"), (TileSettings{2, 0}));
  EXPECT_EQ(tiles(R"({"linear_tiles": 1, "head_tiles": 3})"), (TileSettings{1, 3}));
}

TEST(Tiles, AreRefusedWhereWholeMatricesAreWanted) {
  const std::string muon = R"({"train_micro_batch_size_per_gpu": 2,
      "gradient_accumulation_steps": 2, "optimizer": {"type": "Muon", "params": {"lr": 0.01}}})";
  RunOptions options = cut_options(nano_gpt2(true), {2, 1}, 1);
  options.engine.groups = {};
  const std::string message = message_of<ConfigError>([&] { run_engine(muon, options); });
  EXPECT_NE(message.find("linear_tiles"), std::string::npos) << message;
  EXPECT_NE(message.find("as a whole matrix"), std::string::npos) << message;
}

/// What blocks declare of a parameter must make it up.
TEST(Tiles, RefusePiecesThatMakeNoParameter) {
  const auto piece = [](std::int64_t first, std::int64_t count, int tile) {
    ParameterSpec spec;
    spec.name = "w";
    spec.shape = Shape{6, 4};
    spec.piece = {0, first, count};
    spec.tile = tile;
    return spec;
  };
  const ParamLayout good({{piece(0, 4, 0), piece(4, 2, 1)}}, {});
  EXPECT_EQ(good.part_count(), 2);
  EXPECT_EQ(good.numel(), 24);
  EXPECT_EQ(good.whole_parameters().size(), 1u);
  ParameterSpec whole = piece(0, 6, 0);
  whole.piece = {};
  using Blocks = std::vector<std::vector<ParameterSpec>>;
  for (const Blocks& bad : {Blocks{{piece(0, 4, 0)}},                           // not all of it
                            Blocks{{piece(0, 4, 0), piece(3, 3, 1)}},           // some of it twice
                            Blocks{{piece(0, 4, 0), piece(4, 3, 1)}},           // more than it has
                            Blocks{{piece(0, 4, 0), piece(4, 2, 1)}, {whole}},  // and whole
                            Blocks{{piece(0, 4, 0), piece(4, 2, 1)}, {piece(0, 6, 0)}}}) {
    EXPECT_NE(message_of<Error>([&] { ParamLayout(bad, {}); }).find(" w"), std::string::npos);
  }
  LayoutOptions two;
  two.placement.tensor_parallel_size = 2;
  EXPECT_NE(message_of<Error>([&] {
              ParamLayout({{piece(0, 4, 0), piece(4, 2, 1)}}, two);
            }).find("tensor-parallel"),
            std::string::npos);
}

}  // namespace
}  // namespace zero3d::test
