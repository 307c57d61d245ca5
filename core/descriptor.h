// An open file descriptor and its owner, and writing all of something to it.
#pragma once

#include <cstddef>
#include <string>

namespace zero3d {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  int value() const { return value_; }  ///< Negative: none is open.
  explicit operator bool() const { return value_ >= 0; }
  /// Closes it; throws IoError at `path` for what the system could not write until now.
  void close(const std::string& path);
  /// Writes everything; throws IoError at `path`.
  void write(const std::string& path, const void* data, std::size_t bytes) const;

 private:
  int value_ = -1;
};

}  // namespace zero3d
