// Arguments of the embeddings, checked and handed to the back end.
#include "zero3d/kernels/embedding.h"

#include "zero3d/kernels/arguments.h"
#include "zero3d/kernels/cpu/embedding.h"
#include "zero3d/kernels/cuda/bodies.h"
#include "zero3d/kernels/out_of_range.h"

namespace zero3d::kernels {
namespace {

void refuse_token(const EmbeddingArgs& args, const cuda::BadElement& bad) {
  throw_bad_token("embedding_forward", args.part.total, bad.row, bad.value);
}

}  // namespace

void embedding_forward(Stream& stream, const ConstView& tokens, const ConstView& table,
                       const ConstView& positions, const View& out, const VocabularyPart& part,
                       OtherTokens others) {
  constexpr const char* kWhat = "embedding_forward";
  require_float(kWhat, "out", out);
  EmbeddingArgs args;
  args.dtype = out.dtype();
  args.rows = out.shape().rows();
  args.width = out.shape().last();
  args.seq = tokens.shape().last();
  require_elements(kWhat, "tokens", tokens, DType::i32, args.rows);
  const std::int64_t stored = table.shape().rows();
  require_part(kWhat, part, stored);
  args.part = part;
  args.others = others;
  require_elements(kWhat, "table", table, args.dtype, stored * args.width);
  if (positions.defined()) {
    const std::int64_t length = positions.shape().rows();
    require_elements(kWhat, "positions", positions, args.dtype, length * args.width);
    require(args.seq <= length, kWhat, "expected at most ", length,
            " tokens a sample, the rows of the position table, but ", describe("tokens", tokens));
  }
  args.tokens = tokens.as<std::int32_t>();
  args.table = table.data();
  args.positions = positions.data();
  args.out = out.data();
  dispatch(stream, kWhat, {reads(tokens), reads(table), reads(positions), writes(out)},
           {.cpu = cpu::embedding_forward, .cuda = cuda::embedding_forward, .refuse = refuse_token},
           args);
}

void embedding_backward(Stream& stream, const ConstView& tokens, const ConstView& dout,
                        const View& dtable, bool accumulate, std::int64_t padding,
                        const VocabularyPart& part) {
  if (!dtable.defined()) return;
  constexpr const char* kWhat = "embedding_backward";
  require_float(kWhat, "dout", dout);
  EmbeddingGradientArgs args;
  args.dtype = dout.dtype();
  args.rows = dout.shape().rows();
  args.width = dout.shape().last();
  args.table_rows = dtable.shape().rows();
  require_part(kWhat, part, args.table_rows);
  args.part = part;
  require_elements(kWhat, "tokens", tokens, DType::i32, args.rows);
  require_float_elements(kWhat, "dtable", dtable, args.table_rows * args.width);
  args.tokens = tokens.as<std::int32_t>();
  args.padding = padding;
  args.dout = dout.data();
  args.table_dtype = dtable.dtype();
  args.dtable = dtable.data();
  args.accumulate = accumulate;
  dispatch(stream, kWhat, {reads(tokens), reads(dout), writes(dtable)},
           {.cpu = cpu::embedding_backward, .cuda = cuda::embedding_backward}, args);
}

void position_backward(Stream& stream, const ConstView& dout, std::int64_t seq,
                       const View& dpositions, bool accumulate) {
  if (!dpositions.defined()) return;
  constexpr const char* kWhat = "position_backward";
  require_float(kWhat, "dout", dout);
  EmbeddingGradientArgs args;
  args.dtype = dout.dtype();
  args.rows = dout.shape().rows();
  args.seq = seq;
  args.width = dout.shape().last();
  args.table_rows = dpositions.shape().rows();
  require_float_elements(kWhat, "dpositions", dpositions, args.table_rows * args.width);
  require(seq > 0 && seq <= args.table_rows && args.rows % seq == 0, kWhat,
          "expected seq to divide the rows of dout and to be at most ", args.table_rows,
          ", but seq is ", seq, " and ", describe("dout", dout));
  args.dout = dout.data();
  args.table_dtype = dpositions.dtype();
  args.dtable = dpositions.data();
  args.accumulate = accumulate;
  dispatch(stream, kWhat, {reads(dout), writes(dpositions)},
           {.cpu = cpu::position_backward, .cuda = cuda::position_backward}, args);
}

}  // namespace zero3d::kernels
