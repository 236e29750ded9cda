// Packed weights: panels of 32 outputs, each with its inputs in groups that one instruction multiplies.
//
// bf16: `[n / 32][k / 2][32][2]`, which dpbf16 and an AMX tile both read. int8: `[n / 32][k / 4][32][4]`, with a scale
// and a sum per output behind. int4: `[n / 32][k / 32]` groups of `[4][32][4]` bytes of two nibbles, then a scale and a
// least value per output as halves. Outputs are padded to 32 and inputs to 64. Knows layouts; multiplies nothing.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "memory.h"
#include "pool.h"
#include "simd.h"

namespace tidemill {

inline constexpr int kPanel = 32;
inline constexpr int kInputPadding = 64;
inline constexpr int kGroup = 32;  // inputs that share an int4 scale
inline constexpr int kInt4GroupBytes = kGroup / 2 * kPanel + 2 * 2 * kPanel;

enum class Format : int32_t { kBf16 = 0, kInt8 = 1, kInt4 = 2 };

// How rows of a source become columns of panels: as they come, or gate and up in turns of 16, so that one panel holds
// both halves of 16 outputs of an MLP's gate.
enum class Order : int32_t { kPlain = 0, kGateUp = 1 };

struct Shape {
  int64_t outputs, inputs;
  Order order = Order::kPlain;

  int64_t padded_inputs() const { return round_up(inputs, kInputPadding); }
  int64_t panels() const {
    return order == Order::kPlain ? round_up(outputs, kPanel) / kPanel : round_up(outputs / 2, kPanel / 2) / (kPanel / 2);
  }
  int64_t padded_outputs() const { return panels() * kPanel; }

  // Return the source's row that becomes this packed output, or -1 for padding.
  int64_t source_row(int64_t output) const {
    if (order == Order::kPlain) return output < outputs ? output : -1;
    int64_t index = output / kPanel * (kPanel / 2) + output % (kPanel / 2);
    if (index >= outputs / 2) return -1;
    return output % kPanel < kPanel / 2 ? index : outputs / 2 + index;
  }
};

// A view of packed bytes; they belong to someone else.
struct Matrix {
  Shape shape{};
  Format format = Format::kBf16;
  uint8_t* values = nullptr;
  float* scales = nullptr;  // int8: one per output
  int32_t* sums = nullptr;  // int8: the sum of each output's numbers, for activations with an offset

  int64_t panel_bytes() const {
    int64_t inputs = shape.padded_inputs();
    if (format == Format::kBf16) return 2 * inputs * kPanel;
    if (format == Format::kInt8) return inputs * kPanel;
    return inputs / kGroup * kInt4GroupBytes;
  }
  uint8_t* panel(int64_t index) const { return values + index * panel_bytes(); }
};

// Bytes of values, scales and sums together.
inline int64_t packed_bytes(Shape shape, Format format) {
  Matrix matrix{shape, format};
  int64_t extra = format == Format::kInt8 ? shape.padded_outputs() * 8 : 0;
  return round_up(matrix.panel_bytes() * shape.panels() + extra, 4096);
}

// Say where the parts of a packed matrix lie in memory that holds `packed_bytes`.
inline Matrix view_packed(uint8_t* memory, Shape shape, Format format) {
  Matrix matrix{shape, format, memory};
  if (format == Format::kInt8) {
    matrix.scales = reinterpret_cast<float*>(memory + matrix.panel_bytes() * shape.panels());
    matrix.sums = reinterpret_cast<int32_t*>(matrix.scales + shape.padded_outputs());
  }
  return matrix;
}

// Rows of a matrix as they come from a file, `[outputs, inputs]`: float32 or bf16.
struct Source {
  const void* data;
  int64_t inputs;
  bool is_bf16;

  float at(int64_t row, int64_t column) const {
    int64_t index = row * inputs + column;
    return is_bf16 ? to_float(static_cast<const bf16*>(data)[index]) : static_cast<const float*>(data)[index];
  }

  // Copy a row, or zeros for -1, with zeros behind it.
  void row(int64_t index, int64_t padded, float* to) const {
    int64_t count = index < 0 ? 0 : inputs;
    if (is_bf16) {
      for (int64_t k = 0; k < count; k++) to[k] = to_float(static_cast<const bf16*>(data)[index * inputs + k]);
    } else if (count > 0) {
      std::memcpy(to, static_cast<const float*>(data) + index * inputs, count * sizeof(float));
    }
    std::memset(to + count, 0, (padded - count) * sizeof(float));
  }
};

inline void pack_bf16_panel(const Matrix& into, int64_t panel, const float* rows) {
  int64_t inputs = into.shape.padded_inputs();
  bf16* to = (bf16*)into.panel(panel);
  for (int64_t k = 0; k < inputs; k += 2, to += 2 * kPanel) {
    for (int column = 0; column < kPanel; column++) {
      to[column * 2] = to_bf16(rows[column * inputs + k]);
      to[column * 2 + 1] = to_bf16(rows[column * inputs + k + 1]);
    }
  }
}

inline void pack_int8_panel(const Matrix& into, int64_t panel, const float* rows) {
  int64_t inputs = into.shape.padded_inputs();
  int8_t* to = (int8_t*)into.panel(panel);
  for (int column = 0; column < kPanel; column++) {
    int64_t output = panel * kPanel + column;
    const float* row = rows + column * inputs;
    float most = 0;
    for (int64_t k = 0; k < inputs; k++) most = std::max(most, std::fabs(row[k]));
    float scale = most > 0 ? most / 127 : 1;
    int32_t total = 0;
    for (int64_t k = 0; k < inputs; k++) {
      int value = (int)std::lrintf(row[k] / scale);
      total += value;
      to[(k / 4) * (4 * kPanel) + column * 4 + (k & 3)] = (int8_t)value;
    }
    into.scales[output] = scale;
    into.sums[output] = total;
  }
}

// Whole numbers 0 .. 15 that stand for number * scale + least, as in GGUF's Q4_1, which therefore passes unchanged.
// Byte b of quad q holds inputs 4q + b (low nibble) and 16 + 4q + b (high nibble).
inline void pack_int4_panel(const Matrix& into, int64_t panel, const float* rows) {
  for (int64_t group = 0; group < into.shape.padded_inputs() / kGroup; group++) {
    uint8_t* to = into.panel(panel) + group * kInt4GroupBytes;
    uint16_t* halves = (uint16_t*)(to + kGroup / 2 * kPanel);
    for (int column = 0; column < kPanel; column++) {
      const float* values = rows + column * into.shape.padded_inputs() + group * kGroup;
      auto [low, high] = std::minmax_element(values, values + kGroup);
      halves[column] = to_half((*high - *low) / 15);
      halves[kPanel + column] = to_half(*low);
      float scale = half_to_float(halves[column]), least = half_to_float(halves[kPanel + column]);
      uint8_t numbers[kGroup];
      for (int i = 0; i < kGroup; i++)
        numbers[i] = scale > 0 ? (uint8_t)std::clamp((int)std::lrintf((values[i] - least) / scale), 0, 15) : 0;
      for (int byte = 0; byte < 16; byte++)
        to[(byte / 4 * kPanel + column) * 4 + byte % 4] = (uint8_t)(numbers[byte] | (numbers[16 + byte] << 4));
    }
  }
}

// Pack a whole matrix into memory that holds `packed_bytes`, all threads at once.
inline Matrix pack(Pool& pool, const Source& source, Shape shape, Format format, uint8_t* memory) {
  Matrix matrix = view_packed(memory, shape, format);
  int64_t inputs = shape.padded_inputs();
  pool.run([&](int) {
    std::vector<float> rows(kPanel * inputs);
    pool.each(shape.panels(), 1, [&](int64_t panel) {
      for (int column = 0; column < kPanel; column++)
        source.row(shape.source_row(panel * kPanel + column), inputs, rows.data() + column * inputs);
      if (format == Format::kBf16) pack_bf16_panel(matrix, panel, rows.data());
      else if (format == Format::kInt8) pack_int8_panel(matrix, panel, rows.data());
      else pack_int4_panel(matrix, panel, rows.data());
    });
  });
  return matrix;
}

}  // namespace tidemill
