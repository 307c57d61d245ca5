#include "zero3d/models/hf_leftovers.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "zero3d/core/text.h"
#include "zero3d/models/rope.h"

namespace zero3d {
namespace {

using FileTensor = WeightFolder::Tensor;

constexpr std::int64_t kChunk = std::int64_t{1} << 20;  // elements read at a time

bool is_readable(const FileTensor& tensor) {
  return tensor.entry->dtype && is_floating(*tensor.entry->dtype);
}

/// Masks were saved as numbers and as flags.
bool is_of_bytes(const FileTensor& tensor) { return tensor.entry->dtype == DType::u8; }

void read(const FileTensor& tensor, std::int64_t first, std::vector<float>& values) {
  if (is_of_bytes(tensor)) {
    std::vector<std::byte> bytes(values.size());
    tensor.file->read(
        *tensor.entry, first,
        View(bytes.data(), DType::u8, Shape{static_cast<std::int64_t>(bytes.size())}));
    std::ranges::transform(bytes, values.begin(), [](std::byte byte) {
      return static_cast<float>(std::to_integer<int>(byte));
    });
    return;
  }
  tensor.file->read(*tensor.entry, first,
                    View(reinterpret_cast<std::byte*>(values.data()), DType::f32,
                         Shape{static_cast<std::int64_t>(values.size())}));
}

/// Calls body(first, values) over the whole tensor, until it returns false; whether it never did.
template <typename Body>
bool all_chunks(const FileTensor& tensor, const Body& body) {
  const std::int64_t count = tensor.entry->numel();
  std::vector<float> values;
  for (std::int64_t first = 0; first < count; first += kChunk) {
    values.resize(static_cast<std::size_t>(std::min(kChunk, count - first)));
    read(tensor, first, values);
    if (!body(first, values)) return false;
  }
  return true;
}

/// [1, 1, n, n], one where a token sees another.
bool is_causal_mask(const FileTensor& tensor) {
  const std::vector<std::int64_t>& shape = tensor.entry->shape;
  if (shape.size() != 4 || shape[0] != 1 || shape[1] != 1 || shape[2] != shape[3]) return false;
  return all_chunks(tensor, [&](std::int64_t first, const std::vector<float>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::int64_t at = first + static_cast<std::int64_t>(i);
      if (values[i] != (at % shape[3] <= at / shape[3] ? 1.0f : 0.0f)) return false;
    }
    return true;
  });
}

/// What masked scores were set to: as good as minus infinity.
bool is_masked_score(const FileTensor& tensor) {
  if (tensor.entry->numel() != 1) return false;
  std::vector<float> value(1);
  read(tensor, 0, value);
  return value[0] <= -1e4f;
}

/// The frequencies as they are or before scaling: releases differ in which they saved.
bool is_rotary_table(const FileTensor& tensor, const ModelConfig& config) {
  if (tensor.entry->numel() != config.head_dim / 2) return false;
  std::vector<float> values(static_cast<std::size_t>(tensor.entry->numel()));
  read(tensor, 0, values);
  RopeConfig plain;
  plain.theta = config.rope.theta;
  const float tolerance = is_16bit(*tensor.entry->dtype) ? 1e-2f : 1e-5f;
  for (const RopeConfig& rope : {config.rope, plain}) {
    const auto expected =
        rope_inverse_frequencies(rope, config.head_dim, config.max_positions, config.max_positions);
    bool same = true;
    for (std::size_t i = 0; i < values.size(); ++i)
      same = same && std::abs(values[i] - expected[i]) <= tolerance * std::abs(expected[i]) + 1e-7f;
    if (same) return true;
  }
  return false;
}

}  // namespace

bool same_values(const FileTensor& a, const FileTensor& b) {
  if (a.entry->shape != b.entry->shape || !is_readable(a) || !is_readable(b)) return false;
  std::vector<float> other;
  return all_chunks(a, [&](std::int64_t first, const std::vector<float>& values) {
    other.resize(values.size());
    read(b, first, other);
    return std::ranges::equal(values, other, [](float x, float y) {  // 0 is -0, as in transformers
      return x == y || (std::isnan(x) && std::isnan(y));
    });
  });
}

Leftover examine_leftover(const FileTensor& tensor, const ModelConfig* config) {
  const std::string& name = tensor.entry->name;
  const bool mask = name.ends_with(".attn.bias"), masked = name.ends_with(".attn.masked_bias");
  const bool rotary = name.ends_with(".rotary_emb.inv_freq");
  if (!mask && !masked && !rotary) return {};
  const auto leftover = [](bool derived, const char* otherwise) {
    return Leftover{true, derived ? "" : otherwise};
  };
  if (!is_readable(tensor) && !(mask && is_of_bytes(tensor)))
    return {true, concat("not compared, of dtype ", tensor.entry->dtype_name)};
  if (mask) return leftover(is_causal_mask(tensor), "not the causal mask that the model has");
  if (masked) return leftover(is_masked_score(tensor), "not what hides a score");
  if (config == nullptr) return {true, "not compared with the model's rope"};
  return leftover(is_rotary_table(tensor, *config), "not the frequencies that config.json gives");
}

}  // namespace zero3d
