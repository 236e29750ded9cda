// Micro-kernels: a few rows times a few vectors of columns, all sums in registers.
//
// Rows are activations `[rows][k]`, columns lie as groups of inputs that one instruction multiplies (see matrix.h).
// Knows registers and strides; does not know what is multiplied or why.
#pragma once

#include <type_traits>

#include "operands.h"

namespace tidemill {

// Columns are dealt in units of 16; how many units and rows fit the registers depends on the CPU.
inline constexpr int kUnit = 16;
inline constexpr int kUnitVectors = kUnit / kLanes;
#if defined(__AVX512F__)
inline constexpr int kMaxRows = 14;
inline constexpr int kMaxUnits = 2;
#elif defined(__AVX2__)
inline constexpr int kMaxRows = 6;  // 12 vectors of sums, 2 of columns and one of a row, of 16
inline constexpr int kMaxUnits = 1;
#else
inline constexpr int kMaxRows = 5;  // 20 vectors of sums, 8 of columns and one of a row, of NEON's 32
inline constexpr int kMaxUnits = 1;
#endif

// Where columns lie: unit u at `units[u]`, the next pair of inputs `stride` bytes further.
template <int UNITS>
struct Columns {
  const uint8_t* units[UNITS];
  int64_t stride;
};

struct Nothing {
  void operator()() const {}
};

// sums[r][v] += a pair of row r times the columns at(v). Row by row, so that of the rows one number at a time is held:
// registers are for sums.
template <int ROWS, int VECTORS, typename At>
inline __attribute__((always_inline)) void multiply_columns(const Operand* pair, int64_t row_stride, const At& at,
                                                            VF (&sums)[ROWS][VECTORS]) {
  auto add = [&](auto step) __attribute__((always_inline)) {
    Column<decltype(step)::value> column[VECTORS];
    for (int v = 0; v < VECTORS; v++) column[v] = Column<decltype(step)::value>(at(v));
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++)
      for (int v = 0; v < VECTORS; v++) sums[r][v] = multiply_pair(sums[r][v], pair + r * row_stride, column[v]);
  };
  add(std::integral_constant<int, 0>{});
  if constexpr (kPairSteps == 2) add(std::integral_constant<int, 1>{});
}

// out[r][u * 16 + c] = sum over k of rows[r][k] * columns[k][u * 16 + c], for `pairs` pairs of inputs; `meanwhile` is called
// after every four of them.
template <int ROWS, int UNITS, typename Meanwhile = Nothing>
inline __attribute__((always_inline)) void multiply_rows_bf16(const Operand* rows, int64_t row_stride,
                                                              const Columns<UNITS>& columns, int64_t pairs, float* out,
                                                              int64_t out_stride, const uint8_t* next = nullptr,
                                                              const Meanwhile& meanwhile = {}) {
  constexpr int kVectors = UNITS * kUnitVectors;
  // A single row waits for its own sums: several chains of them, added up at the end, hide that.
  constexpr int kChains = ROWS == 1 ? 4 : ROWS <= 3 ? 2 : 1;
  VF acc[kChains][ROWS][kVectors] = {};
  auto add_pair = [&](int64_t pair, VF (&sums)[ROWS][kVectors]) __attribute__((always_inline)) {
    auto at = [&](int v) { return columns.units[v / kUnitVectors] + pair * columns.stride + v % kUnitVectors * (kLanes * 4); };
    multiply_columns<ROWS, kVectors>(rows + 2 * pair, row_stride, at, sums);
  };
  int64_t pair = 0;
  for (; pair + 4 <= pairs; pair += 4) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) add_pair(pair + i, acc[i % kChains]);
    if (kAsksAhead && next != nullptr) {
      for (int i = 0; i < 8; i++) prefetch_l2(next + pair * 128 + i * 64);
    }
    meanwhile();
  }
  for (; pair < pairs; pair++) add_pair(pair, acc[0]);
  for (int r = 0; r < ROWS; r++) {
    for (int v = 0; v < kVectors; v++) {
      VF total = acc[0][r][v];
      for (int chain = 1; chain < kChains; chain++) total = total + acc[chain][r][v];
      store(out + r * out_stride + v * kLanes, total);
    }
  }
}

// Add to the sums what columns give that lie in tiles of 16 inputs each, anywhere; sums are loaded and stored once, and
// `meanwhile` is called after every two pairs.
template <int ROWS, int UNITS, typename Meanwhile>
inline __attribute__((always_inline)) void add_rows_over_tiles(const Operand* rows, int64_t row_stride,
                                                               const uint8_t* const* tiles, int64_t num_tiles,
                                                               int64_t place, int64_t stride, float* out,
                                                               int64_t out_stride, const Meanwhile& meanwhile) {
  constexpr int kVectors = UNITS * kUnitVectors, kPairs = 8;
  VF acc[ROWS][kVectors];
  for (int r = 0; r < ROWS; r++)
    for (int v = 0; v < kVectors; v++) acc[r][v] = load<VF>(out + r * out_stride + v * kLanes);
  for (int64_t tile = 0; tile < num_tiles; tile++, rows += 2 * kPairs) {
    const uint8_t* at = tiles[tile] + place;
#pragma GCC unroll 4
    for (int pair = 0; pair < kPairs; pair++) {
      multiply_columns<ROWS, kVectors>(rows + 2 * pair, row_stride, [&](int v) { return at + pair * stride + v * (kLanes * 4); }, acc);
      if (pair % 2 == 1) meanwhile();
    }
  }
  for (int r = 0; r < ROWS; r++)
    for (int v = 0; v < kVectors; v++) store(out + r * out_stride + v * kLanes, acc[r][v]);
}

// Products in whole numbers, four inputs at a time; rows as Whole numbers, see operands.h.
template <int ROWS, int UNITS>
inline __attribute__((always_inline)) void multiply_rows_int8(const Whole* rows, int64_t row_stride,
                                                              const Columns<UNITS>& columns, int64_t quads, int32_t* out,
                                                              int64_t out_stride, const uint8_t* next = nullptr) {
  constexpr int kVectors = UNITS * kUnitVectors;
  constexpr int kChains = ROWS == 1 ? 4 : 1;
  VI acc[kChains][ROWS][kVectors] = {};
  for (int64_t quad = 0; quad < quads; quad += 4) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      auto at = [&](int v) {
        return columns.units[v / kUnitVectors] + (quad + i) * columns.stride + v % kUnitVectors * (kLanes * 4);
      };
      auto add = [&](auto step) __attribute__((always_inline)) {
        WholeColumn<decltype(step)::value> column[kVectors];
        for (int v = 0; v < kVectors; v++) column[v] = WholeColumn<decltype(step)::value>(at(v));
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++)
          for (int v = 0; v < kVectors; v++)
            acc[i % kChains][r][v] = multiply_quad(acc[i % kChains][r][v], rows + r * row_stride + 4 * (quad + i), column[v]);
      };
      add(std::integral_constant<int, 0>{});
      if constexpr (kQuadSteps == 2) add(std::integral_constant<int, 1>{});
    }
    if (next != nullptr) {
      for (int i = 0; i < 8; i++) prefetch_l2(next + quad * 128 + i * 64);
    }
  }
  for (int r = 0; r < ROWS; r++) {
    for (int v = 0; v < kVectors; v++) {
      VI total = acc[0][r][v];
      for (int chain = 1; chain < kChains; chain++) total += acc[chain][r][v];
      store(out + r * out_stride + v * kLanes, total);
    }
  }
}

// Call f with the number of rows as a constant.
template <typename F>
inline void with_rows(int rows, F&& f) {
  auto call = [&](auto count) { f(count); };
  switch (rows) {
    case 1: return call(std::integral_constant<int, 1>{});
    case 2: return call(std::integral_constant<int, 2>{});
    case 3: return call(std::integral_constant<int, 3>{});
    case 4: return call(std::integral_constant<int, 4>{});
    case 5: return call(std::integral_constant<int, 5>{});
#if defined(__AVX2__) || defined(__AVX512F__)
    case 6: return call(std::integral_constant<int, 6>{});
#endif
#if defined(__AVX512F__)
    case 7: return call(std::integral_constant<int, 7>{});
    case 8: return call(std::integral_constant<int, 8>{});
    case 9: return call(std::integral_constant<int, 9>{});
    case 10: return call(std::integral_constant<int, 10>{});
    case 11: return call(std::integral_constant<int, 11>{});
    case 12: return call(std::integral_constant<int, 12>{});
    case 13: return call(std::integral_constant<int, 13>{});
    case 14: return call(std::integral_constant<int, 14>{});
#endif
  }
}

// Split `count` rows into blocks of at most kMaxRows, as even as can be, and call f(first, rows) for each.
template <typename F>
inline void each_block(int64_t count, F&& f) {
  int64_t blocks = (count + kMaxRows - 1) / kMaxRows;
  for (int64_t block = 0; block < blocks; block++) {
    int64_t first = count * block / blocks;
    f(first, (int)(count * (block + 1) / blocks - first));
  }
}

// Multiply any number of rows with `units` units of columns that lie side by side, `unit_bytes` apart.
inline void multiply_bf16(const Operand* rows, int64_t row_stride, int64_t count, const uint8_t* columns, int64_t units,
                          int64_t unit_bytes, int64_t stride, int64_t pairs, float* out, int64_t out_stride,
                          const uint8_t* next = nullptr) {
  each_block(count, [&](int64_t first, int block) {
    with_rows(block, [&](auto constant) {
      constexpr int kRows = decltype(constant)::value;
      int64_t unit = 0;
      for (; unit + kMaxUnits <= units; unit += kMaxUnits) {
        Columns<kMaxUnits> at{{}, stride};
        for (int u = 0; u < kMaxUnits; u++) at.units[u] = columns + (unit + u) * unit_bytes;
        multiply_rows_bf16<kRows, kMaxUnits>(rows + first * row_stride, row_stride, at, pairs,
                                             out + first * out_stride + unit * kUnit, out_stride,
                                             first == 0 ? next : nullptr);
      }
      for (; unit < units; unit++) {
        Columns<1> at{{columns + unit * unit_bytes}, stride};
        multiply_rows_bf16<kRows, 1>(rows + first * row_stride, row_stride, at, pairs,
                                     out + first * out_stride + unit * kUnit, out_stride);
      }
    });
  });
}

// Add to the sums of any number of rows what `units` units of columns give that lie side by side in tiles.
template <typename Meanwhile>
inline void add_over_tiles(const Operand* rows, int64_t row_stride, int64_t count, const uint8_t* const* tiles,
                           int64_t num_tiles, int64_t units, float* out, int64_t out_stride, const Meanwhile& meanwhile) {
  each_block(count, [&](int64_t first, int block) {
    with_rows(block, [&](auto constant) {
      constexpr int kRows = decltype(constant)::value;
      constexpr int kWide = kMaxUnits > 1 && kRows <= kMaxRows / 2 ? 2 * kMaxUnits : kMaxUnits;  // few rows leave registers
      int64_t unit = 0;
      auto add = [&](auto wide) {
        constexpr int kUnits = decltype(wide)::value;
        for (; unit + kUnits <= units; unit += kUnits)
          add_rows_over_tiles<kRows, kUnits>(rows + first * row_stride, row_stride, tiles, num_tiles, unit * kUnit * 4,
                                             units * kUnit * 4, out + first * out_stride + unit * kUnit, out_stride,
                                             meanwhile);
      };
      add(std::integral_constant<int, kWide>{});
      add(std::integral_constant<int, kMaxUnits>{});
    });
  });
}

}  // namespace tidemill
