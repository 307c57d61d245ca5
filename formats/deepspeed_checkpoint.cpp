#include "zero3d/formats/deepspeed_checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/deepspeed_contents.h"
#include "zero3d/formats/problem_list.h"

namespace zero3d {
namespace {

std::string require_tag(const std::string& path) {
  std::error_code code;
  if (!std::filesystem::exists(path, code))
    throw IoError(path, code ? code.value() : ENOENT, "no such checkpoint folder");
  std::string folder = find_deepspeed_tag(path);
  if (folder.empty())
    throw IoError(path, 0,
                  "expected a checkpoint of DeepSpeed: a folder with a file 'latest' that names "
                  "one beside it, or one with mp_rank_00_model_states.pt or "
                  "zero_pp_rank_0_mp_rank_00_model_states.pt; found neither");
  return folder;
}

}  // namespace

std::int64_t DeepspeedParameter::numel() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

bool is_deepspeed_checkpoint(const std::string& path) { return !find_deepspeed_tag(path).empty(); }

DeepspeedCheckpoint::DeepspeedCheckpoint(const std::string& path)
    : contents_(std::make_unique<DeepspeedContents>()) {
  const DeepspeedFiles files = list_deepspeed_files(require_tag(path));
  contents_->facts.folder = files.folder;
  if (!files.experts.empty())
    throw IoError(files.experts.front(), 0,
                  "a checkpoint of a mixture of experts, which is not read");
  if (files.universal)
    read_deepspeed_universal(files, *contents_);
  else
    read_deepspeed_zero(files, *contents_);
  contents_->finish();
  if (std::ranges::none_of(contents_->parameters,
                           [](const DeepspeedParameter& p) { return !p.states.empty(); }))
    contents_->facts.remarks.push_back("it holds no optimizer states");
}

DeepspeedCheckpoint::DeepspeedCheckpoint(DeepspeedCheckpoint&&) noexcept = default;
DeepspeedCheckpoint& DeepspeedCheckpoint::operator=(DeepspeedCheckpoint&&) noexcept = default;
DeepspeedCheckpoint::~DeepspeedCheckpoint() = default;

const DeepspeedFacts& DeepspeedCheckpoint::facts() const { return contents_->facts; }

const std::vector<DeepspeedParameter>& DeepspeedCheckpoint::parameters() const {
  return contents_->parameters;
}

const DeepspeedParameter* DeepspeedCheckpoint::find(std::string_view name) const {
  if (const DeepspeedParameter* parameter = contents_->find(name)) return parameter;
  const auto& aliases = contents_->facts.aliases;
  const auto alias = aliases.find(std::string(name));
  return alias == aliases.end() ? nullptr : contents_->find(alias->second);
}

void DeepspeedCheckpoint::read(const DeepspeedParameter& parameter, std::string_view what,
                               std::int64_t first, const View& dst) const {
  const std::int64_t count = dst.numel(), all = parameter.numel();
  if (!contents_->has(parameter.name, what))
    throw_invalid(concat(contents_->facts.folder, ": ", what, " of ", printable(parameter.name),
                         " asked for, which the checkpoint does not have"));
  if (first < 0 || count > all || first > all - count)
    throw_invalid(concat(contents_->facts.folder, ": elements [", first, ", ", first, " + ", count,
                         ") of ", printable(parameter.name), " asked for, it has ", all));
  if (count == 0) return;
  const DeepspeedContents::Pieces& pieces = contents_->pieces(parameter.name, what);
  auto piece = std::ranges::upper_bound(pieces, first, {}, &DeepspeedPiece::first) - 1;
  for (std::int64_t done = 0; done < count; ++piece) {
    const std::int64_t skipped = first + done - piece->first;
    const std::int64_t part = std::min(piece->count - skipped, count - done);
    piece->archive->read(*piece->tensor, piece->tensor_first + skipped, dst.flat(done, part));
    done += part;
  }
}

void DeepspeedCheckpoint::verify() const {
  for (const auto& archive : contents_->archives()) archive->verify();
}

}  // namespace zero3d
