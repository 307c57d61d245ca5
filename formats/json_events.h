// A base for readers of JSON files of a fixed form: each event of the document is refused unless a
// reader takes it. Internal to formats: it names the JSON library.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "zero3d/core/text.h"

namespace zero3d {

/// Receives a JSON document as events and refuses what the format has no place for. No tree is
/// built, so neither depth nor size of a hostile text costs more than the text itself.
class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_unsigned(number_unsigned_t) override { return refuse("a number"); }
  bool number_float(number_float_t, const string_t&) override {
    return refuse("a number that is no 64-bit integer");
  }
  bool string(string_t&) override { return refuse("a string"); }
  bool binary(binary_t&) override { return refuse("binary"); }
  bool start_object(std::size_t) override { return refuse("an object"); }
  bool start_array(std::size_t) override { return refuse("an array"); }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    return fail(concat("is no valid JSON at byte ", position));
  }
  const std::string& failure() const { return failure_; }

 protected:
  bool fail(std::string what) {
    if (failure_.empty()) failure_ = std::move(what);
    return false;
  }
  bool refuse(std::string_view found) { return fail(concat("has ", found, " at ", where())); }
  virtual std::string where() const = 0;

 private:
  std::string failure_;
};

}  // namespace zero3d
