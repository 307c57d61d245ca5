#include "zero3d/engine/checkpoint/manifest.h"

#include <limits>

#include "zero3d/core/error.h"
#include "zero3d/core/multiples.h"
#include "zero3d/core/narrow.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/checkpoint/file_sums.h"
#include "zero3d/formats/hjson.h"
#include "zero3d/formats/problem_list.h"

namespace zero3d {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 30;
constexpr std::int64_t kMost = std::int64_t{1} << 62;  // sums of two stay numbers
constexpr std::size_t kMaxStates = 64;                 // tensors of one parameter

/// Takes a manifest from the tree of its text; every fault is an IoError that says where.
class ManifestReader {
 public:
  explicit ManifestReader(const std::string& path) : path_(path) {}

  CheckpointManifest read(const JsonValue& root);

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw IoError(path_, 0, concat("is no whole manifest of a checkpoint: ", what));
  }
  const JsonValue& member(const JsonValue& object, const char* name, JsonValue::Kind kind,
                          const std::string& where) const;
  std::int64_t integer(const JsonValue& value, const std::string& where, std::int64_t least,
                       std::int64_t most = kMost) const;
  std::int64_t integer(const JsonValue& object, const char* name, const std::string& where,
                       std::int64_t least, std::int64_t most = kMost) const {
    return integer(member(object, name, JsonValue::Kind::integer, where), concat(where, ".", name),
                   least, most);
  }
  std::string text(const JsonValue& object, const char* name, const std::string& where) const {
    return member(object, name, JsonValue::Kind::string, where).as_string();
  }
  void read_run(const JsonValue& root);
  RunState read_state(const JsonValue& value) const;
  void read_file(const JsonValue& entry, const std::string& where);
  void read_parameter(const JsonValue& entry, const std::string& where);
  Shape read_shape(const JsonValue& list, const std::string& where) const;
  Piece read_piece(const JsonValue& entry, std::int64_t numel, std::int64_t element_bytes,
                   const std::string& where) const;

  const std::string& path_;
  CheckpointManifest result_;
};

const JsonValue& ManifestReader::member(const JsonValue& object, const char* name,
                                        JsonValue::Kind kind, const std::string& where) const {
  const JsonValue* const value = object.find(name);
  if (value == nullptr) refuse(concat(where, ".", name, " is missing"));
  if (value->kind() != kind)
    refuse(concat(where, ".", name, " is ", describe_kind(value->kind()), ", expected ",
                  describe_kind(kind)));
  return *value;
}

std::int64_t ManifestReader::integer(const JsonValue& value, const std::string& where,
                                     std::int64_t least, std::int64_t most) const {
  if (!value.is_integer() || value.as_integer() < least || value.as_integer() > most)
    refuse(
        concat(where, " is ", value.excerpt(), ", expected a number from ", least, " to ", most));
  return value.as_integer();
}

RunState ManifestReader::read_state(const JsonValue& value) const {
  std::string lines;
  for (const JsonMember& field : value.members()) {
    const bool is_text = field.value.is_string();
    if (!is_text && !field.value.is_integer())
      refuse(concat("state.", printable(field.name), " is ", field.value.excerpt()));
    lines +=
        concat(field.name, " = ",
               is_text ? field.value.as_string() : std::to_string(field.value.as_integer()), "\n");
  }
  try {
    return run_state_from_text(lines);
  } catch (const Error& error) {
    refuse(error.what());
  }
}

void ManifestReader::read_run(const JsonValue& root) {
  SavedRun& run = result_.run;
  run.state = read_state(member(root, "state", JsonValue::Kind::object, "$"));
  const std::string scale = text(root, "loss_scale", "$");
  run.scale = SavedScale::none;
  for (const SavedScale one : {SavedScale::fixed, SavedScale::dynamic})
    if (scale == name_of(one)) run.scale = one;
  if (scale != name_of(run.scale)) refuse(concat("$.loss_scale is ", printable(scale)));
  const JsonValue& mesh = member(root, "mesh", JsonValue::Kind::object, "$");
  constexpr std::int64_t kRanks = std::numeric_limits<int>::max();
  run.mesh.dp = narrow<int>(integer(mesh, "dp", "mesh", 1, kRanks), "dp");
  run.mesh.tp = narrow<int>(integer(mesh, "tp", "mesh", 1, kRanks), "tp");
  run.mesh.pp = narrow<int>(integer(mesh, "pp", "mesh", 1, kRanks), "pp");
  run.mesh.sp = narrow<int>(integer(mesh, "sp", "mesh", 1, kRanks), "sp");
  run.settings = text(root, "settings", "$");
  run.client_state = member(root, "client_state", JsonValue::Kind::object, "$");
  run.writer = "zero3d";
}

void ManifestReader::read_file(const JsonValue& entry, const std::string& where) {
  ManifestFile file;
  file.name = text(entry, "name", where);
  if (file.name.empty() || file.name == "." || file.name == ".." ||
      file.name.find_first_of(std::string_view("/\0", 2)) != std::string::npos)
    refuse(concat(where, ".name is ", printable(file.name), ", expected a name without a folder"));
  file.bytes = integer(entry, "bytes", where, 0);
  try {
    file.sums = sums_from_text(text(entry, "sums", where));
  } catch (const Error& error) {
    refuse(concat(where, ".sums: ", error.what()));
  }
  const std::int64_t chunks = ceil_div(file.bytes, FileSums::kChunkBytes);
  if (static_cast<std::int64_t>(file.sums.size()) != chunks)
    refuse(concat(where, ".sums has ", file.sums.size(), " checksums, expected ", chunks, " for ",
                  file.bytes, " bytes"));
  result_.files.push_back(std::move(file));
}

Shape ManifestReader::read_shape(const JsonValue& list, const std::string& where) const {
  if (list.items().size() > Shape::kMaxRank)
    refuse(
        concat(where, " has ", list.items().size(), " dims, expected at most ", Shape::kMaxRank));
  Shape shape;
  std::int64_t numel = 1;
  for (const JsonValue& dim : list.items()) {
    const std::int64_t extent = integer(dim, where, 0);
    if (extent > 0 && numel > kMost / extent) refuse(concat(where, " has too many elements"));
    numel *= extent;
    shape.append(extent);
  }
  return shape;
}

Piece ManifestReader::read_piece(const JsonValue& entry, std::int64_t numel,
                                 std::int64_t element_bytes, const std::string& where) const {
  const std::vector<JsonValue>& numbers = entry.items();
  if (!entry.is_array() || (numbers.size() != 4 && numbers.size() != 7))
    refuse(concat(where, " is ", entry.excerpt(), ", expected a list of 4 or 7 numbers"));
  const auto at = [&](std::size_t i, std::int64_t least, std::int64_t most) {
    return integer(numbers[i], where, least, most);
  };
  Piece piece;
  const auto files = static_cast<std::int64_t>(result_.files.size());
  piece.file = narrow<int>(at(0, 0, files - 1), where);
  const std::int64_t bytes = result_.files[static_cast<std::size_t>(piece.file)].bytes;
  piece.offset = at(1, 0, bytes);
  piece.first = at(2, 0, numel);
  piece.count = at(3, 1, numel - piece.first);
  if (numbers.size() == 7) {
    piece.repeat = at(4, 1, numel);
    const std::int64_t more = std::max<std::int64_t>(1, piece.repeat - 1);
    // Runs of a piece do not overlap, so that none has more of them than its file has elements.
    piece.stride = at(5, piece.count, (numel - piece.first - piece.count) / more);
    piece.pitch = at(6, piece.count, bytes / more);
  }
  const std::int64_t end = (piece.repeat - 1) * piece.pitch + piece.count;
  if (end > (bytes - piece.offset) / element_bytes)
    refuse(concat(where, " ends outside its file of ", bytes, " bytes"));
  return piece;
}

void ManifestReader::read_parameter(const JsonValue& entry, const std::string& where) {
  SavedParameter parameter;
  parameter.name = text(entry, "name", where);
  parameter.shape =
      read_shape(member(entry, "shape", JsonValue::Kind::array, where), concat(where, ".shape"));
  parameter.frozen = member(entry, "frozen", JsonValue::Kind::boolean, where).as_bool();
  parameter.rule = text(entry, "rule", where);
  auto& all = result_.pieces.emplace_back();
  const JsonValue& tensors = member(entry, "tensors", JsonValue::Kind::object, where);
  if (tensors.members().size() > kMaxStates) refuse(concat(where, ".tensors are too many"));
  for (const JsonMember& tensor : tensors.members()) {
    const std::string place = concat(where, ".tensors.", printable(tensor.name));
    DType dtype{};
    try {
      dtype = dtype_from_name(text(tensor.value, "dtype", place));
    } catch (const IoError&) {
      throw;
    } catch (const Error& error) {
      refuse(concat(place, ".dtype: ", error.what()));
    }
    parameter.tensors.emplace(tensor.name, dtype);
    std::vector<Piece>& pieces = all[tensor.name];
    const JsonValue& list = member(tensor.value, "pieces", JsonValue::Kind::array, place);
    for (const JsonValue& piece : list.items())
      pieces.push_back(read_piece(piece, parameter.shape.numel(),
                                  static_cast<std::int64_t>(size_of(dtype)), place));
  }
  result_.parameters.push_back(std::move(parameter));
}

CheckpointManifest ManifestReader::read(const JsonValue& root) {
  if (!root.is_object()) refuse("it is no object");
  const std::string format = text(root, "format", "$");
  if (format != CheckpointManifest::kFormat) refuse(concat("$.format is ", printable(format)));
  const std::int64_t version = integer(root, "version", "$", 1);
  if (version > CheckpointManifest::kVersion)
    throw IoError(
        path_, 0,
        concat("is of version ", version, " of the format, and this zero3d reads version ",
               CheckpointManifest::kVersion, "; use a newer one"));
  read_run(root);
  for (const JsonValue& file : member(root, "files", JsonValue::Kind::array, "$").items())
    read_file(file, concat("files[", result_.files.size(), "]"));
  std::map<std::string, std::size_t, std::less<>> names;
  for (const JsonValue& entry : member(root, "parameters", JsonValue::Kind::array, "$").items()) {
    read_parameter(entry, concat("parameters[", result_.parameters.size(), "]"));
    if (!names.emplace(result_.parameters.back().name, names.size()).second)
      refuse(concat("parameter ", printable(result_.parameters.back().name), " is there twice"));
  }
  return std::move(result_);
}

}  // namespace

std::string_view name_of(SavedScale scale) {
  return scale == SavedScale::none ? "none" : scale == SavedScale::fixed ? "fixed" : "dynamic";
}

DType dtype_from_name(std::string_view name) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64,
                            DType::u16, DType::u8}) {
    if (name == name_of(dtype)) return dtype;
  }
  throw_invalid(concat("there is no dtype ", printable(name)));
}

CheckpointManifest parse_manifest(const std::string& path, std::string_view text) {
  std::vector<HjsonProblem> duplicates;
  JsonValue root;
  try {
    root = parse_hjson(text, path, duplicates, {.max_bytes = kMaxBytes});
  } catch (const HjsonError& error) {
    throw IoError(path, 0,
                  concat("is no whole manifest of a checkpoint: line ", error.position().line, ": ",
                         error.problem()));
  }
  if (!duplicates.empty())
    throw IoError(path, 0, concat(printable(duplicates.front().path), " is there twice"));
  return ManifestReader(path).read(root);
}

}  // namespace zero3d
