// GEMM and column sums on the CPU: the bodies behind kernels/gemm.h, called from a stream's task.
#pragma once

#include "zero3d/kernels/args/gemm.h"

namespace zero3d::kernels::cpu {

void gemm(const GemmArgs& args);

void column_sums(const ColumnSumsArgs& args);

}  // namespace zero3d::kernels::cpu
