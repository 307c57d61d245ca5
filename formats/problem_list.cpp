#include "zero3d/formats/problem_list.h"

#include <algorithm>

#include "zero3d/core/error.h"
#include "zero3d/core/printable.h"
#include "zero3d/core/text.h"

namespace zero3d {

std::string printable(std::string_view text) {
  constexpr std::size_t kLongest = 120;
  return concat("'", printable(text, kLongest), "'");
}

void ProblemList::add(std::string problem) {
  if (count_++ < kShown) shown_.push_back(std::move(problem));
}

std::string ProblemList::text(std::string_view what) const {
  std::string out = concat(what, ":");
  for (const std::string& problem : shown_) out += concat("\n  - ", problem);
  if (count_ > shown_.size()) out += concat("\n  and ", count_ - shown_.size(), " more");
  return out;
}

void ProblemList::throw_if_any(const std::string& path, std::string_view what) const {
  if (!empty()) throw IoError(path, 0, text(what));
}

std::string name_list(const std::vector<std::string>& names, std::size_t shown) {
  std::string out;
  for (std::size_t i = 0; i < std::min(shown, names.size()); ++i) {
    out += concat(i == 0 ? "" : ", ", printable(names[i]));
  }
  if (names.size() > shown) out += concat(" and ", names.size() - shown, " more");
  return out;
}

}  // namespace zero3d
