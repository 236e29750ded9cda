// AMX tiles: 16 rows by 16 columns, 32 bf16 or 64 int8 inputs at a time. One tile configuration serves everything,
// since all operands are padded to whole tiles.
//
// Knows tiles and strides only. Empty where the compiler's flags do not allow AMX.
#pragma once

#include "simd.h"

#if defined(__AMX_BF16__) && defined(__AMX_INT8__)
#define TIDEMILL_AMX 1
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tidemill {

// What is asked for while something else is computed: so many lines from `at` on in each step.
struct Prefetch {
  const uint8_t* at = nullptr;
  int64_t lines = 0;
};

#if defined(TIDEMILL_AMX)
inline constexpr bool kHasAmx = true;

// Ask the kernel for the tile registers, once per process; false where it does not give them.
inline bool request_amx() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Make the compiler finish its stores here: it does not know that tile instructions read and write memory.
inline void order_memory(const void* address) { asm volatile("" : : "r"(address) : "memory"); }

// While one lives, its thread's eight tiles are 16 rows of 64 bytes.
struct TileScope {
  TileScope() {
    alignas(64) struct {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    order_memory(&config);
    _tile_loadconfig(&config);
  }
  ~TileScope() { _tile_release(); }
};

// Up to 32 rows by 32 columns: out[32][32] = (or, if IS_ADDED, +=) rows * columns. A step is 64 bytes of each row;
// `columns(step)` is where its first 16 columns lie, the others `second` bytes further, groups of inputs `stride` apart.
// Rows pass the nearest cache by, so that the columns stay in it for the next rows.
template <bool IS_INT8, bool IS_ADDED, bool HAS_SECOND_ROWS, typename Columns>
inline void multiply_tiles(const void* rows, int64_t row_stride, const Columns& columns, int64_t second, int64_t stride,
                           int64_t steps, void* out, int64_t out_stride, Prefetch next = {}) {
  const uint8_t* a0 = static_cast<const uint8_t*>(rows);
  const uint8_t* a1 = a0 + 16 * row_stride;
  uint8_t* to = static_cast<uint8_t*>(out);
  order_memory(rows);
  if (IS_ADDED) {
    _tile_loadd(0, to, out_stride);
    _tile_loadd(1, to + 64, out_stride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  if (HAS_SECOND_ROWS && IS_ADDED) {
    _tile_loadd(2, to + 16 * out_stride, out_stride);
    _tile_loadd(3, to + 16 * out_stride + 64, out_stride);
  } else if (HAS_SECOND_ROWS) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t step = 0; step < steps; step++) {
    const uint8_t* at = columns(step);
    _tile_loadd(6, at, stride);
    _tile_loadd(7, at + second, stride);
    _tile_stream_loadd(4, a0 + step * 64, row_stride);
    if (IS_INT8) {
      _tile_dpbusd(0, 4, 6);
      _tile_dpbusd(1, 4, 7);
    } else {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (HAS_SECOND_ROWS) {
      _tile_stream_loadd(5, a1 + step * 64, row_stride);
      if (IS_INT8) {
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
      } else {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    for (int64_t line = 0; line < next.lines; line++, next.at += 64) prefetch_l2(next.at);
  }
  _tile_stored(0, to, out_stride);
  _tile_stored(1, to + 64, out_stride);
  if (HAS_SECOND_ROWS) {
    _tile_stored(2, to + 16 * out_stride, out_stride);
    _tile_stored(3, to + 16 * out_stride + 64, out_stride);
  }
  order_memory(out);
}

// The same for any number of rows, 32 at a time; memory must hold whole tiles of rows. `next` is for the first 32.
template <bool IS_INT8, bool IS_ADDED, typename Columns>
inline void multiply_all_tiles(const void* rows, int64_t row_stride, int64_t count, const Columns& columns,
                               int64_t second, int64_t stride, int64_t steps, void* out, int64_t out_stride,
                               Prefetch next = {}) {
  for (int64_t row = 0; row < count; row += 32) {
    const uint8_t* from = static_cast<const uint8_t*>(rows) + row * row_stride;
    uint8_t* to = static_cast<uint8_t*>(out) + row * out_stride;
    Prefetch ahead = row == 0 ? next : Prefetch{};
    if (count - row > 16)
      multiply_tiles<IS_INT8, IS_ADDED, true>(from, row_stride, columns, second, stride, steps, to, out_stride, ahead);
    else
      multiply_tiles<IS_INT8, IS_ADDED, false>(from, row_stride, columns, second, stride, steps, to, out_stride, ahead);
  }
}
#else
inline constexpr bool kHasAmx = false;
inline bool request_amx() { return false; }
struct TileScope {};
#endif

}  // namespace tidemill
