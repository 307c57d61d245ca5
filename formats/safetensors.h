// Reads safetensors files, which may come from anywhere: every offset, size and name is checked
// before it is used, as https://github.com/huggingface/safetensors (README, "Format") asks. Writing
// is in safetensors_writer.h. Reads are safe from several threads.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/core/view.h"
#include "zero3d/formats/input_file.h"

namespace zero3d {

/// A tensor of a file, of this form or another. The shape is a vector because files hold ranks that
/// Shape does not.
struct SafetensorsEntry {
  std::string name;
  std::string dtype_name;      ///< As in the file: "BF16", "F8_E4M3".
  std::optional<DType> dtype;  ///< Empty for dtypes that only other programs use.
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< First byte, counted from the start of the file; in other forms 0.
  std::uint64_t end = 0;    ///< One past the last byte.

  std::int64_t numel() const;
};

/// "[2, 3]".
std::string to_string(const std::vector<std::int64_t>& shape);
bool same_shape(const std::vector<std::int64_t>& a, const Shape& b);

/// A file of named tensors that a model's weights may come from.
class WeightFile {
 public:
  virtual ~WeightFile() = default;
  virtual const std::string& path() const = 0;
  /// In the order of the file.
  virtual const std::vector<SafetensorsEntry>& tensors() const = 0;
  /// Writes elements [first, first + dst.numel()) of a tensor of this file, in row-major order, to
  /// host memory: as they are when dst has the same dtype, else both must be floating and each
  /// element is rounded once. Throws IoError. Safe from several threads.
  virtual void read(const SafetensorsEntry& entry, std::int64_t first, const View& dst) const = 0;
};

class SafetensorsFile final : public WeightFile {
 public:
  static constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  ///< The format's own limit.

  /// Reads and checks the header. Throws IoError naming every problem: a truncated file, a header
  /// that is no JSON or is nested or sized beyond the format, duplicate names, byte ranges that
  /// overlap, leave holes, pass the end or disagree with dtype and shape.
  explicit SafetensorsFile(std::string path);

  const std::string& path() const override { return file_.path(); }
  /// In the order of their bytes.
  const std::vector<SafetensorsEntry>& tensors() const override { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Null when there is none of that name.
  const SafetensorsEntry* find(std::string_view name) const;

  void read(const SafetensorsEntry& entry, std::int64_t first, const View& dst) const override;

 private:
  InputFile file_;
  std::vector<SafetensorsEntry> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace zero3d
