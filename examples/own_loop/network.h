// A network as somebody wrote it before he met zero3d: plain functions on plain arrays.
#pragma once

#include <cmath>
#include <vector>

using Array = std::vector<float>;

/// y[rows, out] = x[rows, in] * w[in, out] + b[out], through tanh unless it is the last layer.
inline Array layer_forward(const Array& x, const float* w, const float* b, int in, int out,
                           bool last) {
  const int rows = static_cast<int>(x.size()) / in;
  Array y(static_cast<std::size_t>(rows * out));
  for (int r = 0; r < rows; ++r)
    for (int o = 0; o < out; ++o) {
      float sum = b[o];
      for (int i = 0; i < in; ++i) sum += x[r * in + i] * w[i * out + o];
      y[r * out + o] = last ? sum : std::tanh(sum);
    }
  return y;
}

/// Writes dw and db, returns dx, from what forward was given and gave.
inline Array layer_backward(Array dy, const Array& x, const Array& y, const float* w, float* dw,
                            float* db, int in, int out, bool last) {
  const int rows = static_cast<int>(x.size()) / in;
  if (!last)
    for (std::size_t i = 0; i < dy.size(); ++i) dy[i] *= 1 - y[i] * y[i];
  Array dx(x.size());
  for (int i = 0; i < in * out; ++i) dw[i] = 0;
  for (int o = 0; o < out; ++o) db[o] = 0;
  for (int r = 0; r < rows; ++r)
    for (int o = 0; o < out; ++o) {
      const float d = dy[r * out + o];
      db[o] += d;
      for (int i = 0; i < in; ++i) {
        dw[i * out + o] += x[r * in + i] * d;
        dx[r * in + i] += w[i * out + o] * d;
      }
    }
  return dx;
}
