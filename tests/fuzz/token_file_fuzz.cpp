// Any bytes as token files of every format: either an Error or a sequence that reads alike whole
// and in pieces. Byte 0 chooses the format, bytes 1-2 how much goes to Megatron's .bin file.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/formats/token_file.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace {

using namespace zero3d;

void require(bool condition) {
  if (!condition) std::abort();
}

void read_all(const TokenFile& file) {
  const std::int64_t count = std::min<std::int64_t>(file.tokens(), 1 << 16);
  require(count > 0);
  std::vector<std::int32_t> whole(static_cast<std::size_t>(count));
  file.read(file.tokens() - count, count, whole.data());
  for (std::int64_t first = 0; first < count; first += 997) {
    std::vector<std::int32_t> part(
        static_cast<std::size_t>(std::min<std::int64_t>(1009, count - first)));
    file.read(file.tokens() - count + first, static_cast<std::int64_t>(part.size()), part.data());
    require(std::equal(part.begin(), part.end(), whole.begin() + first));
    require(!file.place(first).empty());
  }
  require(*std::min_element(whole.begin(), whole.end()) >= 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const test::TemporaryFolder folder;
  if (size < 3) return 0;
  const auto format = static_cast<TokenFormat>(data[0] % 7);
  const std::string_view rest(reinterpret_cast<const char*>(data) + 3, size - 3);
  try {
    if (format == TokenFormat::megatron) {
      const std::size_t split = std::min<std::size_t>(data[1] + 256u * data[2], rest.size());
      folder.write("set.bin", rest.substr(0, split));
      folder.write("set.idx", rest.substr(split));
      read_all(TokenFile(folder.file("set"), format));
    } else {
      read_all(TokenFile(folder.write("input", rest), format));
    }
  } catch (const Error&) {
  }
  return 0;
}
