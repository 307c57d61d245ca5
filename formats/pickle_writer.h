// Writes pickles (protocol 2) value by value, as torch.save wants them: what Python reads back as
// dicts, lists, numbers and objects of named classes. Nothing is shared between values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace zero3d {

class PickleWriter {
 public:
  PickleWriter() : bytes_("\x80\x02") {}

  void none() { bytes_ += 'N'; }
  void boolean(bool value) { bytes_ += value ? '\x88' : '\x89'; }
  void integer(std::int64_t value);
  void real(double value);
  void text(std::string_view utf8);

  // Containers: what is written between the two calls is in them; of dicts key and value in turn.
  void begin_dict() { bytes_ += "}("; }
  void begin_ordered_dict();
  void end_dict() { bytes_ += 'u'; }
  void begin_list() { bytes_ += "]("; }
  void end_list() { bytes_ += 'e'; }
  void begin_tuple() { bytes_ += '('; }
  void end_tuple() { bytes_ += 't'; }

  /// A class or function.
  void global(std::string_view module, std::string_view name);
  /// Calls the function before the tuple of arguments that was written last.
  void reduce() { bytes_ += 'R'; }
  /// An object of the class written last, without a call; a dict of its members and build() follow.
  void object() { bytes_ += ")\x81"; }
  void build() { bytes_ += 'b'; }
  /// The tuple written last names something outside the pickle.
  void persistent() { bytes_ += 'Q'; }

  /// The whole; nothing may follow.
  std::string finish();

 private:
  std::string bytes_;
};

}  // namespace zero3d
