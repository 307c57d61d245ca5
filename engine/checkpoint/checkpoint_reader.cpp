#include "zero3d/engine/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <filesystem>

#include "zero3d/core/error.h"
#include "zero3d/core/multiples.h"
#include "zero3d/core/text.h"
#include "zero3d/engine/checkpoint/file_sums.h"
#include "zero3d/formats/convert.h"
#include "zero3d/formats/problem_list.h"

namespace zero3d {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxManifest = std::uint64_t{1} << 30;
constexpr std::size_t kPlacedTensors = 16;                  // kept expanded
constexpr std::int64_t kConverted = std::int64_t{1} << 18;  // elements at a time

}  // namespace

CheckpointReader::CheckpointReader(const std::string& folder) : path_(folder) {
  const std::string manifest = (fs::path(folder) / CheckpointManifest::kName).string();
  manifest_ = parse_manifest(manifest, InputFile(manifest).read_all(kMaxManifest));
  for (const ManifestFile& entry : manifest_.files) {
    File& file = files_.emplace_back();
    file.input = std::make_unique<InputFile>((fs::path(folder) / entry.name).string());
    if (file.input->bytes() != static_cast<std::uint64_t>(entry.bytes)) {
      throw IoError(
          file.input->path(), 0,
          concat("is damaged: expected ", entry.bytes, " bytes, found ", file.input->bytes()));
    }
    file.verified = std::make_unique<std::atomic<bool>[]>(entry.sums.size());
  }
  set_parameters(manifest_.parameters);
}

std::int64_t CheckpointReader::bytes() const {
  std::int64_t total = 0;
  for (const ManifestFile& file : manifest_.files) total += file.bytes;
  return total;
}

CheckpointReader::Runs CheckpointReader::runs_of(std::size_t parameter,
                                                 const std::string& tensor) const {
  const std::lock_guard lock(mutex_);
  if (placed_.size() >= kPlacedTensors) placed_.clear();
  Runs& runs = placed_[{parameter, tensor}];
  if (runs != nullptr) return runs;
  const SavedParameter& entry = parameters()[parameter];
  const DType dtype = entry.tensors.at(tensor);
  try {
    runs = std::make_shared<const std::vector<PlacedRun>>(
        placed_runs(manifest_.pieces[parameter].at(tensor), entry.shape.numel(),
                    static_cast<std::int64_t>(size_of(dtype)),
                    concat(printable(tensor), " of ", printable(entry.name))));
  } catch (const Error& error) {
    throw IoError((fs::path(path_) / CheckpointManifest::kName).string(), 0, error.what());
  }
  return runs;
}

/// Throws IoError for one that does not have its checksum.
void CheckpointReader::read_chunk(int file, std::int64_t chunk,
                                  std::vector<std::byte>& bytes) const {
  const ManifestFile& entry = manifest_.files[static_cast<std::size_t>(file)];
  const File& open = files_[static_cast<std::size_t>(file)];
  const std::int64_t begin = chunk * FileSums::kChunkBytes;
  const std::int64_t count = std::min(FileSums::kChunkBytes, entry.bytes - begin);
  bytes.resize(static_cast<std::size_t>(count));
  open.input->read(static_cast<std::uint64_t>(begin), bytes.data(), bytes.size());
  const std::uint64_t expected = entry.sums[static_cast<std::size_t>(chunk)];
  const std::uint64_t found = chunk_sum(ConstView(bytes.data(), DType::u8, Shape{count}), chunk);
  if (found == expected) {
    open.verified[static_cast<std::size_t>(chunk)].store(true, std::memory_order_relaxed);
    return;
  }
  throw IoError(open.input->path(), 0,
                concat("is damaged: bytes ", begin, " to ", begin + count, " have the checksum ",
                       sums_to_text({found}), ", expected ", sums_to_text({expected}),
                       "; use another checkpoint"));
}

void CheckpointReader::read_bytes(int file, std::int64_t offset, std::byte* dst,
                                  std::int64_t bytes) const {
  const File& open = files_[static_cast<std::size_t>(file)];
  std::vector<std::byte> whole;
  while (bytes > 0) {
    const std::int64_t chunk = offset / FileSums::kChunkBytes;
    const std::int64_t begin = offset - chunk * FileSums::kChunkBytes;
    const std::int64_t count = std::min(bytes, FileSums::kChunkBytes - begin);
    if (open.verified[static_cast<std::size_t>(chunk)].load(std::memory_order_relaxed)) {
      open.input->read(static_cast<std::uint64_t>(offset), dst, static_cast<std::size_t>(count));
    } else {
      read_chunk(file, chunk, whole);
      std::copy_n(whole.begin() + begin, count, dst);
    }
    offset += count;
    dst += count;
    bytes -= count;
  }
}

void CheckpointReader::read_run(const std::vector<PlacedRun>& runs, DType from,
                                const GlobalRun& wanted, const View& dst) const {
  auto run = std::upper_bound(
      runs.begin(), runs.end(), wanted.global_first,
      [](std::int64_t first, const PlacedRun& placed) { return first < placed.first; });
  const auto size = static_cast<std::int64_t>(size_of(from));
  std::vector<std::byte> raw;
  --run;
  for (std::int64_t done = 0; done < wanted.count; ++run) {
    ZERO3D_CHECK(run != runs.end(), "a run of a tensor is within it");
    const std::int64_t skipped = wanted.global_first + done - run->first;
    const std::int64_t count = std::min(run->count - skipped, wanted.count - done);
    for (std::int64_t part = 0; part < count; part += kConverted) {
      const std::int64_t elements =
          from == dst.dtype() ? count : std::min(kConverted, count - part);
      const std::int64_t offset = run->offset + (skipped + part) * size;
      const View to = dst.flat(wanted.offset + done + part, elements);
      if (from == dst.dtype()) {
        read_bytes(run->file, offset, to.data(), elements * size);
        break;
      }
      raw.resize(static_cast<std::size_t>(elements * size));
      read_bytes(run->file, offset, raw.data(), elements * size);
      convert_elements(from, raw.data(), to.dtype(), to.data(), static_cast<std::size_t>(elements));
    }
    done += count;
  }
}

void CheckpointReader::read(const SavedParameter& parameter, std::string_view tensor,
                            std::span<const GlobalRun> runs, const View& dst) const {
  const auto entry = parameter.tensors.find(tensor);
  ZERO3D_CHECK(entry != parameter.tensors.end(), "only tensors that are there are read");
  const Runs placed =
      runs_of(static_cast<std::size_t>(&parameter - parameters().data()), entry->first);
  for (const GlobalRun& run : runs)
    if (run.count > 0) read_run(*placed, entry->second, run, dst);
}

void CheckpointReader::verify() const {
  ProblemList problems;
  for (std::size_t i = 0; i < parameters().size(); ++i) {
    for (const auto& [tensor, dtype] : parameters()[i].tensors) {
      try {
        runs_of(i, tensor);
      } catch (const IoError& error) {
        problems.add(error.what());
      }
    }
  }
  std::vector<std::byte> bytes;
  for (std::size_t file = 0; file < files_.size(); ++file) {
    const auto chunks = static_cast<std::int64_t>(manifest_.files[file].sums.size());
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      try {
        read_chunk(static_cast<int>(file), chunk, bytes);
      } catch (const IoError& error) {
        problems.add(error.what());
      }
    }
  }
  problems.throw_if_any(path_, "the checkpoint is damaged");
}

}  // namespace zero3d
