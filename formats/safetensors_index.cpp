// The index of a sharded model: which file holds which tensor.
#include <map>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/json_events.h"
#include "zero3d/formats/lfs_pointer.h"
#include "zero3d/formats/problem_list.h"
#include "zero3d/formats/safetensors_header.h"

namespace zero3d {
namespace {

/// Events of an index: {"metadata": {...}, "weight_map": {name: file}}.
class IndexReader final : public JsonEvents {
 public:
  explicit IndexReader(ProblemList& problems) : problems_(problems) {}

  bool null() override { return in_map() ? refuse("null") : true; }
  bool boolean(bool) override { return in_map() ? refuse("a boolean") : true; }
  bool number_integer(number_integer_t) override { return in_map() ? refuse("a number") : true; }
  bool number_unsigned(number_unsigned_t) override { return in_map() ? refuse("a number") : true; }
  bool number_float(number_float_t, const string_t&) override {
    return in_map() ? refuse("a number") : true;
  }
  bool start_object(std::size_t) override {
    if (in_map() && depth_ >= 2) return refuse("an object");
    return ++depth_ <= kDeepest || fail("is nested too deeply");
  }
  bool end_object() override { return --depth_, true; }
  bool start_array(std::size_t) override {
    if (in_map() || depth_ == 0) return refuse("an array");
    return ++depth_ <= kDeepest || fail("is nested too deeply");
  }
  bool end_array() override { return --depth_, true; }
  bool key(string_t& name) override {
    if (depth_ == 1) {
      section_ = name;
      if (in_map() && std::exchange(seen_map, true)) return fail("has weight_map twice");
    } else {
      tensor_ = name;
    }
    return true;
  }
  bool string(string_t& file) override {
    if (!in_map()) return depth_ > 0 || refuse("a string");
    if (depth_ != 2) return refuse("a string");
    const std::size_t here = file.starts_with("./") ? 2 : 0;
    if (!files.emplace(tensor_, file.substr(here)).second) {
      problems_.add(concat("tensor ", printable(tensor_), " is listed twice"));
    }
    return true;
  }

  std::map<std::string, std::string> files;
  bool seen_map = false;

 protected:
  std::string where() const override {
    return depth_ == 0 ? "the top level" : concat(printable(section_), ", ", printable(tensor_));
  }

 private:
  static constexpr int kDeepest = 16;
  bool in_map() const { return depth_ > 0 && section_ == "weight_map"; }

  ProblemList& problems_;
  std::string section_;
  std::string tensor_;
  int depth_ = 0;
};

bool is_plain_file_name(std::string_view name, std::string_view suffix) {
  return name.size() > suffix.size() && name.size() <= 255 && name.ends_with(suffix) &&
         name[0] != '.' &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace

std::map<std::string, std::string> parse_safetensors_index(const std::string& path,
                                                           std::string_view text,
                                                           std::string_view suffix) {
  if (is_lfs_pointer(text)) throw IoError(path, 0, std::string(kIsLfsPointer));
  ProblemList problems;
  IndexReader reader(problems);
  if (!nlohmann::json::sax_parse(text, &reader)) {
    throw IoError(path, 0, concat("damaged index: it ", reader.failure(), "; get it anew"));
  }
  if (!reader.seen_map) problems.add("it has no weight_map");
  std::map<std::string, std::size_t> refused;
  for (const auto& [tensor, file] : reader.files) {
    if (!is_plain_file_name(file, suffix)) ++refused[file];
  }
  for (const auto& [file, count] : refused) {
    problems.add(concat("file name ", printable(file), " (of ", count,
                        " tensors): expected the plain name of a ", suffix, " file in the folder"));
  }
  problems.throw_if_any(path, "damaged index (get it anew, or correct it)");
  return std::move(reader.files);
}

}  // namespace zero3d
