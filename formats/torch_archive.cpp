#include "zero3d/formats/torch_archive.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/convert.h"
#include "zero3d/formats/element_reader.h"
#include "zero3d/formats/lfs_pointer.h"
#include "zero3d/formats/pickle_machine.h"
#include "zero3d/formats/problem_list.h"
#include "zero3d/formats/safetensors.h"
#include "zero3d/formats/zip_directory.h"

namespace zero3d {
namespace {

static_assert(std::endian::native == std::endian::little, "the format's bytes are little-endian");

constexpr std::uint64_t kMaxOldPickles = std::uint64_t{64} << 20;
constexpr std::size_t kVerifyBytes = std::size_t{1} << 20;
constexpr std::int64_t kStridedElements = std::int64_t{1} << 20;
constexpr std::uint64_t kMaxSpanBytes = std::uint64_t{64} << 20;
// torch/serialization.py: MAGIC_NUMBER, as the first pickle of the old form has it.
constexpr std::string_view kOldMagic("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.",
                                     15);

std::string beginning(const InputFile& file) {
  std::string text(static_cast<std::size_t>(std::min<std::uint64_t>(file.bytes(), 64)), '\0');
  file.read(0, text.data(), text.size());
  return text;
}

/// "archive/" of "archive/data.pkl", which every archive has once.
std::string find_root(const InputFile& file, const ZipDirectory& directory) {
  constexpr std::string_view kName = "/data.pkl";
  std::string root;
  for (const ZipEntry& entry : directory.entries()) {
    const std::string_view name = entry.name;
    if (!name.ends_with(kName) || name.find('/') != name.size() - kName.size()) continue;
    if (!root.empty())
      throw IoError(file.path(), 0,
                    "an archive with two data.pkl in it, expected one; save it again");
    root = name.substr(0, name.size() - kName.size() + 1);
  }
  if (root.empty())
    throw IoError(file.path(), 0,
                  "a zip archive that torch.save did not write: there is no data.pkl in it");
  if (directory.find(root + "constants.pkl") != nullptr)
    throw IoError(file.path(), 0,
                  "a TorchScript archive, which holds a program; save the model's state_dict() "
                  "instead");
  return root;
}

}  // namespace

TorchArchive::TorchArchive(std::string path, std::shared_ptr<OpenFiles> files)
    : path_(std::move(path)), files_(files ? std::move(files) : std::make_shared<OpenFiles>(1)) {
  const auto file = files_->open(path_);
  bytes_ = file->bytes();
  zip_ = begins_as_zip(*file);
  const std::string begin = beginning(*file);
  if (zip_)
    read_zip(*file);
  else if (begin.starts_with(kOldMagic))
    read_old_form(*file);
  else
    throw IoError(
        path_, 0,
        is_lfs_pointer(begin)
            ? std::string(kIsLfsPointer)
            : concat("no file of torch.save: expected a zip archive or a pickle, found ",
                     file->bytes(), " bytes that begin with ", printable(begin.substr(0, 8))));
  check_tensors();
}

void TorchArchive::read_zip(const InputFile& file) {
  const ZipDirectory directory(file);
  const std::string root = find_root(file, directory);
  if (const ZipEntry* order = directory.find(root + "byteorder");
      order != nullptr && read_entry(file, *order, 64) != "little")
    throw IoError(
        path_, 0,
        "its numbers are big-endian, expected little-endian; save it again as safetensors");
  const ZipEntry* pickle = directory.find(root + "data.pkl");
  const std::string text = read_entry(file, *pickle, kMaxPickleBytes);
  tree_ = PickleMachine(path_).run(text);
  for (const PickleTensor& tensor : tree_.tensors()) {
    if (storages_.contains(tensor.key)) continue;
    const ZipEntry* entry = directory.find(concat(root, "data/", tensor.key));
    if (entry != nullptr) storages_[tensor.key] = {first_byte(file, *entry), entry->bytes};
  }
}

/// Five pickles (magic number, version, facts of the machine, what was saved, keys of storages),
/// then for each key the count of elements and the elements.
void TorchArchive::read_old_form(const InputFile& file) {
  std::string text(static_cast<std::size_t>(std::min(file.bytes(), kMaxOldPickles)), '\0');
  file.read(0, text.data(), text.size());
  std::string_view rest = text;
  PickleMachine machine(path_);
  const auto next = [&] {
    PickleTree tree = machine.run(rest);
    rest.remove_prefix(machine.consumed());
    return tree;
  };
  next();
  next();
  const PickleTree facts = next();
  if (facts.root().find("little_endian").boolean() == false)
    throw IoError(
        path_, 0,
        "its numbers are big-endian, expected little-endian; save it again as safetensors");
  tree_ = next();
  const PickleTree keys = next();
  std::map<std::string_view, std::size_t> sizes;
  for (const PickleStorage& storage : tree_.storages()) sizes[storage.key] = storage.type->bytes;
  std::uint64_t at = text.size() - rest.size();
  for (std::size_t i = 0; i < keys.root().size(); ++i) {
    const std::string* key = keys.root()[i].text();
    const auto size = key == nullptr ? sizes.end() : sizes.find(*key);
    std::uint64_t numel = 0;
    file.read(at, &numel, sizeof numel);
    at += sizeof numel;
    if (size == sizes.end() || numel > (file.bytes() - at) / size->second)
      throw IoError(path_, 0,
                    concat("damaged file: storage ", i, " of ", numel, " elements at byte ", at,
                           " is unknown or cut short"));
    storages_[*key] = {at, numel * size->second};
    at += numel * size->second;
  }
}

void TorchArchive::check_tensors() const {
  ProblemList problems;
  std::set<std::string_view> named;
  for (const PickleTensor& tensor : tree_.tensors()) {
    const auto found = storages_.find(tensor.key);
    if (found != storages_.end() && found->second.bytes >= tensor.storage_bytes) continue;
    if (!named.insert(tensor.key).second) continue;
    problems.add(found == storages_.end()
                     ? concat("storage ", printable(tensor.key), " is missing")
                     : concat("storage ", printable(tensor.key), ": expected ",
                              tensor.storage_bytes, " bytes, found ", found->second.bytes));
  }
  problems.throw_if_any(path_, "damaged archive of tensors");
}

std::shared_ptr<const InputFile> TorchArchive::reopen() const {
  auto file = files_->open(path_);
  if (file->bytes() != bytes_)
    throw IoError(path_, 0,
                  concat("the file has changed since it was opened: expected ", bytes_,
                         " bytes, found ", file->bytes()));
  return file;
}

void TorchArchive::read(const PickleTensor& tensor, std::int64_t first, const View& dst) const {
  const std::optional<DType> dtype = tensor.type->dtype;
  if (!dtype || !is_convertible(*dtype, dst.dtype()))
    throw IoError(path_, 0,
                  concat("a tensor of dtype ", tensor.type->name, " cannot be read as ",
                         name_of(dst.dtype())));
  const std::int64_t count = dst.numel(), all = tensor.numel();
  if (first < 0 || count > all || first > all - count)
    throw_invalid(concat(path_, ": elements [", first, ", ", first, " + ", count,
                         ") of a tensor asked for, it has ", all));
  if (count == 0) return;
  const auto storage = storages_.find(tensor.key);
  ZERO3D_CHECK(storage != storages_.end(), "a tensor of another archive");
  const std::uint64_t begin = storage->second.begin;
  const auto file = reopen();
  if (!tensor.contiguous()) return read_strided(*file, tensor, begin, first, dst);
  read_elements(*file, *dtype,
                begin + static_cast<std::uint64_t>(tensor.offset + first) * tensor.type->bytes,
                dst);
}

void TorchArchive::read_strided(const InputFile& file, const PickleTensor& tensor,
                                std::uint64_t begin, std::int64_t first, const View& dst) const {
  const std::size_t size = tensor.type->bytes;
  std::vector<std::int64_t> places;
  std::vector<std::byte> span, gathered;
  const std::int64_t total = dst.numel();
  for (std::int64_t done = 0; done < total;) {
    const std::int64_t count = std::min(kStridedElements, total - done);
    places.resize(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t index = first + done + i, place = tensor.offset;
      for (std::size_t dim = tensor.shape.size(); dim-- > 0; index /= tensor.shape[dim])
        place += index % tensor.shape[dim] * tensor.strides[dim];
      places[static_cast<std::size_t>(i)] = place;
    }
    const auto [low, high] = std::ranges::minmax(places);
    const auto at = [&](std::int64_t place) {
      return begin + static_cast<std::uint64_t>(place) * size;
    };
    gathered.resize(places.size() * size);
    const std::uint64_t bytes = static_cast<std::uint64_t>(high - low + 1) * size;
    const bool whole = bytes <= kMaxSpanBytes;
    if (whole) {
      span.resize(static_cast<std::size_t>(bytes));
      file.read(at(low), span.data(), span.size());
    }
    for (std::size_t i = 0; i < places.size(); ++i) {
      std::byte* out = gathered.data() + i * size;
      if (whole)
        std::memcpy(out, span.data() + static_cast<std::size_t>(places[i] - low) * size, size);
      else
        file.read(at(places[i]), out, size);
    }
    convert_elements(*tensor.type->dtype, gathered.data(), dst.dtype(),
                     dst.data() + static_cast<std::size_t>(done) * size_of(dst.dtype()),
                     places.size());
    done += count;
  }
}

void TorchArchive::verify() const {
  if (!zip_) return;
  const auto file = reopen();
  const ZipDirectory directory(*file);
  std::string part;
  for (const ZipEntry& entry : directory.entries()) {
    const std::uint64_t begin = first_byte(*file, entry);
    std::uint32_t found = 0;
    for (std::uint64_t done = 0; done < entry.bytes; done += part.size()) {
      part.resize(
          static_cast<std::size_t>(std::min<std::uint64_t>(kVerifyBytes, entry.bytes - done)));
      file->read(begin + done, part.data(), part.size());
      found = zip_checksum(part, found);
    }
    if (entry.checksum != 0 && found != entry.checksum)
      throw IoError(path_, 0,
                    concat("entry ", printable(entry.name), " is damaged: expected the checksum ",
                           entry.checksum, ", found ", found));
  }
}

}  // namespace zero3d
