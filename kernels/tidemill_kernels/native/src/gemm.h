// The linear layers: activations times a packed matrix, in whichever way is fastest for that many rows.
//
// Work is dealt out by panel of 32 outputs and chunk of rows. A panel's sums land in a small buffer that stays in the
// nearest cache, where an epilogue takes them: stored, added to the residual, or gated. Knows formats and ways;
// does not know layers.
#pragma once

#include "amx.h"
#include "int4.h"
#include "matrix.h"
#include "micro.h"

namespace tidemill {

// Activations of one linear layer. `wide` are `[rows][padded inputs]`; for int8 and int4 matrices `narrow` are the same as
// whole numbers times a scale: for int8 Whole numbers with one scale for each row; for int4 bytes with one for each group
// of 32 inputs, whose numbers times their scale add up to `group_sums`.
struct Activations {
  const Operand* wide = nullptr;
  const uint8_t* narrow = nullptr;
  const float* scales = nullptr;
  const float* group_sums = nullptr;
  int64_t rows = 0;

  NarrowRows narrow_from(int64_t row, int64_t inputs) const {
    int64_t groups = inputs / kGroup;
    return {narrow + row * inputs, scales + row * groups, group_sums + row * groups};
  }
};

// Which instructions compute a product. Rows are padded to 16 in memory, so tiles may read past the last one.
enum class Way : int32_t { kVector = 0, kTiles = 1 };

inline constexpr int64_t kRowChunk = 512, kLeastChunk = 256;
inline constexpr int64_t kBlockRows = 32;    // two tiles of rows
inline constexpr int64_t kStepBytes = 2048;  // of a panel: what a tile kernel multiplies in a step

// What a thread needs beside the operands.
struct GemmScratch {
  Buffer<float> sums;
  Buffer<uint8_t> widened;
};

// Whether a matrix is multiplied as bf16, panel by panel.
inline bool is_widened(const Matrix& matrix, Way way) {
  if (matrix.format == Format::kInt4) return way == Way::kTiles;
  return matrix.format == Format::kQ41 || matrix.format == Format::kQ80;
}

// Write a panel of nibbles (int4, q4_1) out as bf16; `next` is asked for meanwhile.
inline void widen_nibble_panel(const uint8_t* panel, int64_t inputs, bf16* to, const uint8_t* next) {
  for (int64_t group = 0; group < inputs / kGroup; group++, panel += kInt4GroupBytes, to += kGroup * kPanel) {
    const uint16_t* halves = (const uint16_t*)(panel + kGroup / 2 * kPanel);
    for (int line = 0; kAsksAhead && next != nullptr && line < kInt4GroupBytes / 64; line++) prefetch_l2(next + group * kInt4GroupBytes + line * 64);
    for (int first = 0; first < kPanel; first += kLanes) {
      VF scale = load_halves(halves + first), least = load_halves(halves + kPanel + first);
#pragma GCC unroll 4
      for (int quad = 0; quad < 4; quad++) {
        VU bytes = load<VU>(panel + (quad * kPanel + first) * 4);
#pragma GCC unroll 4
        for (int pair = 0; pair < 4; pair++) {  // pairs of the low nibbles, then of the high ones
          int shift = pair / 2 * 4 + pair % 2 * 16, input = pair / 2 * 16 + quad * 4 + pair % 2 * 2;
          VF a = __builtin_convertvector((VI)((bytes >> shift) & 15u), VF) * scale + least;
          VF b = __builtin_convertvector((VI)((bytes >> (shift + 8)) & 15u), VF) * scale + least;
          store_pairs_bf16(to + input * kPanel + first * 2, a, b);
        }
      }
    }
  }
}

// The same for a panel of q8_0.
inline void widen_byte_panel(const uint8_t* panel, int64_t inputs, bf16* to, const uint8_t* next) {
  for (int64_t group = 0; group < inputs / kGroup; group++, panel += kQ80GroupBytes, to += kGroup * kPanel) {
    const uint16_t* halves = (const uint16_t*)(panel + kGroup * kPanel);
    for (int line = 0; kAsksAhead && next != nullptr && line < kQ80GroupBytes / 64; line++) prefetch_l2(next + group * kQ80GroupBytes + line * 64);
    for (int first = 0; first < kPanel; first += kLanes) {
      VF scale = load_halves(halves + first);
#pragma GCC unroll 8
      for (int quad = 0; quad < 8; quad++) {
        VI bytes = load<VI>(panel + (quad * kPanel + first) * 4);
        auto number = [&](int byte) { return __builtin_convertvector((bytes << (24 - 8 * byte)) >> 24, VF) * scale; };
        bf16* at = to + quad * 4 * kPanel + first * 2;
        store_pairs_bf16(at, number(0), number(1));
        store_pairs_bf16(at + 2 * kPanel, number(2), number(3));
      }
    }
  }
}

inline void widen_panel(const Matrix& matrix, int64_t index, bf16* to, const uint8_t* next) {
  int64_t inputs = matrix.shape.padded_inputs();
  if (matrix.format == Format::kQ80) widen_byte_panel(matrix.panel(index), inputs, to, next);
  else widen_nibble_panel(matrix.panel(index), inputs, to, next);
}

// The sums of a bf16 panel for `count` rows: `sums[count][32]`.
inline void multiply_bf16_panel(const Operand* rows, int64_t inputs, int64_t count, const uint8_t* panel, Way way,
                                float* sums, Prefetch next) {
#if defined(TIDEMILL_AMX)
  if (way == Way::kTiles) {
    auto columns = [=](int64_t step) { return panel + step * 16 * kPanel * 4; };
    multiply_all_tiles<false, false>(rows, inputs * 2, count, columns, kUnit * 4, kPanel * 4, inputs / 32, sums,
                                     kPanel * 4, next);
    return;
  }
#endif
  (void)way;
  multiply_bf16(rows, inputs, count, panel, kPanel / kUnit, kUnit * 4, kPanel * 4, inputs / 2, sums, kPanel, next.at);
}

// The sums of an int8 panel, scaled back to floats.
inline void multiply_int8_panel(const Activations& in, int64_t first, int64_t count, const Matrix& matrix, int64_t index,
                                Way way, float* sums, Prefetch next) {
  int64_t inputs = matrix.shape.padded_inputs();
  const uint8_t* panel = matrix.panel(index);
  const Whole* rows = (const Whole*)in.narrow + first * inputs;
  int32_t* whole = reinterpret_cast<int32_t*>(sums);
  bool is_done = false;
#if defined(TIDEMILL_AMX)
  if (way == Way::kTiles) {
    auto columns = [=](int64_t step) { return panel + step * 16 * kPanel * 4; };
    multiply_all_tiles<true, false>(rows, inputs, count, columns, kUnit * 4, kPanel * 4, inputs / 64, whole, kPanel * 4,
                                    next);
    is_done = true;
  }
#endif
  (void)way;
  if (!is_done) {
    each_block(count, [&](int64_t row, int block) {
      with_rows(block, [&](auto constant) {
        constexpr int kRows = decltype(constant)::value;
        for (int unit = 0; unit < kPanel / kUnit; unit += kMaxUnits) {
          Columns<kMaxUnits> at{{}, kPanel * 4};
          for (int u = 0; u < kMaxUnits; u++) at.units[u] = panel + (unit + u) * kUnit * 4;
          multiply_rows_int8<kRows, kMaxUnits>(rows + row * inputs, inputs, at, inputs / 4,
                                               whole + row * kPanel + unit * kUnit, kPanel, row == 0 ? next.at : nullptr);
        }
      });
    });
  }
  for (int64_t row = 0; row < count; row++) {
    for (int column = 0; column < kPanel; column += kLanes) {
      int64_t output = index * kPanel + column;
      VI exact = load<VI>(whole + row * kPanel + column) - load<VI>(matrix.sums + output) * kWholeOffset;
      store(sums + row * kPanel + column,
            __builtin_convertvector(exact, VF) * load<VF>(matrix.scales + output) * in.scales[first + row]);
    }
  }
}

// Spread a panel over so many blocks of rows: more than a few lines at a time wait for one another.
inline Prefetch spread(const uint8_t* panel, int64_t blocks) {
  if (panel == nullptr) return {};
  return {panel, std::max<int64_t>(1, (kStepBytes / 64 + blocks - 1) / blocks)};
}

// Return what a thread reads after a panel: the next one, or after the last of its own (see pool.h) its first of the matrix
// that follows, if one is known; null if there is none.
inline const uint8_t* next_panel(const Matrix& matrix, const Matrix* following, int64_t panel, int64_t threads) {
  int64_t panels = matrix.shape.panels(), owner = ((panel + 1) * threads + panels - 1) / panels - 1;
  bool is_last = panels * (owner + 1) / threads == panel + 1;
  if (!is_last) return matrix.panel(panel + 1);
  return following == nullptr ? nullptr : following->panel(following->shape.panels() * owner / threads);
}

// Within a run of the pool: compute all outputs and call take(panel, first_row, rows, sums[rows][32]) for each part.
// `following` is the matrix that will be multiplied next, or null.
template <typename Take>
inline void gemm(Pool& pool, GemmScratch& scratch, const Activations& in, const Matrix& matrix,
                 const Matrix* following, Way way, Take&& take) {
  int64_t panels = matrix.shape.panels(), inputs = matrix.shape.padded_inputs();
  // Of many rows each thread takes some with all panels, so that what it writes stays in its cache; else panels are shared.
  int64_t chunks = std::max((in.rows + kRowChunk - 1) / kRowChunk, std::min<int64_t>(pool.size(), in.rows / kLeastChunk));
  float* sums = scratch.sums.reserve(2 * kBlockRows * kPanel);
  bool is_wide = is_widened(matrix, way);
  bf16* widened = is_wide ? (bf16*)scratch.widened.reserve(2 * inputs * kPanel) : nullptr;
  pool.each_in_steps(panels * chunks, [&](int64_t task, Turn& turn) {
    int64_t chunk = task / panels, panel = task % panels;
    int64_t first = in.rows * chunk / chunks / 16 * 16, last = in.rows * (chunk + 1) / chunks / 16 * 16;
    if (chunk == chunks - 1) last = in.rows;
    const uint8_t* next = panel + 1 < panels ? matrix.panel(panel + 1) : nullptr;
    if (chunks == 1) next = next_panel(matrix, following, panel, pool.size());
    const uint8_t* values = matrix.panel(panel);
    if (is_wide) {
      widen_panel(matrix, panel, widened, next);
      values = (const uint8_t*)widened;
      next = nullptr;
    }
    // The sums of a few rows stay in the nearest cache until they are taken.
    int64_t most = way == Way::kTiles ? kBlockRows : 2 * kMaxRows;
    Prefetch ahead = spread(next, way == Way::kTiles ? (last - first + most - 1) / most : 1);
    for (int64_t row = first + turn.first() * most; row < last; row += most) {
      int64_t count = std::min(most, last - row);
      if (matrix.format == Format::kInt8) multiply_int8_panel(in, row, count, matrix, panel, way, sums, ahead);
      else if (matrix.format == Format::kInt4 && !is_wide) multiply_int4_panel(in.narrow_from(row, inputs), count, inputs, values, sums, ahead.at);
      else multiply_bf16_panel(in.wide + row * inputs, inputs, count, values, way, sums, ahead);
      if (!turn.write([&] { take(panel, row, count, (const float*)sums); })) return;
      ahead = way == Way::kTiles ? Prefetch{ahead.at + matrix.panel_bytes() / kStepBytes * ahead.lines * 64, ahead.lines} : Prefetch{};
    }
  });
}

}  // namespace tidemill
