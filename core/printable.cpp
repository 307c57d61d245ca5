#include "zero3d/core/printable.h"

#include "zero3d/core/text.h"

namespace zero3d {

std::string printable(std::string_view text, std::size_t limit, bool lines) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string shown;
  for (const char c : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    const bool keeps_line = lines && (c == '\n' || c == '\t');
    if ((byte >= 0x20 && byte != 0x7f) || keeps_line) {
      shown += c;
    } else {
      shown += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return text.size() <= limit ? shown : concat(shown, "... (", text.size(), " bytes)");
}

}  // namespace zero3d
