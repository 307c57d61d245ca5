#include "zero3d/engine/checkpoint/try_together.h"

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {
namespace {

constexpr char kDone = '=';
constexpr char kFirstKind = 'a';

}  // namespace

std::vector<std::string> try_together(Communicator& world,
                                      const std::function<std::string()>& work) {
  std::string mine;
  try {
    mine = concat(kDone, work());
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    mine = concat(static_cast<char>(kFirstKind + static_cast<int>(error.kind())), error.what());
  } catch (const std::exception& error) {
    mine = concat(static_cast<char>(kFirstKind + static_cast<int>(ErrorKind::kInternal)),
                  describe(error));
  }
  std::vector<std::string> all = world.exchange(mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].front() == kDone) continue;
    const auto kind = static_cast<ErrorKind>(all[rank].front() - kFirstKind);
    throw Error(kind, concat(all.size() > 1 ? concat("rank ", rank, ": ") : std::string(),
                             all[rank].substr(1)));
  }
  for (std::string& text : all) text.erase(0, 1);
  return all;
}

}  // namespace zero3d
