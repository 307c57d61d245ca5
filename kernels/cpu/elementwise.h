// Elementwise passes on the CPU: the bodies behind kernels/elementwise.h, called from a stream's
// task.
#pragma once

#include "zero3d/kernels/args/elementwise.h"

namespace zero3d::kernels::cpu {

void convert(const PairArgs& args);
void add(const PairArgs& args);
void copy_columns(const CopyColumnsArgs& args);
void sum_columns(const SumColumnsArgs& args);
void add_scaled(const AddScaledArgs& args);
void scale(const ScaleArgs& args);
void fill(const ScaleArgs& args);
void square_sums(const SquareSumsArgs& args);

}  // namespace zero3d::kernels::cpu
