// Values of DeepSpeed's checkpoints that are no tensors, as its own classes are pickled.
#pragma once

#include <cstddef>
#include <cstdint>

#include "zero3d/ds_config/deepspeed_parts.h"
#include "zero3d/formats/json_value.h"
#include "zero3d/formats/pickle_writer.h"

namespace zero3d {

void write_json(PickleWriter& out, const JsonValue& value);
/// A name and a number of a dict.
void write_member(PickleWriter& out, const char* name, std::int64_t value);
/// Extents, outermost first.
std::vector<std::int64_t> dims_of(const SavedParameter& parameter);
/// An OrderedDict of torch.Size by name.
void write_sizes(PickleWriter& out, const SavedParameters& parameters);
void write_zero_stage(PickleWriter& out, int stage);
/// The object of the loss scale; the numbers of its rule are those of `ds_config`.
void write_loss_scaler(PickleWriter& out, const SavedRun& run, const JsonValue& ds_config);
/// The group of Adam's with so many parameters.
void write_param_group(PickleWriter& out, const JsonValue& ds_config, double lr,
                       std::size_t parameters);
/// Which run of each parameter is where in a flat tensor.
void write_fragments(PickleWriter& out, const FlatTensor& flat);

}  // namespace zero3d
