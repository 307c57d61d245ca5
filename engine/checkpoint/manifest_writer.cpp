// A manifest as text.
#include <charconv>

#include "zero3d/engine/checkpoint/file_sums.h"
#include "zero3d/engine/checkpoint/manifest.h"

namespace zero3d {
namespace {

/// Numbers that JSON readers keep exactly are written as such, others as text.
JsonValue number_or_text(std::string_view text) {
  std::int64_t whole = 0;
  const char* const end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, whole);
  if (error == std::errc() && last == end) return JsonValue(whole);
  return JsonValue(std::string(text));
}

JsonValue run_state(const RunState& state) {
  JsonValue object = JsonValue::make_object();
  const std::string all = to_text(state);
  for (std::string_view text = all; !text.empty();) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(line.size() + 1);
    const std::size_t equals = line.find(" = ");
    object.set(line.substr(0, equals), number_or_text(line.substr(equals + 3)));
  }
  return object;
}

JsonValue pieces_value(const std::vector<Piece>& pieces) {
  JsonValue list = JsonValue::make_array();
  for (const Piece& piece : pieces) {
    JsonValue entry = JsonValue::make_array();
    for (const std::int64_t number :
         {std::int64_t{piece.file}, piece.offset, piece.first, piece.count})
      entry.push_back(JsonValue(number));
    if (piece.repeat > 1)
      for (const std::int64_t number : {piece.repeat, piece.stride, piece.pitch})
        entry.push_back(JsonValue(number));
    list.push_back(std::move(entry));
  }
  return list;
}

JsonValue parameter_value(const CheckpointManifest& manifest, std::size_t index) {
  const SavedParameter& parameter = manifest.parameters[index];
  JsonValue entry = JsonValue::make_object();
  entry.set("name", JsonValue(parameter.name));
  JsonValue& shape = entry.set("shape", JsonValue::make_array());
  for (int dim = 0; dim < parameter.shape.rank(); ++dim)
    shape.push_back(JsonValue(parameter.shape[dim]));
  entry.set("frozen", JsonValue(parameter.frozen));
  entry.set("rule", JsonValue(parameter.rule));
  JsonValue& tensors = entry.set("tensors", JsonValue::make_object());
  for (const auto& [name, dtype] : parameter.tensors) {
    JsonValue& tensor = tensors.set(name, JsonValue::make_object());
    tensor.set("dtype", JsonValue(std::string(name_of(dtype))));
    const auto pieces = manifest.pieces[index].find(name);
    tensor.set("pieces", pieces_value(pieces == manifest.pieces[index].end() ? std::vector<Piece>()
                                                                             : pieces->second));
  }
  return entry;
}

}  // namespace

std::string to_text(const CheckpointManifest& manifest) {
  JsonValue root = JsonValue::make_object();
  root.set("format", JsonValue(CheckpointManifest::kFormat));
  root.set("version", JsonValue(CheckpointManifest::kVersion));
  root.set("state", run_state(manifest.run.state));
  root.set("loss_scale", JsonValue(std::string(name_of(manifest.run.scale))));
  JsonValue& mesh = root.set("mesh", JsonValue::make_object());
  mesh.set("dp", JsonValue(manifest.run.mesh.dp));
  mesh.set("tp", JsonValue(manifest.run.mesh.tp));
  mesh.set("pp", JsonValue(manifest.run.mesh.pp));
  mesh.set("sp", JsonValue(manifest.run.mesh.sp));
  root.set("settings", JsonValue(manifest.run.settings));
  root.set("client_state", manifest.run.client_state);
  JsonValue& files = root.set("files", JsonValue::make_array());
  for (const ManifestFile& file : manifest.files) {
    JsonValue entry = JsonValue::make_object();
    entry.set("name", JsonValue(file.name));
    entry.set("bytes", JsonValue(file.bytes));
    entry.set("sums", JsonValue(sums_to_text(file.sums)));
    files.push_back(std::move(entry));
  }
  JsonValue& parameters = root.set("parameters", JsonValue::make_array());
  for (std::size_t i = 0; i < manifest.parameters.size(); ++i)
    parameters.push_back(parameter_value(manifest, i));
  return root.dump() + "\n";
}

}  // namespace zero3d
