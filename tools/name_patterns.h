// Regular expressions over the names of parameters, as an option gives them. Finding takes time
// linear in the name and bounded memory, whatever the pattern (RE2). Safe from several threads.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace zero3d::tools {

class NamePatterns {
 public:
  /// Throws Error(kInvalid), naming the option, for what is no regular expression.
  NamePatterns(std::string option, const std::vector<std::string>& patterns);
  NamePatterns(NamePatterns&&) noexcept;
  NamePatterns& operator=(NamePatterns&&) noexcept;
  ~NamePatterns();

  /// Whether one of them finds something in the name.
  bool find_in(std::string_view name) const;
  /// Throws Error(kInvalid) for a pattern that finds none of the names: it is a slip, and what it
  /// was to spare would be trained.
  void require_found(const std::vector<std::string>& names) const;

 private:
  class Pattern;
  std::string option_;
  std::vector<Pattern> patterns_;
};

}  // namespace zero3d::tools
