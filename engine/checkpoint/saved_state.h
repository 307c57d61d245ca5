// What a run is resumed from, whoever wrote it and however it was cut among ranks: its numbers, and
// its tensors by the names of the whole model, of which a rank reads what it needs.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/core/dtype.h"
#include "zero3d/core/shape.h"
#include "zero3d/core/view.h"
#include "zero3d/engine/run_state.h"
#include "zero3d/engine/zero/placement.h"
#include "zero3d/formats/json_value.h"

namespace zero3d {

/// The name of the tensor that is not the optimizer's: the weight in the best precision it was
/// kept in, its fp32 master where there was one.
inline constexpr std::string_view kWeight = "weight";

struct SavedParameter {
  std::string name;
  Shape shape;  ///< Of the whole parameter.
  bool frozen = false;
  std::string rule;  ///< Of its optimizer; "" when frozen or not known.
  /// By name: kWeight, unless it was left out, and the optimizer's states as UpdateRule names them.
  std::map<std::string, DType, std::less<>> tensors;
};

enum class SavedScale { none, fixed, dynamic };

/// Ranks of the run that was saved, for people.
struct SavedMesh {
  int dp = 1;
  int tp = 1;
  int pp = 1;
  int sp = 1;
};

struct SavedRun {
  RunState state;
  bool knows_seed = true;  ///< Else state.seed says nothing.
  SavedScale scale = SavedScale::none;
  SavedMesh mesh;
  /// describe(TrainSettings) of that run; "" when not known.
  std::string settings;
  JsonValue client_state = JsonValue::make_object();
  std::string writer;  ///< "zero3d", "DeepSpeed 0.15.1": for people.
};

class SavedState {
 public:
  virtual ~SavedState() = default;
  /// Of the folder, for messages.
  virtual const std::string& path() const = 0;
  virtual const SavedRun& run() const = 0;
  /// In the order of the model.
  const std::vector<SavedParameter>& parameters() const { return parameters_; }
  /// Null when there is none of that name.
  const SavedParameter* find(std::string_view name) const;

  /// Writes runs of a tensor that find() tells of, each to its offset of host memory `dst`,
  /// converted to its dtype with one rounding. From several threads at a time. Throws IoError for
  /// what cannot be read or is damaged.
  virtual void read(const SavedParameter& parameter, std::string_view tensor,
                    std::span<const GlobalRun> runs, const View& dst) const = 0;
  /// Reads all of it. Throws IoError with everything that is damaged.
  virtual void verify() const = 0;

 protected:
  void set_parameters(std::vector<SavedParameter> parameters);

 private:
  std::vector<SavedParameter> parameters_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

}  // namespace zero3d
