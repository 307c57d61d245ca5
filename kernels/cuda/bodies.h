// The bodies on a GPU behind kernels/*.h. Each enqueues on the stream and returns; the calling
// thread's device is the stream's. A build without CUDA has bodies that say so (without_cuda.cpp).
//
// Where a contract fixes an order of sums (column sums, gradients of tables and norms' parameters,
// the norm's squares, updates), the bits are the CPU's; elsewhere sums are made in an order of
// their own, the same every time. No sum is made by floating-point atomics.
#pragma once

#include "zero3d/kernels/args/activation.h"
#include "zero3d/kernels/args/attention.h"
#include "zero3d/kernels/args/elementwise.h"
#include "zero3d/kernels/args/embedding.h"
#include "zero3d/kernels/args/exact_sums.h"
#include "zero3d/kernels/args/gemm.h"
#include "zero3d/kernels/args/loss.h"
#include "zero3d/kernels/args/newton_schulz.h"
#include "zero3d/kernels/args/norm.h"
#include "zero3d/kernels/args/optimizer.h"
#include "zero3d/kernels/args/reduce_sum.h"
#include "zero3d/kernels/cuda/native.h"

namespace zero3d::kernels::cuda {

void convert(const PairArgs& args, NativeStream stream);
void add(const PairArgs& args, NativeStream stream);
void copy_columns(const CopyColumnsArgs& args, NativeStream stream);
void sum_columns(const SumColumnsArgs& args, NativeStream stream);
void add_scaled(const AddScaledArgs& args, NativeStream stream);
void scale(const ScaleArgs& args, NativeStream stream);
void fill(const ScaleArgs& args, NativeStream stream);
void square_sums(const SquareSumsArgs& args, NativeStream stream);

void gelu(const GeluArgs& args, NativeStream stream);
void gated_forward(const GatedArgs& args, NativeStream stream);
void gated_backward(const GatedArgs& args, NativeStream stream);
void dropout(const DropoutArgs& args, NativeStream stream);

void norm_forward(const NormArgs& args, NativeStream stream);
void norm_backward_input(const NormArgs& args, NativeStream stream);
void norm_backward_weight(const NormArgs& args, NativeStream stream);

void embedding_forward(const EmbeddingArgs& args, NativeStream stream);
void embedding_backward(const EmbeddingGradientArgs& args, NativeStream stream);
void position_backward(const EmbeddingGradientArgs& args, NativeStream stream);

void cross_entropy_forward(const CrossEntropyArgs& args, NativeStream stream);
void cross_entropy_statistics(const CrossEntropyPartArgs& args, NativeStream stream);
void cross_entropy_join(const CrossEntropyJoinArgs& args, NativeStream stream);
void cross_entropy_backward(const CrossEntropyGradientArgs& args, NativeStream stream);
void add_mean_loss(const MeanLossArgs& args, NativeStream stream);

void attention_forward(const AttentionArgs& args, NativeStream stream);
/// Scratch: batch * heads * seq elements.
void attention_backward(const AttentionGradientArgs& args, NativeStream stream);
void rope(const RopeArgs& args, NativeStream stream);

void gemm(const GemmArgs& args, NativeStream stream);
void column_sums(const ColumnSumsArgs& args, NativeStream stream);

template <typename Constants>
void update(const UpdateArgs<Constants>& args, NativeStream stream);
void lamb_step(const LambStepArgs& args, NativeStream stream);
void exact_sums(const ExactSumsArgs& args, NativeStream stream);
void exact_totals(const ExactTotalsArgs& args, NativeStream stream);
void matrix_polynomial(const PolynomialArgs& args, NativeStream stream);
void rescale(const RescaleArgs& args, NativeStream stream);

void reduce_sum(const ReduceSumArgs& args, NativeStream stream);

}  // namespace zero3d::kernels::cuda
