#include "zero3d/data/dataset.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"

namespace zero3d {

Dataset::Dataset(TokenFile tokens, std::int64_t sequence_length, std::int64_t vocabulary)
    : tokens_(std::move(tokens)), sequence_length_(sequence_length), vocabulary_(vocabulary) {
  if (sequence_length < 1 || vocabulary < 1) {
    throw_invalid(concat("expected a sequence length and a vocabulary of at least 1, found ",
                         sequence_length, " and ", vocabulary));
  }
  if (vocabulary > tokens_.raw_limit()) {
    throw_invalid(concat(tokens_.description(), ": uint16 holds tokens below ",
                         format_count(tokens_.raw_limit()), ", and the model has a vocabulary of ",
                         format_count(vocabulary),
                         "; tokens of such a tokenizer take 4 bytes: give --data-format u32 if "
                         "the file has them, or save it anew as uint32 or with numpy.save"));
  }
  samples_ = (tokens_.tokens() - 1) / sequence_length_;
  if (samples_ < 1) {
    throw_invalid(concat("the data is shorter than one sample: ", sequence_length,
                         " tokens and their targets need ",
                         static_cast<std::uint64_t>(sequence_length) + 1, " tokens, found ",
                         tokens_.description(), "; give more data or a shorter sequence length"));
  }
}

void Dataset::read(std::int64_t sample, std::int32_t* inputs, std::int32_t* targets) const {
  ZERO3D_CHECK(sample >= 0 && sample < samples_, "sample outside the data set");
  const std::int64_t first = sample * sequence_length_;
  tokens_.read(first, sequence_length_, inputs);
  std::copy(inputs + 1, inputs + sequence_length_, targets);
  tokens_.read(first + sequence_length_, 1, targets + sequence_length_ - 1);
  check_range(first, sequence_length_, inputs);
  check_range(first + sequence_length_, 1, targets + sequence_length_ - 1);
}

std::int32_t Dataset::check() const {
  std::vector<std::int32_t> values(
      static_cast<std::size_t>(std::min<std::int64_t>(tokens_.tokens(), 1 << 18)));
  std::int32_t largest = 0;
  for (std::int64_t first = 0; first < tokens_.tokens();) {
    const std::int64_t count =
        std::min(tokens_.tokens() - first, static_cast<std::int64_t>(values.size()));
    tokens_.read(first, count, values.data());
    check_range(first, count, values.data());
    largest = std::max(largest, *std::max_element(values.begin(), values.begin() + count));
    first += count;
  }
  return largest;
}

void Dataset::check_range(std::int64_t first, std::int64_t count,
                          const std::int32_t* values) const {
  for (std::int64_t i = 0; i < count; ++i) {
    if (values[i] < vocabulary_) continue;
    throw IoError(tokens_.place(first + i), 0,
                  concat("is ", values[i], ", the model's vocabulary has ", vocabulary_,
                         " tokens; was the data made with the model's tokenizer?"));
  }
}

}  // namespace zero3d
