// The checked decorator: before each operation the ranks exchange a line that says what they are
// about to do, on the same stream, and go on only if all lines are equal.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string_view>

#include "zero3d/core/text.h"
#include "zero3d/parallel/comm/decorators.h"
#include "zero3d/parallel/comm/forwarding.h"

namespace zero3d {
namespace detail {
namespace {

/// Lines of operations on many segments are long: what is shown starts shortly before the
/// difference.
std::string excerpt(const std::string& line, std::size_t difference) {
  constexpr std::size_t kBefore = 60;
  constexpr std::size_t kShown = 160;
  const std::size_t begin = difference > kBefore && line.size() > kShown ? difference - kBefore : 0;
  std::string text = begin > 0 ? line.substr(0, line.find(' ', line.find(' ') + 1)) + " ..." : "";
  text += line.substr(begin, kShown);
  return begin + kShown < line.size() ? text + "..." : text;
}

/// "" when all lines are equal, else the first two ranks that differ and what they say.
std::string mismatch(const std::vector<std::string>& lines) {
  for (std::size_t r = 1; r < lines.size(); ++r) {
    const std::string& a = lines[0];
    const std::string& b = lines[r];
    if (a == b) continue;
    std::size_t at = 0;
    while (at < std::min(a.size(), b.size()) && a[at] == b[at]) ++at;
    return concat("ranks call different operations: group rank 0: ", excerpt(a, at),
                  "; group rank ", r, ": ", excerpt(b, at));
  }
  return {};
}

void compare(Communicator& inner, const std::vector<std::string>& lines,
             const std::string& operation) {
  const std::string wrong = mismatch(lines);
  if (wrong.empty()) return;
  const std::string message = concat(inner.description(), ": ", wrong);
  inner.abort(message);
  throw CommError(inner.rank(), operation, message);
}

std::string describe(const ConstView& view) {
  return concat(elements_of(view), " x ", name_of(view.dtype()));
}

std::string describe(const ReduceOptions& options) {
  return concat(" scale_in ", options.scale_in, " scale_out ", options.scale_out, " wire ",
                options.wire ? name_of(*options.wire) : "none");
}

class CheckedCommunicator final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

  void all_gather(Stream& stream, std::span<const GatherSegment> segments) override {
    std::string line = "all_gather of";
    for (const GatherSegment& s : segments) line += " [" + describe(s.shard) + "]";
    check(stream, "all_gather", line);
    inner_->all_gather(stream, segments);
  }

  void reduce_scatter(Stream& stream, std::span<const ReduceSegment> segments,
                      const ReduceOptions& options) override {
    std::string line = "reduce_scatter of";
    for (const ReduceSegment& s : segments)
      line += concat(" [", describe(s.full), " to ", name_of(s.shard.dtype()), "]");
    check(stream, "reduce_scatter", line + describe(options));
    inner_->reduce_scatter(stream, segments, options);
  }

  void all_reduce(Stream& stream, const View& data, const ReduceOptions& options) override {
    check(stream, "all_reduce", "all_reduce of " + describe(data) + describe(options));
    inner_->all_reduce(stream, data, options);
  }

  void broadcast(Stream& stream, const View& data, int root) override {
    check(stream, "broadcast", concat("broadcast of ", describe(data), " from root ", root));
    inner_->broadcast(stream, data, root);
  }

  void barrier(Stream& stream) override {
    check(stream, "barrier", "barrier");
    inner_->barrier(stream);
  }

  std::vector<std::string> exchange(const std::string& value) override {
    check_host("exchange");
    return inner_->exchange(value);
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    check_host("split");
    return std::make_unique<CheckedCommunicator>(inner_->split(color, key));
  }

 private:
  void check(Stream& stream, const char* operation, const std::string& what) {
    stream.launch("compare ranks", std::initializer_list<Access>{},
                  [inner = inner_, operation, line = concat("#", sequence_++, " ", what)] {
                    compare(*inner, inner->exchange_in_task(line), operation);
                  });
  }

  void check_host(const char* operation) {
    const std::string line = concat("#", host_sequence_++, " ", operation, " (host)");
    compare(*inner_, inner_->exchange(line), operation);
  }

  std::int64_t sequence_ = 0;
  std::int64_t host_sequence_ = 0;
};

}  // namespace
}  // namespace detail

std::unique_ptr<Communicator> make_checked(std::unique_ptr<Communicator> inner) {
  return std::make_unique<detail::CheckedCommunicator>(std::move(inner));
}

bool checks_by_default() {
#ifdef ZERO3D_HAZARD_CHECKS
  return true;
#else
  const char* value = std::getenv("ZERO3D_CHECK");
  return value != nullptr && std::string_view(value) == "1";
#endif
}

std::unique_ptr<Communicator> with_default_checks(std::unique_ptr<Communicator> inner) {
  return checks_by_default() ? make_checked(std::move(inner)) : std::move(inner);
}

}  // namespace zero3d
