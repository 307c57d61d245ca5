#include "name_patterns.h"

#include <re2/re2.h>

#include <algorithm>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/problem_list.h"

namespace zero3d::tools {

class NamePatterns::Pattern {
 public:
  Pattern(const std::string& option, const std::string& text)
      : regex_(std::make_unique<re2::RE2>(text, re2::RE2::Quiet)) {
    if (regex_->ok()) return;
    throw_invalid(concat(option, " ", printable(text),
                         " is no regular expression of RE2: ", reason(regex_->error_code())));
  }

  bool finds(std::string_view name) const {
    return re2::RE2::PartialMatch(re2::StringPiece(name.data(), name.size()), *regex_);
  }
  const std::string& text() const { return regex_->pattern(); }

 private:
  static const char* reason(re2::RE2::ErrorCode code) {
    switch (code) {
      case re2::RE2::ErrorMissingParen:
      case re2::RE2::ErrorUnexpectedParen:
        return "its parentheses do not pair up";
      case re2::RE2::ErrorMissingBracket:
        return "a [ has no ]";
      case re2::RE2::ErrorBadEscape:
      case re2::RE2::ErrorTrailingBackslash:
        return "there is no such escape after a backslash (back references are not known)";
      case re2::RE2::ErrorBadCharClass:
      case re2::RE2::ErrorBadCharRange:
        return "there is no such class or range of characters";
      case re2::RE2::ErrorRepeatArgument:
      case re2::RE2::ErrorRepeatOp:
        return "there is nothing for a *, + or ? to repeat";
      case re2::RE2::ErrorRepeatSize:
        return "a {m,n} counts too far";
      case re2::RE2::ErrorBadPerlOp:
      case re2::RE2::ErrorBadNamedCapture:
        return "there is no such (?...) (looking ahead and back are not known)";
      case re2::RE2::ErrorBadUTF8:
        return "it is not UTF-8";
      default:
        return "it is too large or nested too deeply";
    }
  }

  std::unique_ptr<re2::RE2> regex_;
};

NamePatterns::NamePatterns(std::string option, const std::vector<std::string>& patterns)
    : option_(std::move(option)) {
  for (const std::string& text : patterns) patterns_.emplace_back(option_, text);
}

NamePatterns::NamePatterns(NamePatterns&&) noexcept = default;
NamePatterns& NamePatterns::operator=(NamePatterns&&) noexcept = default;
NamePatterns::~NamePatterns() = default;

bool NamePatterns::find_in(std::string_view name) const {
  return std::any_of(patterns_.begin(), patterns_.end(),
                     [&](const Pattern& pattern) { return pattern.finds(name); });
}

void NamePatterns::require_found(const std::vector<std::string>& names) const {
  for (const Pattern& pattern : patterns_) {
    if (std::any_of(names.begin(), names.end(),
                    [&](const std::string& name) { return pattern.finds(name); }))
      continue;
    throw_invalid(concat(option_, " ", printable(pattern.text()),
                         " finds no parameter of the model; names are like ", names.back()));
  }
}

}  // namespace zero3d::tools
