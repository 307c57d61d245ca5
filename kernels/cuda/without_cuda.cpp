// The bodies of a build without CUDA. No stream reaches them: make_cuda_device() has refused
// before.
#include "zero3d/core/error.h"
#include "zero3d/kernels/cuda/bodies.h"
#include "zero3d/kernels/cuda/stream_state.h"

namespace zero3d::kernels::cuda {
namespace {

[[noreturn]] void refuse() {
  throw_invalid(
      "this build has no kernels for GPUs; configure with -DZERO3D_CUDA=ON to build them");
}

}  // namespace

StreamState& state_of(NativeStream) { refuse(); }

void convert(const PairArgs&, NativeStream) { refuse(); }
void add(const PairArgs&, NativeStream) { refuse(); }
void copy_columns(const CopyColumnsArgs&, NativeStream) { refuse(); }
void sum_columns(const SumColumnsArgs&, NativeStream) { refuse(); }
void add_scaled(const AddScaledArgs&, NativeStream) { refuse(); }
void scale(const ScaleArgs&, NativeStream) { refuse(); }
void fill(const ScaleArgs&, NativeStream) { refuse(); }
void square_sums(const SquareSumsArgs&, NativeStream) { refuse(); }
void gelu(const GeluArgs&, NativeStream) { refuse(); }
void gated_forward(const GatedArgs&, NativeStream) { refuse(); }
void gated_backward(const GatedArgs&, NativeStream) { refuse(); }
void dropout(const DropoutArgs&, NativeStream) { refuse(); }
void norm_forward(const NormArgs&, NativeStream) { refuse(); }
void norm_backward_input(const NormArgs&, NativeStream) { refuse(); }
void norm_backward_weight(const NormArgs&, NativeStream) { refuse(); }
void embedding_forward(const EmbeddingArgs&, NativeStream) { refuse(); }
void embedding_backward(const EmbeddingGradientArgs&, NativeStream) { refuse(); }
void position_backward(const EmbeddingGradientArgs&, NativeStream) { refuse(); }
void cross_entropy_forward(const CrossEntropyArgs&, NativeStream) { refuse(); }
void cross_entropy_statistics(const CrossEntropyPartArgs&, NativeStream) { refuse(); }
void cross_entropy_join(const CrossEntropyJoinArgs&, NativeStream) { refuse(); }
void cross_entropy_backward(const CrossEntropyGradientArgs&, NativeStream) { refuse(); }
void add_mean_loss(const MeanLossArgs&, NativeStream) { refuse(); }
void attention_forward(const AttentionArgs&, NativeStream) { refuse(); }
void attention_backward(const AttentionGradientArgs&, NativeStream) { refuse(); }
void rope(const RopeArgs&, NativeStream) { refuse(); }
void gemm(const GemmArgs&, NativeStream) { refuse(); }
void column_sums(const ColumnSumsArgs&, NativeStream) { refuse(); }
void lamb_step(const LambStepArgs&, NativeStream) { refuse(); }
void exact_sums(const ExactSumsArgs&, NativeStream) { refuse(); }
void exact_totals(const ExactTotalsArgs&, NativeStream) { refuse(); }
void matrix_polynomial(const PolynomialArgs&, NativeStream) { refuse(); }
void rescale(const RescaleArgs&, NativeStream) { refuse(); }
void reduce_sum(const ReduceSumArgs&, NativeStream) { refuse(); }

template <typename Constants>
void update(const UpdateArgs<Constants>&, NativeStream) {
  refuse();
}
template void update(const UpdateArgs<AdamConstants>&, NativeStream);
template void update(const UpdateArgs<LionConstants>&, NativeStream);
template void update(const UpdateArgs<AdagradConstants>&, NativeStream);
template void update(const UpdateArgs<SgdConstants>&, NativeStream);
template void update(const UpdateArgs<RmspropConstants>&, NativeStream);
template void update(const UpdateArgs<LambConstants>&, NativeStream);
template void update(const UpdateArgs<DescentConstants>&, NativeStream);
template void update(const UpdateArgs<BlendConstants>&, NativeStream);
template void update(const UpdateArgs<NullConstants>&, NativeStream);

}  // namespace zero3d::kernels::cuda
