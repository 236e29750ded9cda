// Attention of some query rows, which share a key/value head, over a range of one sequence's cached tokens.
//
// The range is walked in chunks with running maxima and sums (online softmax), so memory does not grow with it. The
// same code serves decodes (the query heads of one token), prompt chunks (of several tokens, causal) and prefixes that
// several sequences share (the heads of all their newest tokens). Knows rows and ranges; does not know batches.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "amx.h"
#include "kv_cache.h"
#include "micro.h"

namespace tidemill {

inline constexpr int kMostRows = 32;       // two tiles
inline constexpr int kChunkTokens = 256;   // of columns: 16 tiles
inline constexpr float kLowest = -1e30f;

// A query row and the tokens it sees: first <= token < last.
struct QueryRow {
  const float* query;
  int64_t first, last;
};

struct AttentionScratch {
  Buffer<bf16> query;      // [kMostRows][padded dim]
  Buffer<float> scores;    // [kMostRows][kChunkTokens]
  Buffer<bf16> weights;    // [kMostRows][kChunkTokens]
  Buffer<float> out;       // [kMostRows][padded dim]
  Buffer<bf16> tail;       // one tile of values, its unused slots zeroed
  float most[kMostRows], total[kMostRows];

  void reserve(int64_t padded_dim) {
    query.reserve(kMostRows * padded_dim);
    scores.reserve(kMostRows * kChunkTokens);
    weights.reserve(kMostRows * kChunkTokens);
    out.reserve(kMostRows * padded_dim);
    tail.reserve(2 * kTile * padded_dim);
  }
};

// scores[r][16 * t + i] = query r * key i of tile t, for `tiles` tiles from `first_tile` on.
inline void score_tiles(const SequenceCache& cache, int64_t head, int64_t first_tile, int64_t tiles, int64_t rows,
                        bool with_tiles, AttentionScratch& scratch) {
  int64_t dim = cache.shape->padded_dim();
  const bf16* query = scratch.query.data();
  auto tile_at = [&](int64_t tile) { return (const uint8_t*)(cache.keys + cache.tile_offset(head, first_tile + tile)); };
  for (int64_t tile = 0; tile < tiles; tile += 2) {
    bool has_second = tile + 1 < tiles;
    const uint8_t* units[2] = {tile_at(tile), tile_at(has_second ? tile + 1 : tile)};
    float* to = scratch.scores.data() + tile * kTile;
    // The values are wanted as soon as the weights are known: they are on their way meanwhile.
    for (int64_t ahead = tile; ahead < std::min(tile + 2, tiles); ahead++) {
      const uint8_t* values = (const uint8_t*)(cache.values + cache.tile_offset(head, first_tile + ahead));
      for (int64_t line = 0; line < dim / 2; line++) prefetch_l2(values + line * 64);
    }
    for (int64_t ahead = tile + 4; ahead < std::min(tile + 6, tiles); ahead++) {
      const uint8_t* keys = tile_at(ahead);
      for (int64_t line = 0; line < dim / 2; line++) prefetch_l1(keys + line * 64);
    }
#if defined(TIDEMILL_AMX)
    if (with_tiles) {
      auto columns = [&](int64_t group) { return units[0] + group * 16 * 64; };
      multiply_all_tiles<false, false>(query, dim * 2, rows, columns, units[1] - units[0], 64, dim / 32, to,
                                       kChunkTokens * 4);
      continue;
    }
#endif
    (void)with_tiles;
    each_block(rows, [&](int64_t first, int block) {
      with_rows(block, [&](auto constant) {
        constexpr int kRows = decltype(constant)::value;
        for (int unit = 0; unit < 2; unit += kMaxUnits) {
          Columns<kMaxUnits> at{{}, 64};
          for (int u = 0; u < kMaxUnits; u++) at.units[u] = units[unit + u];
          multiply_rows_bf16<kRows, kMaxUnits>(query + first * dim, dim, at, dim / 2,
                                               to + first * kChunkTokens + unit * kUnit, kChunkTokens, false);
        }
      });
    });
  }
}

// Turn one row's scores of a chunk into weights and return what its earlier sums are to be multiplied with.
inline float soften_row(const CacheShape& shape, const QueryRow& row, int64_t first_tile, int64_t tiles, float scale,
                        const float* scores, bf16* weights, float& most, float& total) {
  const int64_t step = shape.tile_tokens();
  const VI lanes = iota();
  auto bounds = [&](int64_t column) {  // of visible lanes in the vector that starts there
    int64_t token = (first_tile + column / kTile) * step + column % kTile;
    int64_t in_tile = step - column % kTile;
    int64_t low = row.first - token, high = row.last - token < in_tile ? row.last - token : in_tile;
    low = low < 0 ? 0 : low > kLanes ? kLanes : low;
    high = high < 0 ? 0 : high > kLanes ? kLanes : high;
    return std::pair<int32_t, int32_t>((int32_t)low, (int32_t)high);
  };
  VF peak = splat(kLowest);
  for (int64_t column = 0; column < tiles * kTile; column += kLanes) {
    auto [low, high] = bounds(column);
    if (low >= high) continue;
    VF value = load<VF>(scores + column) * scale;
    if (low > 0 || high < kLanes) value = (lanes >= low) & (lanes < high) ? value : splat(kLowest);
    peak = larger(peak, value);
  }
  float before = most;
  most = std::max(before, largest(peak));
  VF sum_of_weights{};
  for (int64_t column = 0; column < (tiles + 1) / 2 * 2 * kTile; column += kLanes) {
    auto [low, high] = bounds(column);
    VF weight{};
    if (low < high) {
      weight = exponential(load<VF>(scores + column) * scale - most);
      if (low > 0 || high < kLanes) weight = (lanes >= low) & (lanes < high) ? weight : VF{};
    }
    sum_of_weights = sum_of_weights + weight;
    store_bf16(weights + column, weight);
  }
  float factor = before <= kLowest ? 0.0f : std::exp(before - most);
  total = total * factor + sum(sum_of_weights);
  return factor;
}

// Return where the values of `count` tiles from `tile` on lie; where they reach past `end`, a copy with zeros behind it,
// since unused slots may hold anything.
inline const bf16* values_at(const SequenceCache& cache, int64_t head, int64_t tile, int64_t count, int64_t end,
                             bf16* tail) {
  const CacheShape& shape = *cache.shape;
  const bf16* values = cache.values + cache.tile_offset(head, tile);
  int64_t used = std::min(count * shape.tile_tokens(), end - tile * shape.tile_tokens());
  if (used == count * kTile) return values;
  int64_t pair = 2 * shape.padded_dim(), whole = used / 2 * pair;
  std::memset(tail, 0, count * kTile / 2 * pair * sizeof(bf16));
  std::memcpy(tail, values, whole * sizeof(bf16));
  for (int64_t i = 0; used % 2 && i < pair; i += 2) tail[whole + i] = values[whole + i];
  return tail;
}

#if defined(TIDEMILL_AMX)
// As weigh_values, for blocks of whole pairs of tiles.
inline void weigh_value_tiles(const SequenceCache& cache, int64_t head, int64_t first_tile, int64_t tiles, int64_t end,
                              int64_t rows, AttentionScratch& scratch) {
  int64_t dim = cache.shape->padded_dim(), steps = (tiles + 1) / 2;
  const bf16* places[kChunkTokens / (2 * kTile)];
  for (int64_t step = 0; step < steps; step++)
    places[step] = values_at(cache, head, first_tile + 2 * step, 2, end, scratch.tail.data());
  for (int64_t unit = 0; unit < dim / kUnit; unit += 2) {
    auto columns = [&](int64_t step) { return (const uint8_t*)(places[step] + unit * kUnit * 2); };
    multiply_all_tiles<false, true>(scratch.weights.data(), kChunkTokens * 2, rows, columns, kUnit * 4, dim * 4, steps,
                                    scratch.out.data() + unit * kUnit, dim * 4);
  }
}
#endif

// out[r] += the weighted values of a chunk that ends before `end`.
inline void weigh_values(const SequenceCache& cache, int64_t head, int64_t first_tile, int64_t tiles, int64_t end,
                         int64_t rows, bool with_tiles, AttentionScratch& scratch) {
  const CacheShape& shape = *cache.shape;
  int64_t dim = shape.padded_dim();
#if defined(TIDEMILL_AMX)
  if (with_tiles && shape.block_size % (2 * kTile) == 0)
    return weigh_value_tiles(cache, head, first_tile, tiles, end, rows, scratch);
#endif
  (void)with_tiles;
  for (int64_t tile = 0; tile < tiles;) {
    int64_t at = first_tile + tile, run = 1;  // full tiles that follow one another in one block
    if (shape.block_size > kTile) {
      int64_t in_block = (shape.block_size - at * kTile % shape.block_size) / kTile;
      run = std::max<int64_t>(1, std::min({in_block, tiles - tile, (end - at * kTile) / kTile}));
    }
    const bf16* values = values_at(cache, head, at, run, end, scratch.tail.data());
    multiply_bf16(scratch.weights.data() + tile * kTile, kChunkTokens, rows, (const uint8_t*)values, dim / kUnit,
                  kUnit * 4, dim * 4, run * kTile / 2, scratch.out.data(), dim, true);
    tile += run;
  }
}

// Attend with up to 32 rows; sums are left in scratch.out, scratch.most and scratch.total, not yet divided.
inline void attend(const SequenceCache& cache, int64_t head, const QueryRow* rows, int64_t count, bool with_tiles,
                   AttentionScratch& scratch) {
  const CacheShape& shape = *cache.shape;
  int64_t dim = shape.padded_dim(), first = rows[0].first, last = rows[0].last;
  scratch.reserve(dim);
  for (int64_t r = 0; r < count; r++) {
    bf16* to = scratch.query.data() + r * dim;
    store_row_bf16(to, rows[r].query, shape.head_dim);
    for (int64_t i = shape.head_dim; i < dim; i++) to[i] = 0;
    first = std::min(first, rows[r].first);
    last = std::max(last, rows[r].last);
    scratch.most[r] = kLowest;
    scratch.total[r] = 0;
  }
  std::memset(scratch.out.data(), 0, count * dim * sizeof(float));
  float scale = 1.0f / std::sqrt((float)shape.head_dim);
  int64_t step = shape.tile_tokens(), end_tile = (last + step - 1) / step;
  for (int64_t tile = first / step / 2 * 2; tile < end_tile; tile += kChunkTokens / kTile) {
    int64_t tiles = std::min<int64_t>(kChunkTokens / kTile, end_tile - tile);
    score_tiles(cache, head, tile, tiles, count, with_tiles, scratch);
    for (int64_t r = 0; r < count; r++) {
      float factor = soften_row(shape, rows[r], tile, tiles, scale, scratch.scores.data() + r * kChunkTokens,
                                scratch.weights.data() + r * kChunkTokens, scratch.most[r], scratch.total[r]);
      if (factor != 1.0f) {
        float* out = scratch.out.data() + r * dim;
        for (int64_t i = 0; i < dim; i += kLanes) store(out + i, load<VF>(out + i) * factor);
      }
    }
    weigh_values(cache, head, tile, tiles, last, count, with_tiles, scratch);
  }
}

}  // namespace tidemill
