// Token data cut into training samples. Sample i of sequence length S is tokens [i*S, i*S + S]: S
// inputs and, one further, S targets; there are (tokens - 1) / S. Read from the file as asked for,
// so memory does not grow with the data. Safe to use from several threads.
#pragma once

#include <cstdint>

#include "zero3d/formats/token_file.h"

namespace zero3d {

class Dataset {
 public:
  /// `vocabulary` is the model's; every token must be below it. Throws Error(kInvalid) when the
  /// data is shorter than one sample, or raw tokens of too few bytes for the vocabulary.
  Dataset(TokenFile tokens, std::int64_t sequence_length, std::int64_t vocabulary);

  std::int64_t samples() const { return samples_; }
  std::int64_t sequence_length() const { return sequence_length_; }
  const TokenFile& tokens() const { return tokens_; }

  /// Writes S inputs and S targets of `sample`. Throws IoError naming the place of a token that is
  /// not below the vocabulary.
  void read(std::int64_t sample, std::int32_t* inputs, std::int32_t* targets) const;
  /// Checks every token of every file now instead of as it is read; throws as read does. Returns
  /// the largest token.
  std::int32_t check() const;

 private:
  void check_range(std::int64_t first, std::int64_t count, const std::int32_t* values) const;

  TokenFile tokens_;
  std::int64_t sequence_length_;
  std::int64_t vocabulary_;
  std::int64_t samples_;
};

}  // namespace zero3d
