// Writes what torch.save would, byte by byte, so that tests make archives of any content, damaged
// ones too.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zero3d/formats/zip_directory.h"

namespace zero3d::test {

template <typename T>
std::string little_endian(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

/// A zip archive of stored entries.
class ZipWriter {
 public:
  struct Options {
    bool zip64 = false;  ///< Wide fields for everything.
    int method = 0;      ///< As stated.
    int flags = 0;
    std::string comment;
  };
  ZipWriter() = default;
  explicit ZipWriter(Options options) : options_(std::move(options)) {}

  ZipWriter& add(const std::string& name, std::string_view data) {
    const std::uint64_t at = text_.size();
    const std::string crc = little_endian(zip_checksum(data));
    // PyTorch leaves sizes to the directory, and aligns data by a field of its own.
    const std::string padding = "FB" + little_endian<std::uint16_t>(3) + "ZZZ";
    text_ += "PK\x03\x04" + little_endian<std::uint16_t>(0) + little_endian<std::uint16_t>(0x0808);
    text_ += std::string(20 - 2, '\0') + little_endian(static_cast<std::uint16_t>(name.size())) +
             little_endian(static_cast<std::uint16_t>(padding.size())) + name + padding;
    text_ += data;
    const bool wide = options_.zip64;
    const auto size = static_cast<std::uint32_t>(wide ? 0xffffffff : data.size());
    std::string extra;
    if (wide) {
      extra = little_endian<std::uint16_t>(1) + little_endian<std::uint16_t>(24) +
              little_endian<std::uint64_t>(data.size()) +
              little_endian<std::uint64_t>(data.size()) + little_endian(at);
    }
    directory_ += "PK\x01\x02" + std::string(4, '\0') +
                  little_endian(static_cast<std::uint16_t>(options_.flags)) +
                  little_endian(static_cast<std::uint16_t>(options_.method)) +
                  std::string(4, '\0') + crc + little_endian(size) + little_endian(size) +
                  little_endian(static_cast<std::uint16_t>(name.size())) +
                  little_endian(static_cast<std::uint16_t>(extra.size())) + std::string(10, '\0') +
                  little_endian(static_cast<std::uint32_t>(wide ? 0xffffffff : at)) + name + extra;
    ++entries_;
    return *this;
  }

  std::string finish() const {
    std::string out = text_ + directory_;
    const std::uint64_t end = out.size();
    if (options_.zip64) {
      out += "PK\x06\x06" + little_endian<std::uint64_t>(44) + std::string(12, '\0') +
             little_endian<std::uint64_t>(entries_) + little_endian<std::uint64_t>(entries_) +
             little_endian<std::uint64_t>(directory_.size()) +
             little_endian<std::uint64_t>(text_.size());
      out += "PK\x06\x07" + std::string(4, '\0') + little_endian(end) +
             little_endian<std::uint32_t>(1);
    }
    const bool wide = options_.zip64;
    const auto count = static_cast<std::uint16_t>(wide ? 0xffff : entries_);
    out += "PK\x05\x06" + std::string(4, '\0') + little_endian(count) + little_endian(count) +
           little_endian(static_cast<std::uint32_t>(wide ? 0xffffffff : directory_.size())) +
           little_endian(static_cast<std::uint32_t>(wide ? 0xffffffff : text_.size())) +
           little_endian(static_cast<std::uint16_t>(options_.comment.size())) + options_.comment;
    return out;
  }

 private:
  Options options_;
  std::string text_;
  std::string directory_;
  std::uint64_t entries_ = 0;
};

/// Pickled values as pieces of text that are put together: P::dict({{"a", P::integer(1)}}).
struct P {
  std::string code;

  static P raw(std::string code) { return {std::move(code)}; }
  static P none() { return {"N"}; }
  static P boolean(bool value) { return {value ? "\x88" : "\x89"}; }
  static P integer(std::int64_t value) { return {"\x8a\x08" + little_endian(value)}; }
  static P number(double value) {
    std::string bytes = little_endian(value);
    return {"G" + std::string(bytes.rbegin(), bytes.rend())};
  }
  static P text(std::string_view value) {
    return {"X" + little_endian(static_cast<std::uint32_t>(value.size())) + std::string(value)};
  }
  static P global(const std::string& module, const std::string& name) {
    return {"c" + module + "\n" + name + "\n"};
  }
  static P tuple(const std::vector<P>& items) { return {"(" + all(items) + "t"}; }
  static P list(const std::vector<P>& items) { return {"](" + all(items) + "e"}; }
  static P call(const P& callee, const std::vector<P>& arguments) {
    return {callee.code + tuple(arguments).code + "R"};
  }
  using Entries = std::vector<std::pair<std::string, P>>;
  static P dict(const Entries& entries) { return {"}(" + all(entries) + "u"}; }
  static P ordered(const Entries& entries) {
    return {global("collections", "OrderedDict").code + ")R(" + all(entries) + "u"};
  }
  static P numbered(const std::vector<P>& values) {
    std::string code = "}(";
    for (std::size_t i = 0; i < values.size(); ++i)
      code += integer(static_cast<std::int64_t>(i)).code + values[i].code;
    return {code + "u"};
  }
  /// An instance with attributes.
  static P object(const std::string& module, const std::string& name, const Entries& attributes) {
    return {global(module, name).code + ")\x81" + dict(attributes).code + "b"};
  }
  static P size(const std::vector<std::int64_t>& extents) {
    return call(global("torch", "Size"), {tuple(integers(extents))});
  }
  static std::vector<P> integers(const std::vector<std::int64_t>& values) {
    std::vector<P> items;
    for (const std::int64_t value : values) items.push_back(integer(value));
    return items;
  }
  std::string pickle() const { return "\x80\x02" + code + "."; }

 private:
  static std::string all(const std::vector<P>& items) {
    std::string code;
    for (const P& item : items) code += item.code;
    return code;
  }
  static std::string all(const Entries& entries) {
    std::string code;
    for (const auto& [name, value] : entries) code += text(name).code + value.code;
    return code;
  }
};

/// Storages of an archive, and tensors in them.
class TorchWriter {
 public:
  /// A storage; returns its key.
  std::string storage(std::string bytes) {
    storages_.push_back(std::move(bytes));
    return std::to_string(storages_.size() - 1);
  }
  static P storage_id(const std::string& key, const std::string& type, std::int64_t numel) {
    return {P::tuple({P::text("storage"), P::global("torch", type), P::text(key), P::text("cpu"),
                      P::integer(numel)})
                .code +
            "Q"};
  }
  static P tensor(const P& storage, std::int64_t offset, const std::vector<std::int64_t>& shape,
                  const std::vector<std::int64_t>& strides) {
    return P::call(P::global("torch._utils", "_rebuild_tensor_v2"),
                   {storage, P::integer(offset), P::tuple(P::integers(shape)),
                    P::tuple(P::integers(strides)), P::boolean(false), P::ordered({})});
  }
  /// A row-major tensor in a storage of its own.
  P floats(const std::vector<float>& values, const std::vector<std::int64_t>& shape) {
    const std::string key = storage(
        std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
    std::vector<std::int64_t> strides(shape.size(), 1);
    for (std::size_t dim = shape.size(); dim-- > 1;) strides[dim - 1] = strides[dim] * shape[dim];
    return tensor(storage_id(key, "FloatStorage", static_cast<std::int64_t>(values.size())), 0,
                  shape, strides);
  }

  std::string archive(const P& root, ZipWriter zip = {}) const {
    zip.add("archive/data.pkl", root.pickle());
    zip.add("archive/byteorder", "little");
    for (std::size_t i = 0; i < storages_.size(); ++i)
      zip.add("archive/data/" + std::to_string(i), storages_[i]);
    zip.add("archive/version", "3\n");
    return zip.finish();
  }
  const std::vector<std::string>& storages() const { return storages_; }

 private:
  std::vector<std::string> storages_;
};

}  // namespace zero3d::test
