// The two sides of a product as this CPU's instructions take them, and the products of one vector of columns.
//
// Activations are Operands beside bf16 weights and Whole numbers beside int8 ones; columns come as packed (see matrix.h).
// Knows instructions; does not know strides, blocks or models.
#pragma once

#include "simd.h"

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define TIDEMILL_BF16  // products of pairs of bf16
#endif

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define TIDEMILL_VNNI  // products of unsigned with signed bytes, four at a time
#endif

namespace tidemill {

// Activations as the multiplying instruction takes them: bf16 where one multiplies pairs of those, else floats.
#if defined(TIDEMILL_BF16)
using Operand = bf16;
inline constexpr int kPairSteps = 1;
#else
using Operand = float;
inline constexpr int kPairSteps = 2;
#endif

inline VF load_operands(const bf16* from) { return load_bf16(from); }
inline VF load_operands(const float* from) { return load<VF>(from); }

inline void store_operands(bf16* to, VF value) { store_bf16(to, value); }
inline void store_operands(float* to, VF value) { store(to, value); }

inline void store_two_operands(bf16* to, VF a, VF b) { store_two_bf16(to, a, b); }
inline void store_two_operands(float* to, VF a, VF b) {
  store(to, a);
  store(to + kLanes, b);
}

inline void put_operand(bf16* to, float value) { *to = to_bf16(value); }
inline void put_operand(float* to, float value) { *to = value; }

inline float from_operand(bf16 value) { return to_float(value); }
inline float from_operand(float value) { return value; }

// Write `size` floats times a factor.
inline void store_row_operands(bf16* to, const float* from, int64_t size, float factor = 1.0f) {
  store_row_bf16(to, from, size, factor);
}
inline void store_row_operands(float* to, const float* from, int64_t size, float factor = 1.0f) {
  for (int64_t i = 0; i < size; i++) to[i] = from[i] * factor;
}

inline VI splat_four(const void* bytes) {
  int32_t bits;
  std::memcpy(&bits, bytes, 4);
  return VI{} + bits;
}

// What step STEP of kPairSteps multiplies of a vector of columns' pairs of bf16.
template <int STEP>
struct Column {
#if defined(TIDEMILL_BF16)
  VU pairs;
  explicit Column(const void* from) : pairs(load<VU>(from)) {}
#else
  VF numbers;
  explicit Column(const void* from) : numbers((VF)(STEP == 0 ? load<VU>(from) << 16 : load<VU>(from) & 0xffff0000u)) {}
#endif
  Column() = default;
};

// acc[i] += the numbers at `pair` times the pair of column i, as far as that step goes.
template <int STEP>
inline VF multiply_pair(VF acc, const Operand* pair, const Column<STEP>& column) {
#if defined(__AVX512BF16__)
  return (VF)_mm512_dpbf16_ps((__m512)acc, (__m512bh)splat_four(pair), (__m512bh)column.pairs);
#elif defined(TIDEMILL_BF16)
  return (VF)vbfdotq_f32((float32x4_t)acc, (bfloat16x8_t)splat_four(pair), (bfloat16x8_t)column.pairs);
#else
  return acc + column.numbers * pair[STEP];
#endif
}

#if defined(__aarch64__)
// acc[i] += the products of four signed bytes with four others, lane by lane, none of which is -128.
inline VI multiply_quads(VI acc, VI a, VI b) {
  int8x16_t x = (int8x16_t)a, y = (int8x16_t)b;
#if defined(__ARM_FEATURE_DOTPROD)
  return (VI)vdotq_s32((int32x4_t)acc, x, y);
#else
  int16x8_t pairs = vpaddq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(y)), vmull_high_s8(x, y));
  return (VI)vpadalq_s16((int32x4_t)acc, pairs);
#endif
}
#else
// acc[i] += the products of four unsigned bytes with four signed ones, lane by lane.
inline VI multiply_quads(VI acc, VI of_unsigned, VI of_signed) {
#if defined(__AVX512VNNI__)
  return (VI)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)of_unsigned, (__m512i)of_signed);
#elif defined(__AVXVNNI__)
  return (VI)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)of_unsigned, (__m256i)of_signed);
#else
  for (int byte = 0; byte < 4; byte++)
    acc += ((of_signed << (24 - 8 * byte)) >> 24) * (VI)(((VU)of_unsigned >> (8 * byte)) & 0xffu);
  return acc;
#endif
}
#endif

// Sums of whole numbers may be added up in any order, and a compiler that does so for many at once runs out of registers.
inline VI keep_order(VI sum) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  asm("" : "+x"(sum));
#endif
  return sum;
}

// The products of unsigned bytes with signed ones, two and two added up as numbers of 16 bits, which they must fit.
#if defined(__AVX512BW__)
inline VS multiply_byte_pairs(VI of_unsigned, VI of_signed) {
  return (VS)_mm512_maddubs_epi16((__m512i)of_unsigned, (__m512i)of_signed);
}
#elif defined(__AVX2__)
inline VS multiply_byte_pairs(VI of_unsigned, VI of_signed) {
  return (VS)_mm256_maddubs_epi16((__m256i)of_unsigned, (__m256i)of_signed);
}
#endif

// acc[i] += the products of two signed numbers of 16 bits with two others, lane by lane.
inline VI multiply_halves(VI acc, VI a, VI b) {
#if defined(__AVX512F__)
  return keep_order(acc + (VI)_mm512_madd_epi16((__m512i)a, (__m512i)b));
#elif defined(__AVX2__)
  return keep_order(acc + (VI)_mm256_madd_epi16((__m256i)a, (__m256i)b));
#else
  return acc + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

// Activations of int8 products as the multiplying instruction takes them. Where one multiplies unsigned bytes with signed
// ones: bytes, offset by 128; where both are signed: bytes. Else numbers of 16 bits, of each four inputs first 0 and 2, then
// 1 and 3, as they come out of four bytes by shifting.
#if defined(TIDEMILL_VNNI)
using Whole = uint8_t;
inline constexpr int kWholeOffset = 128, kQuadSteps = 1;
#elif defined(__aarch64__)
using Whole = int8_t;
inline constexpr int kWholeOffset = 0, kQuadSteps = 1;
#else
using Whole = int16_t;
inline constexpr int kWholeOffset = 0, kQuadSteps = 2;
#endif

typedef Whole VW __attribute__((vector_size(kLanes * sizeof(Whole))));

// How large Whole numbers may be for rows of so many inputs: sums of products with signed bytes must fit 32 bits.
inline int most_whole(int64_t inputs) {
  if (kQuadSteps == 1) return 127;
  int64_t fitting = INT32_MAX / (127 * (inputs > 0 ? inputs : 1));
  return (int)(fitting < 4095 ? fitting : 4095);
}

// Write whole numbers of consecutive inputs.
inline void store_whole(Whole* to, VI numbers) {
#if defined(TIDEMILL_VNNI) || defined(__aarch64__)
  store(to, __builtin_convertvector(numbers + kWholeOffset, VW));
#else
  typedef uint64_t VFours __attribute__((vector_size(kLanes * 2)));
  VFours fours = (VFours)__builtin_convertvector(numbers, VW);
  store(to, (fours & 0xffff00000000ffffu) | (fours & 0xffff0000u) << 16 | (fours >> 16 & 0xffff0000u));
#endif
}

// What step STEP of kQuadSteps multiplies of a vector of columns' four bytes.
template <int STEP>
struct WholeColumn {
  VI numbers;
  explicit WholeColumn(const void* from) : numbers(load<VI>(from)) {
    if constexpr (kQuadSteps == 2) numbers = (VI)((STEP == 0 ? (VS)numbers << 8 : (VS)numbers) >> 8);
  }
  WholeColumn() = default;
};

// acc[i] += the four numbers at `quad` times those of column i, as far as that step goes.
template <int STEP>
inline VI multiply_quad(VI acc, const Whole* quad, const WholeColumn<STEP>& column) {
  if constexpr (kQuadSteps == 1) return multiply_quads(acc, splat_four(quad), column.numbers);
  else return multiply_halves(acc, column.numbers, splat_four(quad + 2 * STEP));
}

}  // namespace tidemill
