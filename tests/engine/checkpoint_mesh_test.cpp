// Checkpoints between meshes: parameters that tensor parallelism cuts along rows, along columns and
// in parts, with grains and padding, and that stages of a pipeline hold alone or together, saved on
// any mesh and at any stage, loaded on any other.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <set>

#include "saved_tensors.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/checkpoint/checkpoint.h"
#include "zero3d/parallel/comm/thread_communicator.h"
#include "zero3d/tests/support/run_engine.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {
namespace {

ParameterSpec spec(const std::string& name, const Shape& shape, TensorParallelSplit split,
                   bool frozen = false) {
  ParameterSpec result;
  result.name = name;
  result.shape = shape;
  result.split = std::move(split);
  result.frozen = frozen;
  result.initial = normal_values(name, 0.5f);
  return result;
}

/// Two blocks; the second one's are those of a pipeline's second stage, and both have "tied".
std::vector<std::vector<ParameterSpec>> blocks() {
  return {{spec("rows", Shape{37, 33}, {.dim = 0}), spec("columns", Shape{33, 50}, {.dim = 1}),
           spec("copied", Shape{700}, {}), spec("tied", Shape{21, 30}, {.dim = 0}),
           spec("frozen rows", Shape{11, 130}, {.dim = 0}, true)},
          {spec("fused", Shape{9, 96}, {.dim = 1, .parts = {48, 24, 24}, .grain = 12}),
           spec("scalar", Shape{}, {}), spec("frozen", Shape{5}, {}, true),
           spec("middle", Shape{3, 10, 7}, {.dim = 1}), spec("none", Shape{0, 4}, {}),
           spec("tied", Shape{21, 30}, {.dim = 0})}};
}

struct MeshTrial {
  int dp = 1;
  int tp = 1;
  int stage = 0;
  const char* offload = "";
  const char* precision = "";
  int pp = 1;

  std::string name() const {
    return concat("dp ", dp, " tp ", tp, " pp ", pp, " stage ", stage, offload);
  }
};

TrainSettings settings_for(const MeshTrial& trial) {
  const std::string json =
      concat(R"({"train_micro_batch_size_per_gpu": 1, )", trial.precision,
             R"("optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "zero_optimization": {)",
             trial.offload, R"("sub_group_size": 1024, "stage3_param_persistence_threshold": 10,
             "stage": )",
             trial.stage, "}}");
  TrainSettings settings = settings_of(json, trial.dp);
  settings.tp = trial.tp;
  settings.pp = trial.pp;
  return settings;
}

void on_mesh(const MeshTrial& trial, const ParameterSource* source,
             const std::function<void(ShardedModel&)>& use) {
  const TrainSettings settings = settings_for(trial);
  run_ranks(trial.dp * trial.tp * trial.pp, [&](Communicator& world) {
    const Mesh mesh(world, {.dp = trial.dp, .tp = trial.tp, .pp = trial.pp});
    CpuDeviceOptions options;
    options.rank = world.rank();
    const auto device = make_cpu_device(options);
    ShardedModelOptions model;
    model.source = source;
    ShardedModel sharded(settings, blocks(), mesh, *device, model);
    use(sharded);
  });
}

/// States that tell elements apart: of each its place in the global tensor.
class NumberedState final : public SavedState {
 public:
  explicit NumberedState(bool bf16) {
    std::vector<SavedParameter> all;
    std::set<std::string> seen;
    for (const auto& block : blocks()) {
      for (const ParameterSpec& spec : block) {
        if (!seen.insert(spec.name).second) continue;
        SavedParameter entry{spec.name, spec.shape, spec.frozen, "AdamW", {}};
        entry.tensors.emplace(kWeight, bf16 && spec.frozen ? DType::bf16 : DType::f32);
        if (!spec.frozen) {
          entry.tensors.emplace("exp_avg", DType::f32);
          entry.tensors.emplace("exp_avg_sq", DType::f32);
        }
        all.push_back(std::move(entry));
      }
    }
    set_parameters(std::move(all));
    run_.state.steps = run_.state.optimizer_steps = 7;
    run_.state.micro_steps = 7;
    run_.state.schedule_steps = 5;
    run_.state.data_position = 123;
  }
  const std::string& path() const override { return path_; }
  const SavedRun& run() const override { return run_; }
  void verify() const override {}
  void read(const SavedParameter& parameter, std::string_view tensor,
            std::span<const GlobalRun> runs, const View& dst) const override {
    const float base = tensor == kWeight ? 0.25f : tensor == "exp_avg" ? 3.0f : 5.0f;
    const auto of_name = static_cast<float>(parameter.name.size());
    for (const GlobalRun& run : runs) {
      for (std::int64_t i = 0; i < run.count; ++i) {
        const float value = base + of_name + 0.5f * static_cast<float>(run.global_first + i);
        if (dst.dtype() == DType::f32)
          dst.as<float>()[run.offset + i] = value;
        else
          dst.as<bf16>()[run.offset + i] = to_bf16(value);
      }
    }
  }

 private:
  std::string path_ = "numbers";
  SavedRun run_;
};

std::string save_on(const MeshTrial& trial, const SavedState& from, const std::string& folder) {
  std::string path;
  on_mesh(trial, nullptr, [&](ShardedModel& model) {
    load_checkpoint(model, from, {});
    const std::string saved = CheckpointSaver(model).save(folder, {});
    if (model.mesh().leads()) path = saved;
  });
  return path;
}

void expect_numbers(const SavedTensors& saved, bool bf16) {
  const NumberedState numbers(bf16);
  for (const SavedParameter& parameter : numbers.parameters()) {
    for (const auto& [tensor, dtype] : parameter.tensors) {
      const auto found =
          saved.tensors.find(concat(parameter.name, "/", tensor, " ", name_of(dtype)));
      ASSERT_NE(found, saved.tensors.end()) << parameter.name << " " << tensor;
      std::vector<std::byte> bytes(found->second.size());
      const std::int64_t count = parameter.shape.numel();
      const GlobalRun run{0, count, 0};
      numbers.read(parameter, tensor, {&run, 1}, View(bytes.data(), dtype, Shape{count}));
      EXPECT_EQ(bytes, found->second) << parameter.name << " " << tensor;
    }
  }
  EXPECT_EQ(saved.state.steps, 7);
  EXPECT_EQ(saved.state.schedule_steps, 5);
  EXPECT_EQ(saved.state.data_position, 123);
}

constexpr const char* kBf16 = R"("bf16": {"enabled": true}, )";
constexpr const char* kHost =
    R"("offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}, )";

TEST(CheckpointMesh, EveryMeshWritesAndReadsEveryElement) {
  std::vector<MeshTrial> trials;
  constexpr int kStages[] = {0, 3, 1, 2};
  for (const int dp : {1, 2, 3})
    for (const int tp : {1, 2, 3})
      if (!kSanitized || tp == 2) trials.push_back({dp, tp, kStages[trials.size() % 4]});
  trials.push_back({2, 2, 3, kHost});
  for (const char* precision : {"", kBf16}) {
    const bool bf16 = *precision != 0;
    std::unique_ptr<TemporaryFolder> before;
    std::unique_ptr<SavedState> from = std::make_unique<NumberedState>(bf16);
    for (MeshTrial trial : trials) {  // each loads what the one before it saved
      trial.precision = precision;
      auto folder = std::make_unique<TemporaryFolder>();
      const std::string path = save_on(trial, *from, folder->path().string());
      expect_numbers(read_saved(path), bf16);
      if (HasFailure()) FAIL() << trial.name();
      from = std::make_unique<CheckpointReader>(path);
      before = std::move(folder);
    }
  }
}

/// All of {dp 1-4} x {tp 1, 2} x {pp 1, 2} x {stage 0-3}.
std::vector<MeshTrial> all_meshes() {
  std::vector<MeshTrial> meshes;
  for (int dp = 1; dp <= 4; ++dp)
    for (int tp = 1; tp <= 2; ++tp)
      for (int pp = 1; pp <= 2; ++pp)
        for (int stage = 0; stage <= 3; ++stage)
          meshes.push_back({.dp = dp, .tp = tp, .stage = stage, .pp = pp});
  return meshes;
}

/// A walk over pairs of meshes, each loading what the one before it saved. ZERO3D_EVERY_PAIR=1: all
/// 4,096 of them, in minutes.
TEST(CheckpointMesh, AnyMeshLoadsWhatAnyOtherSaved) {
  const std::vector<MeshTrial> meshes = all_meshes();
  std::vector<std::size_t> walk;
  if (std::getenv("ZERO3D_EVERY_PAIR") != nullptr) {
    for (std::size_t a = 0; a < meshes.size(); ++a) {
      for (std::size_t b = a; b < meshes.size(); ++b) walk.insert(walk.end(), {a, b});
      walk.push_back(a);  // back from the last
    }
  } else {
    std::mt19937 random(15);
    walk = {meshes.size() - 1, 0};
    while (walk.size() < (kSanitized ? 4 : 20)) walk.push_back(random() % meshes.size());
  }
  std::unique_ptr<TemporaryFolder> before;
  std::unique_ptr<SavedState> from = std::make_unique<NumberedState>(false);
  std::size_t last = 0;
  for (const std::size_t next : walk) {
    auto folder = std::make_unique<TemporaryFolder>();
    const std::string path = save_on(meshes[next], *from, folder->path().string());
    expect_numbers(read_saved(path), false);
    if (HasFailure()) FAIL() << meshes[last].name() << " to " << meshes[next].name();
    from = std::make_unique<CheckpointReader>(path);
    before = std::move(folder);
    last = next;
  }
}

/// Columns repeat at a stride, so that a manifest does not grow with the rows of a matrix.
TEST(CheckpointMesh, CutColumnsAreFewPieces) {
  const TemporaryFolder folder;
  const std::string path = save_on({1, 2, 0}, NumberedState(false), folder.path().string());
  const CheckpointReader reader(path);
  for (std::size_t i = 0; i < reader.parameters().size(); ++i) {
    if (reader.parameters()[i].name != "columns") continue;
    EXPECT_LE(reader.manifest().pieces[i].at("weight").size(), 8u);
  }
}

TEST(CheckpointMesh, FrozenParametersMayBeLeftOut) {
  for (const int stage : {0, 2, 3}) {
    const TemporaryFolder folder;
    const MeshTrial trial{2, 2, stage};
    std::string path;
    on_mesh(trial, nullptr, [&](ShardedModel& model) {
      load_checkpoint(model, NumberedState(false), {});
      SaveCheckpointOptions save;
      save.exclude_frozen_parameters = true;
      const std::string saved = CheckpointSaver(model).save(folder.path().string(), save);
      if (model.mesh().leads()) path = saved;
    });
    const CheckpointReader left_out(path);
    EXPECT_TRUE(left_out.find("frozen")->tensors.empty());
    on_mesh(trial, nullptr, [&](ShardedModel& model) {
      load_checkpoint(model, left_out, {});
      CheckpointSaver(model).save(folder.file("whole"), {});
    });
    const SavedTensors whole = read_saved(folder.file("whole/global_step7"));
    std::vector<float> drawn(5);
    blocks()[1][2].initial(1234, 0, 5, drawn.data());
    EXPECT_EQ(ParameterState::floats(whole.tensors.at("frozen/weight fp32")), drawn)
        << "what was left out keeps its value";
    const NumberedState numbers(false);
    std::vector<float> rows(37 * 33);
    const GlobalRun run{0, 37 * 33, 0};
    numbers.read(*numbers.find("rows"), kWeight, {&run, 1},
                 View(reinterpret_cast<std::byte*>(rows.data()), DType::f32, Shape{37 * 33}));
    EXPECT_EQ(ParameterState::floats(whole.tensors.at("rows/weight fp32")), rows);
  }
}

}  // namespace
}  // namespace zero3d::test
