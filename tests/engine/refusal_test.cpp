// What the engine refuses of its callers and of their blocks: by name, before any work begins, so
// that no rank has failed and the run goes on.
#include <gtest/gtest.h>

#include "zero3d/core/text.h"
#include "zero3d/ds_config/settings.h"
#include "zero3d/parallel/comm/thread_communicator.h"
#include "zero3d/tests/support/nano_model.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

std::string json_of(int stage, int accumulation = 1) {
  return concat(
      R"({"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
          "gradient_accumulation_steps": )",
      accumulation, R"(, "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage": )",
      stage, "}}");
}

template <typename Call>
void expect_refused(Call&& call, const std::string& part) {
  try {
    call();
    ADD_FAILURE() << "accepted: " << part;
  } catch (const CommError& error) {
    ADD_FAILURE() << "not refused but failed: " << error.what();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Refusal, OfArgumentsLeavesTheRunAsItWas) {
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(stage);
    const RunResult expected = run_engine(json_of(stage, 2), nano_options(nano_gpt2(true), 2, 2));
    RunOptions options = nano_options(nano_gpt2(true), 2, 2);
    options.body = [](Engine& engine, Module&, int rank) {
      for (int step = 0; step < 3; ++step) {
        const TokenBatch batches[] = {nano_batch({rank, step, 0}, 2, 2, 2),
                                      nano_batch({rank, step, 1}, 2, 2, 2)};
        const TokenBatch too_long(2, 17);
        std::vector<std::int32_t> ids(17);
        expect_refused([&] { engine.next_logits(ids); }, "17");
        const MicroBatch spoilt[] = {batches[0].view(), too_long.view()};
        expect_refused([&] { engine.train_batch(spoilt); }, "17");
        expect_refused([&] { engine.eval_batch(spoilt); }, "17");
        const MicroBatch without[] = {batches[0].view(), {batches[1].view().tokens, ConstView()}};
        expect_refused([&] { engine.train_batch(without); }, "a batch needs targets");
        expect_refused([&] { engine.eval_batch(without); }, "a batch needs targets");
        const MicroBatch good[] = {batches[0].view(), batches[1].view()};
        engine.train_batch(good);
      }
    };
    const RunResult found = run_engine(json_of(stage, 2), options);
    EXPECT_TRUE(same_state(expected.state, found.state));
  }
}

/// A trainer that fills the settings itself has no loader in front that checks them.
TEST(Refusal, OfSettingsFilledByHandNamesTheField) {
  for (const std::int64_t accumulation :
       {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 31}) {
    TrainSettings settings = settings_of(json_of(1), 1);
    settings.accumulation = accumulation;
    expect_refused([&] { run_engine(settings, nano_options(nano_gpt2(true), 1, 1)); },
                   concat("accumulation is ", accumulation));
  }
}

TEST(Refusal, OfABatchThatDoesNotFitBesideTheGathersIsNoFailure) {
  RunOptions options = nano_options(nano_gpt2(true), 2, 1);
  const RunResult free = run_engine(json_of(3), options);
  options.budget_bytes = free.estimates[0].total();
  options.body = [](Engine& engine, Module&, int rank) {
    const TokenBatch usual = nano_batch({rank, 0, 0}, 2, 1, 2);
    const MicroBatch view = usual.view();
    engine.train_batch({&view, 1});
    if (rank == 1) {  // the other one has nothing larger, and does not hear of it
      const TokenBatch larger = nano_batch({rank, 0, 0}, 2, 1, 12);
      const MicroBatch larger_view = larger.view();
      expect_refused(
          [&] {
            engine.train_batch({&larger_view, 1});
          },
          "state the longest sequence when the engine is made");
    }
    engine.train_batch({&view, 1});
    EXPECT_EQ(engine.global_steps(), 2);
  };
  run_engine(json_of(3), options);
}

/// A middle block that does one thing wrong.
enum class Fault {
  none,
  too_few_values,
  too_few_gradients,
  gradient_of_another_size,
  unknown_parameter,
  unknown_gradient,
  gradient_in_forward
};

class Careless final : public Block {
 public:
  Careless(std::string name, Fault fault, bool last)
      : name_(std::move(name)), fault_(fault), last_(last) {}
  std::string name() const override { return name_; }
  std::vector<ParameterSpec> parameters() const override {
    return {probe_parameter(name_ + ".a", Shape{3}, {}).spec,
            probe_parameter(name_ + ".b", Shape{3}, {}).spec};
  }
  Values forward(BlockContext& context, Values, Saved&) override {
    if (fault_ == Fault::unknown_parameter) context.parameter(99);
    if (fault_ == Fault::gradient_in_forward) context.write_gradient(1);
    Values outputs;
    if (fault_ == Fault::too_few_values) return outputs;
    for (int i = 0; i < (last_ ? 1 : 2); ++i) {
      outputs.push_back(context.allocate(DType::f32, Shape{2}));
      context.stream().device().fill_zero(context.stream(), outputs.back());
    }
    return outputs;
  }
  Values backward_inputs(BlockContext& context, Values gradients, Saved&) override {
    if (gradients.size() != (last_ ? 1u : 2u)) ADD_FAILURE() << "the fault came through";
    if (fault_ == Fault::unknown_gradient) context.write_gradient(99);
    Values inputs(fault_ == Fault::too_few_gradients ? 1 : 2);
    inputs[0] =
        context.allocate(DType::f32, Shape{fault_ == Fault::gradient_of_another_size ? 5 : 2});
    return inputs;
  }
  void backward_weights(BlockContext&, Saved&) override {}

 private:
  std::string name_;
  Fault fault_;
  bool last_;
};

class CarelessModule final : public Module {
 public:
  explicit CarelessModule(Fault fault) {
    blocks_.push_back(std::make_unique<Careless>("first", Fault::none, false));
    blocks_.push_back(std::make_unique<Careless>("middle", fault, false));
    blocks_.push_back(std::make_unique<Careless>("end", Fault::none, true));
  }
  const std::vector<std::unique_ptr<Block>>& blocks() const override { return blocks_; }

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
};

TEST(Refusal, OfABlocksFaultNamesTheBlockBeforeTheNextOneMeetsIt) {
  const std::pair<Fault, std::string> cases[] = {
      {Fault::none, ""},
      {Fault::too_few_values, "block 'middle' returned no values from forward"},
      {Fault::too_few_gradients,
       "block 'middle' returned 1 gradients from backward_inputs for its 2"},
      {Fault::gradient_of_another_size,
       "block 'middle' returned a gradient of 5 elements for its input 0, which has 2"},
      {Fault::unknown_parameter, "block 'middle' asks for parameter 99 but declares 2"},
      {Fault::unknown_gradient, "block 'middle' asks for parameter 99 but declares 2"},
      {Fault::gradient_in_forward,
       "block 'middle' asks in forward about the gradient of parameter 1"}};
  for (const auto& [fault, message] : cases) {
    for (const bool at_start : {true, false}) {
      SCOPED_TRACE(concat(message, at_start ? ", at start" : ", at the first batch"));
      run_ranks(2, [&, fault = fault, message = message](Communicator& world) {
        const CarelessModule module(fault);
        const auto device = make_cpu_device({});
        const Mesh mesh(world);
        const auto train = [&] {
          EngineOptions options;
          if (at_start) options.sequence_length = 1;
          Engine engine(settings_of(json_of(2), 2), module, mesh, *device, options);
          const TokenBatch batch(2, 1);
          const MicroBatch view = batch.view();
          engine.train_batch({&view, 1});
        };
        if (fault == Fault::none) return train();
        expect_refused(train, message);
        world.check();
      });
    }
  }
}

TEST(Refusal, AnEngineThatOnlyPlansTakesNoMemoryAndDoesNotTrain) {
  run_ranks(2, [](Communicator& world) {
    const auto device = [&world] {
      CpuDeviceOptions options;
      options.rank = world.rank();
      return make_cpu_device(options);
    };
    const std::unique_ptr<Device> used = device(), planned = device();
    const Mesh mesh(world);
    const std::unique_ptr<Module> module = build_model(nano_gpt2(true));
    EngineOptions options;
    options.sequence_length = 8;
    const TrainSettings settings = load_settings(json_of(3), 2);
    const Engine engine(settings, *module, mesh, *used, options);
    options.plan_only = true;
    Engine plan(settings, *module, mesh, *planned, options);
    for (const Tier tier : {Tier::device, Tier::pinned, Tier::pageable}) {
      EXPECT_EQ(plan.memory_estimate(2, 8).total({tier}),
                engine.memory_estimate(2, 8).total({tier}));
      EXPECT_EQ(planned->memory(tier).use().peak, 0);
    }
    const TokenBatch batch(2, 8);
    const MicroBatch view = batch.view();
    expect_refused([&] { plan.train_batch({&view, 1}); }, "was made to plan, not to run");
    expect_refused([&] { plan.eval_batch({&view, 1}); }, "was made to plan, not to run");
  });
}

TEST(Refusal, OfTheMemoryPlanComesBeforeAnyIsTaken) {
  run_ranks(2, [](Communicator& world) {
    CpuDeviceOptions device_options;
    device_options.rank = world.rank();
    const std::unique_ptr<Device> device = make_cpu_device(device_options);
    const Mesh mesh(world);
    const std::unique_ptr<Module> module = build_model(nano_gpt2(true));
    EngineOptions options;
    std::int64_t planned = 0;
    options.approve_memory = [&](const MemoryEstimate& plan) {
      planned = plan.total();
      throw_invalid("too much for this machine");
    };
    expect_refused(
        [&] { Engine engine(load_settings(json_of(1), 2), *module, mesh, *device, options); },
        "too much for this machine");
    EXPECT_GT(planned, 0);
    EXPECT_EQ(device->memory().use().peak, 0);
  });
}

}  // namespace
}  // namespace zero3d::test
