#include "zero3d/engine/zero/parameter_pieces.h"

namespace zero3d {

ParameterPieces::ParameterPieces(Device& device, ParameterStore& parameters, Tier tier, DType dtype,
                                 std::int64_t elements)
    : parameters_(parameters) {
  for (Piece& piece : pieces_) {
    piece.values = Tensor(device.memory(tier), kNoStream, dtype, Shape{elements},
                          Category::gathered_parameters);
  }
}

View ParameterPieces::take(Stream& stream, std::int64_t count) {
  current_ = (current_ + 1) % kPieces;
  Piece& piece = pieces_[current_];
  if (piece.free.recorded()) stream.wait(piece.free);
  taken_ = piece.values.view().flat(0, count);
  return taken_;
}

void ParameterPieces::send(Stream& stream, int unit, std::int64_t begin) {
  Event written;
  stream.record(written);
  arrived_ = parameters_.update_shard(unit, begin, taken_, written);
  pieces_[current_].free = arrived_;
}

View ParameterPieces::fetch(Stream& stream, int unit, std::int64_t begin, std::int64_t count) {
  const View piece = take(stream, count);
  Event free;
  stream.record(free);
  stream.wait(parameters_.read_shard(unit, begin, piece, free));
  return piece;
}

void ParameterPieces::done(Stream& stream) {
  pieces_[current_].free = Event();
  stream.record(pieces_[current_].free);
}

}  // namespace zero3d
