// Settings as a whole: ranks that compare their description see every field of them, and degrees of
// model parallelism reach the mesh and the dtype that travels.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "zero3d/core/text.h"
#include "zero3d/device/cuda/cuda_device.h"
#include "zero3d/ds_config/load.h"
#include "zero3d/ds_config/settings.h"
#include "zero3d/parallel/comm/thread_communicator.h"
#include "zero3d/tests/support/run_engine.h"

namespace zero3d::test {
namespace {

/// use(field) for each field of what leaves the device, by the bindings of all of them.
template <typename Use>
void for_each_field(OffloadSettings& offload, const Use& use) {
  const auto all = [&](auto&... fields) { (use(fields), ...); };
  auto& [optimizer, parameters, activations, io, checksums] = offload;
  all(activations, checksums);
  auto& [state_device, state_paths, state_pinned, state_buffers, read, write, ratio] = optimizer;
  all(state_device, state_paths, state_pinned, state_buffers, read, write, ratio);
  auto& [device, paths, pinned, buffers, elements, kept] = parameters;
  all(device, paths, pinned, buffers, elements, kept);
  auto& [block, depth, threads, single, overlap, rank, limit, port] = io;
  static_cast<void>(rank);  // of each its own
  static_cast<void>(port);  // of tests
  all(block, depth, threads, single, overlap, limit);
}

/// The same of all settings that may change a result: a new field does not compile before it is
/// listed here.
template <typename Use>
void for_each_field(TrainSettings& settings, const Use& use) {
  const auto all = [&](auto&... fields) { (use(fields), ...); };
  auto& [micro_batch, accumulation, managed, dp, tp, pp, sp, pipeline, split_rows, overlap_tp,
         split_kept, sharding, gradients, precision, recomputation, offload, delayed, tiles,
         optimizer, schedule, tile, log_every, tags] = settings;
  all(micro_batch, accumulation, managed, dp, tp, pp, sp, split_rows, overlap_tp, split_kept, tile,
      log_every, tags);
  auto& [order, virtual_stages, partition] = pipeline;
  auto& [method, pattern, blocks] = partition;
  all(order, virtual_stages, method, pattern, blocks);
  auto& [what, ranks, secondary, gather_bucket, prefetch, live, reuse, persistent, total, save] =
      sharding;
  auto& [state_sharded, gradients_sharded, parameters_sharded] = what;
  all(state_sharded, gradients_sharded, parameters_sharded, ranks, secondary, gather_bucket,
      prefetch, live, reuse, persistent, total, save);
  auto& [mean, prescale, predivide, bucket, overlap, scatter, max_norm, take_norm, skip] =
      gradients;
  all(mean, prescale, predivide, bucket, overlap, scatter, max_norm, take_norm, skip);
  auto& [parameters, accumulated, communicated, masters, loss_scale] = precision;
  all(parameters, accumulated, communicated, masters);
  auto& [fixed, power, window, hysteresis, consecutive, least, stage0] = loss_scale.value();
  all(fixed, power, window, hysteresis, consecutive, least, stage0);
  auto& [type, params, legacy_fusion, offloaded, bf16_states, path] = optimizer;
  static_cast<void>(legacy_fusion);  // only a warning
  static_cast<void>(path);           // only in messages
  all(type, params, offloaded, bf16_states);
  auto& [interval, groups] = recomputation;
  all(interval, groups);
  for_each_field(offload, use);
  auto& [every, share, select_every, select_epochs, epoch, overlaps, warm_up] = delayed;
  all(every, share, select_every, select_epochs, epoch, overlaps, warm_up);
  auto& [linear, head] = tiles;
  all(linear, head);
  auto& [schedule_type, schedule_params] = schedule;
  all(schedule_type, schedule_params);
}

template <typename T>
void change(T& field) {
  if constexpr (std::is_same_v<T, bool>) {
    field = !field;
  } else if constexpr (std::is_arithmetic_v<T>) {
    field = field == 0 ? 1 : field / 2;
  } else if constexpr (std::is_same_v<T, DType>) {
    field = field == DType::f32 ? DType::bf16 : DType::f32;
  } else if constexpr (std::is_same_v<T, OffloadDevice>) {
    field = OffloadDevice::nvme;
  } else if constexpr (std::is_enum_v<T>) {
    field = field == static_cast<T>(0) ? static_cast<T>(1) : static_cast<T>(0);
  } else if constexpr (std::is_same_v<T, std::vector<int>>) {
    field.push_back(1);
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    field.push_back("/drive");
  } else if constexpr (std::is_same_v<T, std::chrono::milliseconds>) {
    field /= 2;
  } else if constexpr (std::is_same_v<T, std::string>) {
    field += "x";
  } else {
    field["x"] = 1.0;
  }
}

TEST(Settings, TheirDescriptionTellsEveryFieldApart) {
  TrainSettings plain;
  plain.precision.loss_scale.emplace();
  plain.delayed_updates.update_every = 2;
  int fields = 0;
  for_each_field(plain, [&](auto&) { ++fields; });
  for (int chosen = 0; chosen < fields; ++chosen) {
    TrainSettings changed = plain;
    int index = 0;
    for_each_field(changed, [&](auto& field) {
      if (index++ == chosen) change(field);
    });
    EXPECT_NE(describe(changed), describe(plain)) << "field " << chosen;
  }
  TrainSettings unscaled = plain;
  unscaled.precision.loss_scale.reset();
  EXPECT_NE(describe(unscaled), describe(plain));
  TrainSettings valued = plain;
  valued.optimizer.params["lr"] = 1e-3;
  const std::string before = describe(valued);
  valued.optimizer.params["lr"] = 1e-3 + 1e-15;
  EXPECT_NE(describe(valued), before) << "a value to its last digits";
}

TEST(Settings, OffloadOutOfRangeIsRefusedByItsField) {
  const auto refused = [](const std::function<void(OffloadSettings&)>& damage) -> std::string {
    TrainSettings settings;
    damage(settings.offload);
    try {
      require_in_range(settings);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refused([](OffloadSettings&) {}), "");
  const struct {
    const char* field;
    std::function<void(OffloadSettings&)> damage;
  } faults[] = {
      {"TrainSettings::offload.optimizer.buffer_count is 0; expected a number from 1 to 1024",
       [](OffloadSettings& s) { s.optimizer.buffer_count = 0; }},
      {"TrainSettings::offload.optimizer.ratio is 1.5; expected",
       [](OffloadSettings& s) { s.optimizer.ratio = 1.5; }},
      {"TrainSettings::offload.optimizer.ratio is nan; expected",
       [](OffloadSettings& s) { s.optimizer.ratio = std::nan(""); }},
      {"TrainSettings::offload.optimizer goes to nvme and names no path",
       [](OffloadSettings& s) { s.optimizer.device = OffloadDevice::nvme; }},
      {"TrainSettings::offload.parameters.buffer_count is -1; expected",
       [](OffloadSettings& s) { s.parameters.buffer_count = -1; }},
      {"TrainSettings::offload.parameters.buffer_elements is 0; expected a number from 1 on",
       [](OffloadSettings& s) { s.parameters.buffer_elements = 0; }},
      {"TrainSettings::offload.parameters.max_in_cpu is -1; expected a number from 0 on",
       [](OffloadSettings& s) { s.parameters.max_in_cpu = -1; }},
      {"TrainSettings::offload.parameters goes to nvme and names no path",
       [](OffloadSettings& s) { s.parameters.device = OffloadDevice::nvme; }},
      {"aio.block_size is 1000; expected a multiple of 4096",
       [](OffloadSettings& s) { s.io.block_size = 1000; }},
      {"aio.queue_depth is 0; expected 1 to 4096",
       [](OffloadSettings& s) { s.io.queue_depth = 0; }},
      {"aio.intra_op_parallelism is 2000; expected 1 to 1024",
       [](OffloadSettings& s) { s.io.intra_op_parallelism = 2000; }},
      {"stall limit of 0 ms; expected",
       [](OffloadSettings& s) { s.io.stall_limit = std::chrono::milliseconds(0); }},
  };
  for (const auto& fault : faults) {
    const std::string message = refused(fault.damage);
    EXPECT_NE(message.find(fault.field), std::string::npos) << message;
  }
}

/// Of a step of a whole engine on two ranks.
struct Trained {
  std::int64_t samples = 0;
  int shards = 0;   ///< Ranks that share a parameter's optimizer state: replicas, and sp.
  int holders = 0;  ///< Tensor-parallel ranks, who all hold it.
  DType wire = DType::f32;
};

/// Whose one number a row is no matter of positions.
class RowModule final : public ProbeModule {
 public:
  using ProbeModule::ProbeModule;
  std::vector<std::string> mesh_problems(const GridDegrees&) const override { return {}; }
};

Trained train(const std::string& members) {
  LoadOptions loading;
  loading.ranks = 2;
  const TrainSettings settings = train_settings(
      load_config_text(
          concat(R"({"train_micro_batch_size_per_gpu": 3, "optimizer": {"type": "Adam"},
                 "zero_optimization": {"stage": 1})",
                 members, "}"),
          "file", loading)
          .config);
  Trained trained;
  run_ranks(2, [&](Communicator& world) {
    const RowModule module(probe_blocks({10, 10}, [](int, const ProbeClock&) { return 1.0f; }));
    TrainingSession session = initialize(settings, module, world);
    const TokenBatch batch(3, 2);
    const MicroBatch view = batch.view();
    session->train_batch({&view, 1});
    if (world.rank() != 0) return;
    const ZeroPlan& plan = session->model().plan();
    trained.samples = session->global_samples();
    trained.shards = plan.layout.shards();
    trained.holders = plan.layout.parameter(0).placement.holders;
    trained.wire = plan.gradients.wire.value_or(DType::f32);
  });
  return trained;
}

TEST(Settings, ADeviceThatIsNotThereIsRefused) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "there is a GPU";
  const RowModule module(probe_blocks({10, 10}, [](int, const ProbeClock&) { return 1.0f; }));
  const auto world = make_self_communicator();
  const char* config = R"({"train_micro_batch_size_per_gpu": 3, "optimizer": {"type": "Adam"}})";
  try {
    initialize(config, module, *world, {}, 1, DeviceChoice::cuda);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    EXPECT_NE(std::string(error.what()).find("CUDA"), std::string::npos) << error.what();
  }
  initialize(config, module, *world, {}, 1, DeviceChoice::automatic);
}

TEST(Settings, DegreesTakeRanksFromTheReplicas) {
  const auto expect = [](const char* members, std::int64_t samples, int shards, int holders) {
    const Trained trained = train(members);
    EXPECT_EQ(trained.samples, samples) << members;
    EXPECT_EQ(trained.shards, shards) << members;
    EXPECT_EQ(trained.holders, holders) << members;
  };
  expect("", 6, 2, 1);
  expect(R"(, "tensor_parallel": {"autotp_size": 2})", 3, 1, 2);
  expect(R"(, "pipeline": {"stages": 2})", 3, 1, 1);
  expect(R"(, "sequence_parallel_size": 2)", 3, 2, 1);
}

TEST(Settings, SequenceParallelRanksHaveACommunicationDtypeOfTheirOwn) {
  const std::string dtypes =
      R"(, "communication_data_type": "fp16", "seq_parallel_communication_data_type": "bf16")";
  EXPECT_EQ(train(dtypes).wire, DType::f16);
  EXPECT_EQ(train(dtypes + R"(, "sequence_parallel_size": 2)").wire, DType::bf16);
}

TEST(Settings, RecomputationIsToldByItsKeyWhatIsWrongWithIt) {
  const auto refused = [](const char* members) -> std::string {
    try {
      load_settings(
          concat(R"({"train_batch_size": 1, "optimizer": {"type": "Adam"}, )", members, "}"), 1);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  for (const int number : {0, -3}) {
    const std::string message = refused(
        concat(R"("activation_checkpointing": {"number_checkpoints": )", number, "}").c_str());
    EXPECT_NE(
        message.find(concat(
            "activation_checkpointing.number_checkpoints: expected 1 or more, found ", number)),
        std::string::npos)
        << message;
  }
  const std::string large =
      refused(R"("pipeline": {"activation_checkpoint_interval": 3000000000})");
  EXPECT_NE(large.find("pipeline.activation_checkpoint_interval"), std::string::npos) << large;
  for (int field = 0; field < 2; ++field) {
    TrainSettings settings;
    (field == 0 ? settings.recomputation.interval : settings.recomputation.groups) = -1;
    EXPECT_THROW(require_in_range(settings), Error);
  }
}

/// --recompute of the command.
TEST(Settings, AnOptionOverridesTheRecomputationOfAFile) {
  LoadOptions options;
  options.recompute = 3;
  const LoadResult loaded = load_config_text(
      R"({"train_batch_size": 1, "optimizer": {"type": "Adam"},
          "pipeline": {"activation_checkpoint_interval": 5},
          "activation_checkpointing": {"number_checkpoints": 2}})",
      "file", options);
  const RecomputationSettings settings = train_settings(loaded.config).recomputation;
  EXPECT_EQ(settings.interval, 3);
  EXPECT_EQ(settings.groups, 0);
  EXPECT_EQ(loaded.provenance.at("pipeline.activation_checkpoint_interval").note, "--recompute");
}

TEST(TrainSettings, WaysOfTensorParallelismComeFromTheFileAndNeedRanksThatShare) {
  const auto load = [](int tp) {
    return settings_of(concat(R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD"},
                   "activation_checkpointing": {"partition_activations": true},
                   "zero3d": {"sequence_parallel": true},
                   "tensor_parallel": {"tp_overlap_comm": true, "autotp_size": )",
                              tp, "}}"),
                       2);
  };
  const TrainSettings shared = load(2), alone = load(1);
  EXPECT_EQ(shared.dp, 1);
  EXPECT_TRUE(shared.split_rows && shared.overlap_tp && shared.split_kept);
  EXPECT_FALSE(alone.split_rows || alone.overlap_tp || alone.split_kept);
}

}  // namespace
}  // namespace zero3d::test
