// Vectors of the width that the compiler's flags allow, and the few operations that need the CPU's own names.
//
// Everything else in this folder is written against VF (floats), VI (signed) and VU (unsigned 32-bit lanes) with the
// compiler's vector arithmetic, so one source serves AVX-512, AVX2 and NEON. Knows no operator and no model.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace tidemill {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

using bf16 = uint16_t;  // the upper half of a float

typedef float VF __attribute__((vector_size(kLanes * 4)));
typedef int32_t VI __attribute__((vector_size(kLanes * 4)));
typedef uint32_t VU __attribute__((vector_size(kLanes * 4)));
typedef uint16_t VH __attribute__((vector_size(kLanes * 2)));
typedef int16_t VS __attribute__((vector_size(kLanes * 4)));

template <typename V>
inline V load(const void* from) {
  V value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <typename V>
inline void store(void* to, V value) {
  std::memcpy(to, &value, sizeof value);
}

inline VF splat(float value) { return VF{} + value; }

// The second where either is not a number.
inline VF larger(VF a, VF b) {
#if defined(__AVX512F__)
  return (VF)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (VF)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}

inline VF smaller(VF a, VF b) {
#if defined(__AVX512F__)
  return (VF)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (VF)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}

inline VF load_bf16(const bf16* from) {
  return (VF)(__builtin_convertvector(load<VH>(from), VU) << 16);
}

inline float to_float(bf16 value) {
  uint32_t bits = (uint32_t)value << 16;
  float wide;
  std::memcpy(&wide, &bits, 4);
  return wide;
}

// Round to the nearest bf16, ties to even; NaN stays NaN. Without branches, so that loops over it become vectors.
inline bf16 to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  uint32_t quiet = (bits >> 16) | 0x40;
  return (bf16)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

inline void store_bf16(bf16* to, VF value) {
#if defined(__AVX512BF16__)
  _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh((__m512)value));
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  store(to, vcvt_bf16_f32((float32x4_t)value));
#else
  VU bits = (VU)value;
  VU rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  VU nan = (bits >> 16) | 0x40;
  rounded = (bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded;
  store(to, __builtin_convertvector(rounded, VH));
#endif
}

inline void store_two_bf16(bf16* to, VF a, VF b) {
#if defined(__AVX512BF16__)
  _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a));
#else
  store_bf16(to, a);
  store_bf16(to + kLanes, b);
#endif
}

// The numbers of two vectors as bf16, rounded as in store_bf16, in turns: a[0], b[0], a[1], b[1], ...
inline void store_pairs_bf16(bf16* to, VF a, VF b) {
#if defined(__AVX512BF16__)
  alignas(64) static constexpr uint16_t kTurns[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                      8,  24, 9,  25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  __m512i one_after_other = (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a);
  _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_load_si512(kTurns), one_after_other));
#else
  auto rounded = [](VF value) { return (VU)value + 0x7fffu + (((VU)value >> 16) & 1u); };
  store(to, (rounded(a) >> 16) | (rounded(b) & 0xffff0000u));
#endif
}

// Write `size` floats times a factor as bf16.
inline void store_row_bf16(bf16* to, const float* from, int64_t size, float factor = 1.0f) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) store_bf16(to + i, load<VF>(from + i) * factor);
  for (; i < size; i++) to[i] = to_bf16(from[i] * factor);
}

// IEEE halves, for the scales of int4 groups.
inline float half_to_float(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31, fraction = half & 0x3ff;
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * fraction * 5.9604644775390625e-8f;
  uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
  float wide;
  std::memcpy(&wide, &bits, 4);
  return wide;
}

inline uint16_t to_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
  float magnitude = value < 0 ? -value : value;
  if (magnitude >= 65504.0f) return sign | 0x7bff;
  if (magnitude < 6.103515625e-5f) return sign | (uint16_t)(magnitude * 16777216.0f + 0.5f);
  std::memcpy(&bits, &magnitude, 4);
  bits += 0xfff + ((bits >> 13) & 1);
  return sign | (uint16_t)((bits >> 13) - (112 << 10));
}

inline VF load_halves(const uint16_t* from) {
#if defined(__AVX512F__)
  return (VF)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__AVX2__)
  return (VF)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#elif defined(__aarch64__)
  return (VF)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
#else
  VF wide;
  for (int i = 0; i < kLanes; i++) wide[i] = half_to_float(from[i]);
  return wide;
#endif
}

inline float sum(VF value) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)value);
#elif defined(__aarch64__)
  return vaddvq_f32((float32x4_t)value);
#else
  float total = 0;
  for (int i = 0; i < kLanes; i++) total += value[i];
  return total;
#endif
}

inline float largest(VF value) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)value);
#elif defined(__aarch64__)
  return vmaxnmvq_f32((float32x4_t)value);
#else
  float most = value[0];
  for (int i = 1; i < kLanes; i++) most = value[i] > most ? value[i] : most;
  return most;
#endif
}

inline bool is_any_above(VF value, float limit) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)value, _mm512_set1_ps(limit), _CMP_NLE_UQ) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)value, _mm256_set1_ps(limit), _CMP_NLE_UQ)) != 0;
#elif defined(__aarch64__)
  return vminvq_u32(vcleq_f32((float32x4_t)value, vdupq_n_f32(limit))) == 0;
#else
  bool is_above = false;
  for (int i = 0; i < kLanes; i++) is_above |= !(value[i] <= limit);
  return is_above;
#endif
}

inline VI iota() {
  VI lanes;
  for (int i = 0; i < kLanes; i++) lanes[i] = i;
  return lanes;
}

// e to the x, within 2 units of the last place between -87 and 88; the polynomial is that of Cephes' expf.
inline VF exponential(VF x) {
  x = larger(smaller(x, splat(88.0f)), splat(-87.3f));
  const VF magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  VF n = (x * 1.44269504f + magic) - magic;
  VF r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  VF p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.0f);
  VI exponent = (__builtin_convertvector(n, VI) + 127) << 23;
  return p * (VF)exponent;
}

// 2 to the x for -126 <= x <= 126, and 0 far below; off by at most 2^-17 of the value, since bf16 keeps no more. A minimax
// polynomial of the fraction, whose whole part becomes the exponent.
inline VF power_of_two(VF x) {
#if defined(__AVX512F__)
  VF whole = (VF)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  x = larger(splat(-126.0f), x);
  const VF magic = splat(12582912.0f);
  VF whole = (x + magic) - magic;
#endif
  VF r = x - whole;
  VF p = splat(9.582852729e-3f);
  p = p * r + 5.590642512e-2f;
  p = p * r + 2.402409862e-1f;
  p = p * r + 6.931241933e-1f;
  p = p * r + 1.0f;
#if defined(__AVX512F__)
  return (VF)_mm512_scalef_ps((__m512)p, (__m512)whole);
#else
  return p * (VF)((__builtin_convertvector(whole, VI) + 127) << 23);
#endif
}

inline constexpr float kLog2OfE = 1.44269504f;

// 1 / x for 2^-100 <= x <= 2^110, within 2^-20.
inline VF reciprocal(VF x) {
#if defined(__AVX512F__)
  VF guess = (VF)_mm512_rcp14_ps((__m512)x);
  return guess * (2.0f - x * guess);
#else
  return 1.0f / x;
#endif
}

// Whether weights in order are worth asking for while others are multiplied. Measured on Zen 1, AVX2: six rows of bf16 took
// twice as long with it, int4 a tenth longer, int8 a tenth less, which asks anyway.
inline constexpr bool kAsksAhead = kLanes != 8;

inline void prefetch_l2(const void* address) { __builtin_prefetch(address, 0, 2); }

}  // namespace tidemill
