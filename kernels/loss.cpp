// Arguments of the cross-entropy, checked and handed to the back end.
#include "zero3d/kernels/loss.h"

#include "zero3d/kernels/arguments.h"
#include "zero3d/kernels/cpu/loss.h"
#include "zero3d/kernels/cuda/bodies.h"
#include "zero3d/kernels/out_of_range.h"

namespace zero3d::kernels {
namespace {

void refuse_target(const CrossEntropyArgs& args, const cuda::BadElement& bad) {
  throw_bad_target(args.vocabulary, bad.row, bad.value, kIgnoreTarget);
}
void refuse_target_of_part(const CrossEntropyPartArgs& args, const cuda::BadElement& bad) {
  throw_bad_target(args.part.total, bad.row, bad.value, kIgnoreTarget);
}

}  // namespace

void cross_entropy_forward(Stream& stream, const ConstView& logits, const ConstView& targets,
                           const View& lse, const View& loss) {
  constexpr const char* kWhat = "cross_entropy_forward";
  require_float(kWhat, "logits", logits);
  CrossEntropyArgs args;
  args.dtype = logits.dtype();
  args.rows = logits.shape().rows();
  args.vocabulary = logits.shape().last();
  require_elements(kWhat, "targets", targets, DType::i32, args.rows);
  require_elements(kWhat, "lse", lse, DType::f32, args.rows);
  require_elements(kWhat, "loss", loss, DType::f32, 2);
  args.logits = logits.data();
  args.targets = targets.as<std::int32_t>();
  args.lse = lse.as<float>();
  args.loss = loss.as<float>();
  dispatch(stream, kWhat, {reads(logits), reads(targets), writes(lse), writes(loss)},
           {.cpu = cpu::cross_entropy_forward,
            .cuda = cuda::cross_entropy_forward,
            .refuse = refuse_target},
           args);
}

void cross_entropy_statistics(Stream& stream, const ConstView& logits, const ConstView& targets,
                              const VocabularyPart& part, const View& statistics, Statistics how) {
  constexpr const char* kWhat = "cross_entropy_statistics";
  require_float(kWhat, "logits", logits);
  CrossEntropyPartArgs args;
  args.dtype = logits.dtype();
  args.rows = logits.shape().rows();
  args.columns = logits.shape().last();
  require_part(kWhat, part, args.columns);
  args.part = part;
  require_elements(kWhat, "targets", targets, DType::i32, args.rows);
  require_elements(kWhat, "statistics", statistics, DType::f32, 3 * args.rows);
  args.logits = logits.data();
  args.targets = targets.as<std::int32_t>();
  args.continues = how == Statistics::go_on;
  args.statistics = statistics.as<float>();
  dispatch(stream, kWhat, {reads(logits), reads(targets), writes(statistics)},
           {.cpu = cpu::cross_entropy_statistics,
            .cuda = cuda::cross_entropy_statistics,
            .refuse = refuse_target_of_part},
           args);
}

void cross_entropy_join(Stream& stream, const ConstView& statistics, const ConstView& targets,
                        const View& lse, const View& loss) {
  constexpr const char* kWhat = "cross_entropy_join";
  CrossEntropyJoinArgs args;
  args.rows = targets.numel();
  args.parts = args.rows == 0 ? 1 : statistics.numel() / (3 * args.rows);
  require_elements(kWhat, "statistics", statistics, DType::f32, args.parts * 3 * args.rows);
  require_elements(kWhat, "targets", targets, DType::i32, args.rows);
  require_elements(kWhat, "lse", lse, DType::f32, args.rows);
  require_elements(kWhat, "loss", loss, DType::f32, 2);
  args.statistics = statistics.as<float>();
  args.targets = targets.as<std::int32_t>();
  args.lse = lse.as<float>();
  args.loss = loss.as<float>();
  dispatch(stream, kWhat, {reads(statistics), reads(targets), writes(lse), writes(loss)},
           {.cpu = cpu::cross_entropy_join, .cuda = cuda::cross_entropy_join}, args);
}

void cross_entropy_backward(Stream& stream, const View& logits, const ConstView& targets,
                            const ConstView& lse, const ConstView& loss, const ConstView& seed,
                            const VocabularyPart& part) {
  constexpr const char* kWhat = "cross_entropy_backward";
  require_float(kWhat, "logits", logits);
  CrossEntropyGradientArgs args;
  args.dtype = logits.dtype();
  args.rows = logits.shape().rows();
  args.columns = logits.shape().last();
  require_part(kWhat, part, args.columns);
  args.part = part;
  require_elements(kWhat, "targets", targets, DType::i32, args.rows);
  require_elements(kWhat, "lse", lse, DType::f32, args.rows);
  require_elements(kWhat, "loss", loss, DType::f32, 2);
  require_elements(kWhat, "seed", seed, DType::f32, 1);
  args.logits = logits.data();
  args.targets = targets.as<std::int32_t>();
  args.lse = lse.as<float>();
  args.loss = loss.as<float>();
  args.seed = seed.as<float>();
  dispatch(stream, kWhat, {reads(targets), reads(lse), reads(loss), reads(seed), writes(logits)},
           {.cpu = cpu::cross_entropy_backward, .cuda = cuda::cross_entropy_backward}, args);
}

void add_mean_loss(Stream& stream, const ConstView& loss, const View& means, bool accumulate) {
  constexpr const char* kWhat = "add_mean_loss";
  require_elements(kWhat, "loss", loss, DType::f32, 2);
  require_elements(kWhat, "means", means, DType::f64, 2);
  const MeanLossArgs args{loss.as<float>(), means.as<double>(), accumulate};
  dispatch(stream, kWhat, {reads(loss), writes(means)},
           {.cpu = cpu::add_mean_loss, .cuda = cuda::add_mean_loss}, args);
}

}  // namespace zero3d::kernels
