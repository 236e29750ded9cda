// What happens to one token between matrices: normalising, rotating, gating, turning into whole numbers.
//
// Rows of activations are padded with zeros; the padding stays zero. Knows a row at a time, in float32.
#pragma once

#include <cmath>

#include "matrix.h"
#include "operands.h"

namespace tidemill {

inline float mean_square(const float* x, int64_t size) {
  VF total{};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) total = total + load<VF>(x + i) * load<VF>(x + i);
  float rest = 0;
  for (; i < size; i++) rest += x[i] * x[i];
  return (sum(total) + rest) / (float)size;
}

// to = x / sqrt(mean(x^2) + eps) * weight.
inline void rms_norm(const float* x, const float* weight, int64_t size, float eps, Operand* to) {
  float scale = 1.0f / std::sqrt(mean_square(x, size) + eps);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) store_operands(to + i, load<VF>(x + i) * scale * load<VF>(weight + i));
  for (; i < size; i++) put_operand(to + i, x[i] * scale * weight[i]);
}

// The same in place, in float32, for the norms of single heads.
inline void rms_norm_in_place(float* x, const float* weight, int64_t size, float eps) {
  float scale = 1.0f / std::sqrt(mean_square(x, size) + eps);
  for (int64_t i = 0; i < size; i++) x[i] *= scale * weight[i];
}

// Rotate one head by one position's angles; the halves are rotated as pairs.
inline void rotate(float* head, const float* cosine, const float* sine, int64_t half) {
  for (int64_t i = 0; i < half; i++) {
    float a = head[i], b = head[i + half];
    head[i] = a * cosine[i] - b * sine[i];
    head[i + half] = b * cosine[i] + a * sine[i];
  }
}

inline VF silu(VF gate) { return gate * reciprocal(power_of_two(smaller(splat(100.0f), gate * -kLog2OfE)) + 1.0f); }

// silu(gate) * up of one panel's row: 16 gates, then 16 ups.
inline void gate_panel_row(const float* sums, Operand* to) {
  for (int i = 0; i < kPanel / 2; i += kLanes)
    store_operands(to + i, silu(load<VF>(sums + i)) * load<VF>(sums + kPanel / 2 + i));
}

// Add a row of a panel to the residual.
inline void add_panel_row(const float* sums, float* to) {
  for (int i = 0; i < kPanel; i += kLanes) store(to + i, load<VF>(to + i) + load<VF>(sums + i));
}

typedef uint8_t VB __attribute__((vector_size(kLanes)));

// x * factor, rounded to whole numbers.
inline VI rounded(VF x, float factor) {
  const VF magic = splat(12582912.0f);  // 1.5 * 2^23
  return __builtin_convertvector((x * factor + magic) - magic, VI);
}

inline VF magnitude(VF x) { return larger(x, -x); }

// Write a row as whole numbers, the largest as large as may be; return the scale.
inline float narrow_row(const Operand* x, int64_t size, Whole* to) {
  const float limit = (float)most_whole(size);
  VF most{};
  for (int64_t i = 0; i < size; i += kLanes) most = larger(most, magnitude(load_operands(x + i)));
  float extreme = largest(most), inverse = extreme > 0 ? limit / extreme : 0.0f;
  for (int64_t i = 0; i < size; i += kLanes)
    store_whole(to + i, rounded(load_operands(x + i), inverse));
  return extreme / limit;
}

// The same for each group of 32 inputs, without an offset; `sums` are those of a group's numbers, times the scale.
inline void narrow_groups(const Operand* x, int64_t size, uint8_t* to, float* scales, float* sums) {
  constexpr int kVectors = kGroup / kLanes;
  for (int64_t group = 0; group < size / kGroup; group++, x += kGroup, to += kGroup) {
    VF value[kVectors], most{};
    for (int v = 0; v < kVectors; v++) {
      value[v] = load_operands(x + v * kLanes);
      most = larger(most, magnitude(value[v]));
    }
    float extreme = largest(most), inverse = extreme > 0 ? 127.0f / extreme : 0.0f;
    VI total{};
    for (int v = 0; v < kVectors; v++) {
      VI number = rounded(value[v], inverse);
      total += number;
      store(to + v * kLanes, __builtin_convertvector(number, VB));
    }
    scales[group] = extreme / 127.0f;
    sums[group] = sum(__builtin_convertvector(total, VF)) * scales[group];
  }
}

}  // namespace tidemill
