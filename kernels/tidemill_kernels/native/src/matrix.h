// Packed weights: panels of 32 outputs, each with its inputs in groups that one instruction multiplies.
//
// bf16: `[n / 32][k / 2][32][2]`, which dpbf16 and an AMX tile both read. int8: `[n / 32][k / 4][32][4]`, with a scale
// and a sum per output behind. int4: `[n / 32][k / 32]` groups of `[4][32][4]` bytes of two nibbles, then a scale and a
// least value per output as halves. q4_1 and q8_0 are a GGUF file's blocks of those names, kept as they are and multiplied
// as the bf16 numbers that they stand for: q4_1 lies as int4 does, q8_0 as groups of `[8][32][4]` bytes and a scale per
// output as half. Outputs are padded to 32 and inputs to 64. Knows layouts; multiplies nothing.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "memory.h"
#include "pool.h"
#include "source.h"

namespace tidemill {

inline constexpr int kPanel = 32;
inline constexpr int kInputPadding = 64;
inline constexpr int kInt4GroupBytes = kGroup / 2 * kPanel + 2 * 2 * kPanel;
inline constexpr int kQ80GroupBytes = kGroup * kPanel + 2 * kPanel;

enum class Format : int32_t { kBf16 = 0, kInt8 = 1, kInt4 = 2, kQ41 = 3, kQ80 = 4 };

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
    return inputs / kGroup * group_bytes();
  }
  int64_t group_bytes() const { return format == Format::kQ80 ? kQ80GroupBytes : kInt4GroupBytes; }
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

inline void pack_bf16_panel(const Matrix& into, int64_t panel, const float* rows) {
  int64_t inputs = into.shape.padded_inputs();
  bf16* to = (bf16*)into.panel(panel);
  std::vector<bf16> row(inputs);
  for (int column = 0; column < kPanel; column++) {
    store_row_bf16(row.data(), rows + column * inputs, inputs);
    for (int64_t k = 0; k < inputs; k += 2) std::memcpy(to + k * kPanel + column * 2, row.data() + k, 2 * sizeof(bf16));
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

// Copy the blocks of one output; `row` is null for padding.
inline void pack_q41_row(const Matrix& into, int64_t panel, int column, const uint8_t* row, int64_t inputs) {
  for (int64_t group = 0; group < into.shape.padded_inputs() / kGroup; group++) {
    uint8_t* to = into.panel(panel) + group * kInt4GroupBytes;
    uint16_t* halves = (uint16_t*)(to + kGroup / 2 * kPanel);
    uint8_t none[kQ41Bytes] = {};
    const uint8_t* block = row != nullptr && group < inputs / kGroup ? row + group * kQ41Bytes : none;
    std::memcpy(halves + column, block, 2);
    std::memcpy(halves + kPanel + column, block + 2, 2);
    for (int quad = 0; quad < 4; quad++) std::memcpy(to + (quad * kPanel + column) * 4, block + 4 + quad * 4, 4);
  }
}

inline void pack_q80_row(const Matrix& into, int64_t panel, int column, const uint8_t* row, int64_t inputs) {
  for (int64_t group = 0; group < into.shape.padded_inputs() / kGroup; group++) {
    uint8_t* to = into.panel(panel) + group * kQ80GroupBytes;
    uint8_t none[kQ80Bytes] = {};
    const uint8_t* block = row != nullptr && group < inputs / kGroup ? row + group * kQ80Bytes : none;
    std::memcpy(to + kGroup * kPanel + column * 2, block, 2);
    for (int quad = 0; quad < 8; quad++) std::memcpy(to + (quad * kPanel + column) * 4, block + 2 + quad * 4, 4);
  }
}

// Say whether a matrix of that format can be made of the source without changing a number that the format can't hold.
inline bool is_packable(const Source& source, Format format) {
  if (format == Format::kQ41) return source.is_all(Kind::kQ41);
  if (format == Format::kQ80) return source.is_all(Kind::kQ80);
  return true;
}

inline void pack_panel(const Matrix& into, const Source& source, int64_t panel, std::vector<float>& rows) {
  int64_t inputs = into.shape.padded_inputs();
  bool is_q41 = into.format == Format::kQ41 || (into.format == Format::kInt4 && source.is_all(Kind::kQ41));
  for (int column = 0; column < kPanel; column++) {
    int64_t row = into.shape.source_row(panel * kPanel + column);
    if (is_q41) pack_q41_row(into, panel, column, source.raw_row(row), into.shape.inputs);
    else if (into.format == Format::kQ80) pack_q80_row(into, panel, column, source.raw_row(row), into.shape.inputs);
    else source.row(row, inputs, rows.data() + column * inputs);
  }
  if (is_q41) return;
  if (into.format == Format::kBf16) pack_bf16_panel(into, panel, rows.data());
  else if (into.format == Format::kInt8) pack_int8_panel(into, panel, rows.data());
  else if (into.format == Format::kInt4) pack_int4_panel(into, panel, rows.data());
}

// Pack a whole matrix into memory that holds `packed_bytes`, all threads at once.
inline Matrix pack(Pool& pool, const Source& source, Shape shape, Format format, uint8_t* memory) {
  Matrix matrix = view_packed(memory, shape, format);
  int64_t inputs = shape.padded_inputs();
  pool.run([&](int) {
    std::vector<float> rows(kPanel * inputs);
    pool.each(shape.panels(), 1, [&](int64_t panel) { pack_panel(matrix, source, panel, rows); });
  });
  return matrix;
}

}  // namespace tidemill
