#include "zero3d/data/sampler.h"

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/data/permutation.h"

namespace zero3d {

std::int64_t sample_at(const SampleOrder& order, std::int64_t position, std::int64_t samples) {
  ZERO3D_CHECK(position >= 0 && samples > 0, "position of a sample below zero");
  const std::int64_t index = position % samples;
  if (!order.shuffle) return index;
  return permuted(order.seed, static_cast<std::uint64_t>(position / samples), index, samples);
}

Sampler::Sampler(const Dataset& dataset, const BatchSplit& split, const SampleOrder& order)
    : dataset_(&dataset), split_(split), order_(order) {
  if (split.micro_batch < 1 || split.accumulation < 1 || split.data_parallel < 1) {
    throw_invalid(
        concat("expected micro-batch, accumulation and data-parallel degree of at least "
               "1, found ",
               split.micro_batch, ", ", split.accumulation, " and ", split.data_parallel));
  }
}

Batch Sampler::blank(std::int64_t micro, std::int64_t rank) const {
  ZERO3D_CHECK(micro >= 0 && micro < split_.accumulation, "micro-batch outside the step");
  ZERO3D_CHECK(rank >= 0 && rank < split_.data_parallel, "rank outside the data-parallel group");
  Batch batch;
  batch.rows = split_.micro_batch;
  batch.sequence_length = dataset_->sequence_length();
  batch.first_in_step = (micro * split_.data_parallel + rank) * split_.micro_batch;
  batch.first_position = consumed_ + batch.first_in_step;
  const auto elements = static_cast<std::size_t>(batch.rows * batch.sequence_length);
  batch.tokens.resize(elements);
  batch.targets.resize(elements);
  return batch;
}

Batch Sampler::read(std::int64_t micro, std::int64_t rank) const {
  Batch batch = blank(micro, rank);
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    const std::int64_t sample = sample_at(order_, batch.first_position + row, dataset_->samples());
    dataset_->read(sample, batch.tokens.data() + row * batch.sequence_length,
                   batch.targets.data() + row * batch.sequence_length);
  }
  return batch;
}

void Sampler::restore(std::int64_t consumed) {
  if (consumed < 0) {
    throw_invalid(concat("data position ", consumed, ": expected a number of samples"));
  }
  consumed_ = consumed;
}

double Sampler::epoch() const {
  return static_cast<double>(consumed_) / static_cast<double>(dataset_->samples());
}

}  // namespace zero3d
