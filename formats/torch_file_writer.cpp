#include "zero3d/formats/torch_file_writer.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/zip_directory.h"

namespace zero3d {
namespace {

constexpr std::uint64_t kAlignment = 64;  // of the bytes of an entry, as torch.save has it
constexpr std::uint64_t kMost32 = 0xFFFFFFFF;
constexpr std::int64_t kPiece = std::int64_t{1} << 20;  // elements at a time
constexpr std::uint16_t kZip64 = 45;                    // the version that reads zip64

/// Little-endian.
template <typename T>
void add(std::string& text, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i)
    text += static_cast<char>(static_cast<std::uint64_t>(value) >> 8 * i & 0xFF);
}

std::uint32_t capped(std::uint64_t value) {
  return static_cast<std::uint32_t>(std::min(value, kMost32));
}

/// The extra field of zip64 with these numbers; "" where none is too large for its usual place.
std::string zip64_field(std::initializer_list<std::uint64_t> numbers) {
  std::string field, body;
  for (const std::uint64_t number : numbers) add(body, number);
  add(field, std::uint16_t{1});
  add(field, static_cast<std::uint16_t>(body.size()));
  return field + body;
}

std::string_view storage_class(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "FloatStorage";
    case DType::bf16:
      return "BFloat16Storage";
    case DType::f16:
      return "HalfStorage";
    default:
      throw_invalid(concat("tensors of ", name_of(dtype), " are not written for PyTorch"));
  }
}

template <typename Use>
void for_each_piece(std::int64_t numel, DType dtype, const TorchFileWriter::Read& read,
                    const Use& use) {
  std::string bytes;
  for (std::int64_t first = 0; first < numel; first += kPiece) {
    const std::int64_t count = std::min(kPiece, numel - first);
    bytes.resize(static_cast<std::size_t>(bytes_of(count, dtype)));
    read(first, View(reinterpret_cast<std::byte*>(bytes.data()), dtype, Shape{count}));
    use(std::string_view(bytes));
  }
}

}  // namespace

TorchFileWriter::TorchFileWriter(const std::string& path)
    : root_(std::filesystem::path(path).stem().string()), file_(path) {}

std::size_t TorchFileWriter::add_storage(DType dtype, std::int64_t numel, Read read) {
  storage_class(dtype);
  storages_.push_back({dtype, numel, std::move(read)});
  return storages_.size() - 1;
}

void TorchFileWriter::tensor(std::size_t storage, std::int64_t offset,
                             const std::vector<std::int64_t>& shape, bool requires_grad) {
  const Storage& from = storages_[storage];
  pickle_.global("torch._utils", "_rebuild_tensor_v2");
  pickle_.begin_tuple();
  pickle_.begin_tuple();
  pickle_.text("storage");
  pickle_.global("torch", storage_class(from.dtype));
  pickle_.text(std::to_string(storage));
  pickle_.text("cpu");
  pickle_.integer(from.numel);
  pickle_.end_tuple();
  pickle_.persistent();
  pickle_.integer(offset);
  pickle_.begin_tuple();
  for (const std::int64_t dim : shape) pickle_.integer(dim);
  pickle_.end_tuple();
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t dim = shape.size(); dim-- > 0; stride *= std::max<std::int64_t>(1, shape[dim]))
    strides[dim] = stride;
  pickle_.begin_tuple();
  for (const std::int64_t step : strides) pickle_.integer(step);
  pickle_.end_tuple();
  pickle_.boolean(requires_grad);
  pickle_.begin_ordered_dict();
  pickle_.end_dict();
  pickle_.end_tuple();
  pickle_.reduce();
}

void TorchFileWriter::put(std::string_view bytes) {
  file_.write(bytes);
  size_ += bytes.size();
}

void TorchFileWriter::begin_entry(const std::string& name, std::uint64_t bytes,
                                  std::uint32_t checksum) {
  const std::string path = concat(root_, "/", name);
  entries_.push_back({path, size_, bytes, checksum});
  std::string extra;
  if (bytes >= kMost32) extra = zip64_field({bytes, bytes});
  constexpr std::uint64_t kHeader = 30, kField = 4;
  const std::uint64_t begin = size_ + kHeader + path.size() + extra.size() + kField;
  const std::uint64_t pad = (kAlignment - begin % kAlignment) % kAlignment;
  extra += "FB";
  add(extra, static_cast<std::uint16_t>(pad));
  extra.append(pad, 'Z');
  std::string header = "PK\3\4";
  add(header, kZip64);
  add(header, std::uint16_t{0x800});  // names are UTF-8
  add(header, std::uint16_t{0});      // stored
  add(header, std::uint32_t{0});      // no time, as torch.save
  add(header, checksum);
  add(header, capped(bytes));
  add(header, capped(bytes));
  add(header, static_cast<std::uint16_t>(path.size()));
  add(header, static_cast<std::uint16_t>(extra.size()));
  put(header + path + extra);
}

void TorchFileWriter::add_entry(const std::string& name, std::string_view bytes) {
  begin_entry(name, bytes.size(), zip_checksum(bytes));
  put(bytes);
}

/// The checksum comes before the bytes, so that they are read twice.
void TorchFileWriter::add_entry(const std::string& name, const Storage& storage) {
  std::uint32_t checksum = 0;
  for_each_piece(storage.numel, storage.dtype, storage.read,
                 [&](std::string_view bytes) { checksum = zip_checksum(bytes, checksum); });
  begin_entry(name, static_cast<std::uint64_t>(bytes_of(storage.numel, storage.dtype)), checksum);
  for_each_piece(storage.numel, storage.dtype, storage.read,
                 [&](std::string_view bytes) { put(bytes); });
}

void TorchFileWriter::put_directory() {
  const std::uint64_t begin = size_;
  for (const Entry& entry : entries_) {
    const bool large = entry.bytes >= kMost32 || entry.offset >= kMost32;
    const std::string extra =
        large ? zip64_field({entry.bytes, entry.bytes, entry.offset}) : std::string();
    std::string header = "PK\1\2";
    add(header, kZip64);
    add(header, kZip64);
    add(header, std::uint16_t{0x800});
    add(header, std::uint16_t{0});
    add(header, std::uint32_t{0});
    add(header, entry.checksum);
    add(header, large ? capped(kMost32) : capped(entry.bytes));
    add(header, large ? capped(kMost32) : capped(entry.bytes));
    add(header, static_cast<std::uint16_t>(entry.name.size()));
    add(header, static_cast<std::uint16_t>(extra.size()));
    header.append(10, '\0');  // comment, disk, attributes
    add(header, large ? capped(kMost32) : capped(entry.offset));
    put(header + entry.name + extra);
  }
  const std::uint64_t end = size_;
  std::string tail = "PK\6\6";
  add(tail, std::uint64_t{44});
  add(tail, kZip64);
  add(tail, kZip64);
  tail.append(8, '\0');
  for (const std::uint64_t number :
       {std::uint64_t{entries_.size()}, std::uint64_t{entries_.size()}, end - begin, begin})
    add(tail, number);
  tail += "PK\6\7";
  add(tail, std::uint32_t{0});
  add(tail, end);
  add(tail, std::uint32_t{1});
  tail += "PK\5\6";
  add(tail, std::uint32_t{0});
  const auto count = static_cast<std::uint16_t>(std::min<std::size_t>(entries_.size(), 0xFFFF));
  add(tail, count);
  add(tail, count);
  add(tail, capped(end - begin));
  add(tail, capped(begin));
  add(tail, std::uint16_t{0});
  put(tail);
}

void TorchFileWriter::commit() {
  add_entry("data.pkl", pickle_.finish());
  add_entry("byteorder", "little");
  for (std::size_t i = 0; i < storages_.size(); ++i) add_entry(concat("data/", i), storages_[i]);
  add_entry("version", "3\n");
  put_directory();
  file_.commit();
}

}  // namespace zero3d
