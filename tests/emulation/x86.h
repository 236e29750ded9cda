// Stand-ins for x86 instructions that a test machine may lack, for AVX2: included before the kernels, which then compile
// as they do for a CPU that has them. What each does is taken from Intel's intrinsics guide. Slow; only for tests.
#pragma once

#include <immintrin.h>
#include <sys/syscall.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulated {

template <typename T, int COUNT>
struct Lanes {
  T lane[COUNT];

  template <typename V>
  static Lanes of(const V& vector) {
    static_assert(sizeof(V) == sizeof(Lanes), "as many bytes");
    Lanes lanes;
    std::memcpy(&lanes, &vector, sizeof lanes);
    return lanes;
  }
  template <typename V>
  V as() const {
    V vector;
    std::memcpy(&vector, lane, sizeof vector);
    return vector;
  }
};

using F32 = Lanes<float, 16>;
using I32 = Lanes<int32_t, 16>;
using I16 = Lanes<int16_t, 32>;
using U16 = Lanes<uint16_t, 32>;
using I8 = Lanes<int8_t, 64>;
using U8 = Lanes<uint8_t, 64>;

inline float from_bf16(uint16_t value) {
  uint32_t bits = (uint32_t)value << 16;
  float wide;
  std::memcpy(&wide, &bits, 4);
  return wide;
}

// To the nearest, ties to even; NaN stays NaN.
inline uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (std::isnan(value)) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <typename F>
inline __m512 each(__m512 a, __m512 b, F&& f) {
  F32 x = F32::of(a), y = F32::of(b);
  for (int i = 0; i < 16; i++) x.lane[i] = f(x.lane[i], y.lane[i]);
  return x.as<__m512>();
}

inline __m512 max_ps(__m512 a, __m512 b) { return each(a, b, [](float x, float y) { return x > y ? x : y; }); }
inline __m512 min_ps(__m512 a, __m512 b) { return each(a, b, [](float x, float y) { return x < y ? x : y; }); }

// Not less or equal: the only comparison that the kernels make.
inline __mmask16 cmp_ps_mask(__m512 a, __m512 b, int) {
  F32 x = F32::of(a), y = F32::of(b);
  unsigned mask = 0;
  for (int i = 0; i < 16; i++) mask |= (unsigned)!(x.lane[i] <= y.lane[i]) << i;
  return (__mmask16)mask;
}

inline float reduce_add_ps(__m512 a) {
  F32 x = F32::of(a);
  for (int step = 8; step > 0; step /= 2)
    for (int i = 0; i < step; i++) x.lane[i] += x.lane[i + step];
  return x.lane[0];
}

inline float reduce_max_ps(__m512 a) {
  F32 x = F32::of(a);
  float most = x.lane[0];
  for (float value : x.lane) most = value > most ? value : most;
  return most;
}

inline __m512 roundscale_ps(__m512 a, int) { return each(a, a, [](float x, float) { return std::nearbyint(x); }); }
inline __m512 scalef_ps(__m512 a, __m512 b) {
  return each(a, b, [](float x, float y) { return std::ldexp(x, (int)std::fmax(-400.0f, std::fmin(400.0f, std::floor(y)))); });
}

// Off by as much as the instruction may be.
inline __m512 rcp14_ps(__m512 a) { return each(a, a, [](float x, float) { return 1.0f / x * (1.0f + 1.0f / 16384); }); }

inline __m512 cvtph_ps(__m256i halves) {
  __m128i part[2];
  std::memcpy(part, &halves, sizeof part);
  __m256 wide[2] = {_mm256_cvtph_ps(part[0]), _mm256_cvtph_ps(part[1])};
  __m512 result;
  std::memcpy(&result, wide, sizeof result);
  return result;
}

inline __m512 set1_ps(float value) {
  F32 x;
  for (float& lane : x.lane) lane = value;
  return x.as<__m512>();
}

inline __m512i set1_epi32(int value) {
  I32 x;
  for (int32_t& lane : x.lane) lane = value;
  return x.as<__m512i>();
}

inline __m512i load_si512(const void* from) {
  __m512i result;
  std::memcpy(&result, from, sizeof result);
  return result;
}

inline void storeu_si512(void* to, __m512i value) { std::memcpy(to, &value, sizeof value); }

inline __m512i madd_epi16(__m512i a, __m512i b) {
  I16 x = I16::of(a), y = I16::of(b);
  I32 sums;
  for (int i = 0; i < 16; i++) sums.lane[i] = x.lane[2 * i] * y.lane[2 * i] + x.lane[2 * i + 1] * y.lane[2 * i + 1];
  return sums.as<__m512i>();
}

inline __m512i maddubs_epi16(__m512i a, __m512i b) {
  U8 x = U8::of(a);
  I8 y = I8::of(b);
  I16 sums;
  for (int i = 0; i < 32; i++) {
    int sum = x.lane[2 * i] * y.lane[2 * i] + x.lane[2 * i + 1] * y.lane[2 * i + 1];
    sums.lane[i] = (int16_t)(sum > 32767 ? 32767 : sum < -32768 ? -32768 : sum);
  }
  return sums.as<__m512i>();
}

// sums[i] += the products of four unsigned with four signed bytes.
inline void add_quads(int32_t* sums, const uint8_t* a, const int8_t* b, int count) {
  for (int i = 0; i < count; i++)
    for (int byte = 0; byte < 4; byte++) sums[i] += a[4 * i + byte] * b[4 * i + byte];
}

template <typename V, int COUNT>
inline V dpbusd(V sums, V a, V b) {
  auto total = Lanes<int32_t, COUNT>::of(sums);
  add_quads(total.lane, Lanes<uint8_t, 4 * COUNT>::of(a).lane, Lanes<int8_t, 4 * COUNT>::of(b).lane, COUNT);
  return total.template as<V>();
}

inline __m512 dpbf16_ps(__m512 sums, __m512bh a, __m512bh b) {
  F32 total = F32::of(sums);
  U16 x = U16::of(a), y = U16::of(b);
  for (int i = 0; i < 32; i++) total.lane[i / 2] += from_bf16(x.lane[i]) * from_bf16(y.lane[i]);
  return total.as<__m512>();
}

inline __m256i cvtneps_pbh(__m512 a) {
  F32 x = F32::of(a);
  Lanes<uint16_t, 16> narrow;
  for (int i = 0; i < 16; i++) narrow.lane[i] = to_bf16(x.lane[i]);
  return narrow.as<__m256i>();
}

// The second operand becomes the lower half.
inline __m512i cvtne2ps_pbh(__m512 high, __m512 low) {
  __m256i parts[2] = {cvtneps_pbh(low), cvtneps_pbh(high)};
  return load_si512(parts);
}

inline __m512i permutexvar_epi16(__m512i index, __m512i a) {
  U16 places = U16::of(index), from = U16::of(a), result;
  for (int i = 0; i < 32; i++) result.lane[i] = from.lane[places.lane[i] & 31];
  return result.as<__m512i>();
}

// The tile registers of a thread: 16 rows of 64 bytes each.
struct Tile {
  uint8_t rows[16][64];
};
inline thread_local Tile tiles[8];

inline void tile_zero(int tile) { std::memset(&tiles[tile], 0, sizeof(Tile)); }
inline void tile_load(int tile, const void* from, int64_t stride) {
  for (int row = 0; row < 16; row++) std::memcpy(tiles[tile].rows[row], (const uint8_t*)from + row * stride, 64);
}
inline void tile_store(int tile, void* to, int64_t stride) {
  for (int row = 0; row < 16; row++) std::memcpy((uint8_t*)to + row * stride, tiles[tile].rows[row], 64);
}

inline void tile_dpbusd(int sums, int a, int b) {
  for (int row = 0; row < 16; row++) {
    I32 total = I32::of(tiles[sums].rows[row]);
    for (int group = 0; group < 16; group++) {
      uint8_t quads[64];
      for (int i = 0; i < 64; i++) quads[i] = tiles[a].rows[row][4 * group + i % 4];
      add_quads(total.lane, quads, (const int8_t*)tiles[b].rows[group], 16);
    }
    std::memcpy(tiles[sums].rows[row], total.lane, 64);
  }
}

inline void tile_dpbf16ps(int sums, int a, int b) {
  for (int row = 0; row < 16; row++) {
    F32 total = F32::of(tiles[sums].rows[row]);
    U16 x = U16::of(tiles[a].rows[row]);
    for (int group = 0; group < 16; group++) {
      U16 y = U16::of(tiles[b].rows[group]);
      for (int i = 0; i < 32; i++) total.lane[i / 2] += from_bf16(x.lane[2 * group + i % 2]) * from_bf16(y.lane[i]);
    }
    std::memcpy(tiles[sums].rows[row], total.lane, 64);
  }
}

}  // namespace emulated

#if defined(EMULATE_AVX512F)
#define __AVX512F__ 1
#define __AVX512BW__ 1
#define _mm512_max_ps emulated::max_ps
#define _mm512_min_ps emulated::min_ps
#define _mm512_cmp_ps_mask emulated::cmp_ps_mask
#define _mm512_reduce_add_ps emulated::reduce_add_ps
#define _mm512_reduce_max_ps emulated::reduce_max_ps
#undef _mm512_roundscale_ps
#define _mm512_roundscale_ps emulated::roundscale_ps
#define _mm512_scalef_ps emulated::scalef_ps
#define _mm512_rcp14_ps emulated::rcp14_ps
#define _mm512_cvtph_ps emulated::cvtph_ps
#define _mm512_set1_ps emulated::set1_ps
#define _mm512_set1_epi32 emulated::set1_epi32
#define _mm512_load_si512 emulated::load_si512
#define _mm512_loadu_si512 emulated::load_si512
#define _mm512_storeu_si512 emulated::storeu_si512
#define _mm512_madd_epi16 emulated::madd_epi16
#define _mm512_maddubs_epi16 emulated::maddubs_epi16
#define _mm512_permutexvar_epi16 emulated::permutexvar_epi16
#endif

#if defined(EMULATE_AVX512_VNNI)
#define __AVX512VNNI__ 1
#define _mm512_dpbusd_epi32 emulated::dpbusd<__m512i, 16>
#endif

#if defined(EMULATE_AVX512_BF16)
#define __AVX512BF16__ 1
#define _mm512_dpbf16_ps emulated::dpbf16_ps
#define _mm512_cvtneps_pbh emulated::cvtneps_pbh
#define _mm512_cvtne2ps_pbh emulated::cvtne2ps_pbh
#endif

#if defined(EMULATE_AVX_VNNI)
#define __AVXVNNI__ 1
#define _mm256_dpbusd_avx_epi32 emulated::dpbusd<__m256i, 8>
#endif

#if defined(EMULATE_AMX)
#define __AMX_BF16__ 1
#define __AMX_INT8__ 1
// What asks the system for tiles becomes a call that always succeeds.
#undef SYS_arch_prctl
#define SYS_arch_prctl SYS_sched_yield
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbusd
#undef _tile_dpbf16ps
#define _tile_loadconfig(config) (void)(config)
#define _tile_release() (void)0
#define _tile_zero emulated::tile_zero
#define _tile_loadd emulated::tile_load
#define _tile_stream_loadd emulated::tile_load
#define _tile_stored emulated::tile_store
#define _tile_dpbusd emulated::tile_dpbusd
#define _tile_dpbf16ps emulated::tile_dpbf16ps
#endif
