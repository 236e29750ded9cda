// Products with nibbles: int4 panels times activations as whole numbers, both with a scale for each group of 32 inputs.
//
// A group's columns are unpacked into registers once and meet every row there; whole numbers are added up within a group,
// floats across groups. Knows one panel and some rows; does not know when this is the way to go.
#pragma once

#include "matrix.h"
#include "operands.h"

namespace tidemill {

inline constexpr int kGroupQuads = kGroup / 4;
#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kInt4Vectors = 2;  // of columns, whose nibbles fill half of the registers
#else
inline constexpr int kInt4Vectors = 1;
#endif

// Rows of whole numbers between -127 and 127 with what they stand for.
struct NarrowRows {
  const uint8_t* numbers;   // [rows][inputs]: bits of int8
  const float* scales;      // [rows][inputs / 32]
  const float* group_sums;  // [rows][inputs / 32]: of the numbers, times the scale
};

// A group's inputs of kInt4Vectors vectors of columns: number * scale + least.
struct GroupColumns {
  VI quads[kInt4Vectors][kGroupQuads];  // bytes 0 .. 15 of four inputs
  VF scale[kInt4Vectors], least[kInt4Vectors];

  GroupColumns(const uint8_t* group, int column) {
    const uint16_t* halves = (const uint16_t*)(group + kGroup / 2 * kPanel);
    for (int v = 0; v < kInt4Vectors; v++) {
      int place = column + v * kLanes;
      for (int quad = 0; quad < kGroupQuads / 2; quad++) {
        VI bytes = load<VI>(group + (quad * kPanel + place) * 4);
        quads[v][quad] = bytes & 0x0f0f0f0f;
        quads[v][quad + kGroupQuads / 2] = (VI)((VU)bytes >> 4) & 0x0f0f0f0f;
      }
      scale[v] = load_halves(halves + place);
      least[v] = load_halves(halves + kPanel + place);
    }
  }
};

// The products of a group's numbers with a vector of columns, added up.
inline VI multiply_group(const VI (&columns)[kGroupQuads], const uint8_t* numbers) {
#if defined(__AVX2__) && !defined(TIDEMILL_VNNI)
  VS total{};  // 16 products of at most 15 * 127 fit 16 bits
  for (int quad = 0; quad < kGroupQuads; quad++) total += multiply_byte_pairs(columns[quad], splat_four(numbers + 4 * quad));
  return multiply_halves(VI{}, (VI)total, (VI)(VS{} + 1));
#elif defined(__aarch64__) && !defined(__ARM_FEATURE_DOTPROD)
  int16x8_t low{}, high{};  // the same, after half of them have been added up
  for (int quad = 0; quad < kGroupQuads; quad++) {
    int8x16_t column = (int8x16_t)columns[quad], four = (int8x16_t)splat_four(numbers + 4 * quad);
    low = vmlal_s8(low, vget_low_s8(column), vget_low_s8(four));
    high = vmlal_high_s8(high, column, four);
  }
  return (VI)vpaddlq_s16(vpaddq_s16(low, high));
#else
  VI total{};
  for (int quad = 0; quad < kGroupQuads; quad++) total = multiply_quads(total, columns[quad], splat_four(numbers + 4 * quad));
  return total;
#endif
}

// sums[r][32] = rows * panel for `count` rows; the panel `next` is asked for meanwhile. Not inlined: other formats, which
// share the loop around it, lost 1 % of their speed to it.
inline __attribute__((noinline)) void multiply_int4_panel(const NarrowRows& rows, int64_t count, int64_t inputs, const uint8_t* panel, float* sums,
                                const uint8_t* next) {
  const int64_t groups = inputs / kGroup;
  for (int64_t group = 0; group < groups; group++) {
    const uint8_t* at = panel + group * kInt4GroupBytes;
    for (int line = 0; kAsksAhead && next != nullptr && line < kInt4GroupBytes / 64; line++)
      prefetch_l2(next + group * kInt4GroupBytes + line * 64);
    for (int column = 0; column < kPanel; column += kInt4Vectors * kLanes) {
      const GroupColumns columns(at, column);
      for (int64_t r = 0; r < count; r++) {
        const uint8_t* numbers = rows.numbers + r * inputs + group * kGroup;
        float scale = rows.scales[r * groups + group], total = rows.group_sums[r * groups + group];
        VI whole[kInt4Vectors];
        for (int v = 0; v < kInt4Vectors; v++) whole[v] = multiply_group(columns.quads[v], numbers);
        for (int v = 0; v < kInt4Vectors; v++) {
          float* to = sums + r * kPanel + column + v * kLanes;
          VF before = group == 0 ? VF{} : load<VF>(to);
          VF exact = __builtin_convertvector(whole[v], VF);
          store(to, before + columns.least[v] * total + columns.scale[v] * (exact * scale));
        }
      }
    }
  }
}

}  // namespace tidemill
