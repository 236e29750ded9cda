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
#include "lookahead.h"
#include "micro.h"

namespace tidemill {

inline constexpr int kMostRows = 32;       // two tiles
inline constexpr int kChunkTokens = 256;   // of columns: 16 tiles
inline constexpr int kLinesAtOnce = 4 * kMaxUnits + 1;  // what is attended to between two calls for few rows, and one more
inline constexpr float kLowest = -1e30f;
inline constexpr float kSlack = 8;

// A query row and the tokens it sees: first <= token < last.
struct QueryRow {
  const float* query;
  int64_t first, last;
};

struct AttentionScratch {
  Buffer<Operand> query;   // [kMostRows][padded dim]
  Buffer<float> scores;    // [kMostRows][kChunkTokens]
  Buffer<Operand> weights; // [kMostRows][kChunkTokens]
  Buffer<float> out;       // [kMostRows][padded dim]
  Buffer<bf16> tail;       // tiles of values, their unused slots zeroed
  float most[kMostRows], total[kMostRows];
  VF totals[kMostRows];    // what `total` is the sum of

  void reserve(int64_t padded_dim) {
    query.reserve(kMostRows * padded_dim);
    scores.reserve(kMostRows * kChunkTokens);
    weights.reserve(kMostRows * kChunkTokens);
    out.reserve(kMostRows * padded_dim);
    tail.reserve(kChunkTokens * padded_dim);
  }
};

// Call f with what is to be called between multiplications: it asks for later keys and values where that is of use.
template <typename F>
inline void beside_asking(Lookahead* ahead, F&& f) {
  if (ahead == nullptr) return f(Nothing{});
  f([ahead] { ahead->ask(kLinesAtOnce); });
}

#if defined(TIDEMILL_AMX)
// As score_tiles, for heads of 64 numbers: the queries stay in their tiles while the keys pass.
template <bool HAS_SECOND_ROWS>
inline void score_heads_of_64(const SequenceCache& cache, int64_t head, int64_t first_tile, int64_t tiles,
                              AttentionScratch& scratch, Lookahead* ahead) {
  const bf16* query = scratch.query.data();
  order_memory(query);
  _tile_loadd(4, query, 128);
  _tile_loadd(5, query + 32, 128);
  if (HAS_SECOND_ROWS) {
    _tile_loadd(6, query + 16 * 64, 128);
    _tile_loadd(7, query + 16 * 64 + 32, 128);
  }
  for (int64_t tile = 0; tile < tiles; tile++) {
    if (ahead != nullptr) {
      ahead->advance(1);
      ahead->ask_for_tiles(1);
    }
    const bf16* keys = cache.keys + cache.tile_offset(head, first_tile + tile);
    float* to = scratch.scores.data() + tile * kTile;
    _tile_loadd(2, keys, 64);
    _tile_loadd(3, keys + 32 * kTile, 64);
    _tile_zero(0);
    _tile_dpbf16ps(0, 4, 2);
    _tile_dpbf16ps(0, 5, 3);
    _tile_stored(0, to, kChunkTokens * 4);
    if (HAS_SECOND_ROWS) {
      _tile_zero(1);
      _tile_dpbf16ps(1, 6, 2);
      _tile_dpbf16ps(1, 7, 3);
      _tile_stored(1, to + 16 * kChunkTokens, kChunkTokens * 4);
    }
  }
  order_memory(scratch.scores.data());
}
#endif

// scores[r][16 * t + i] = query r * key i of tile t, for `tiles` tiles from `first_tile` on.
inline void score_tiles(const SequenceCache& cache, int64_t head, int64_t first_tile, int64_t tiles, int64_t rows,
                        bool with_tiles, AttentionScratch& scratch, Lookahead* ahead) {
  int64_t dim = cache.shape->padded_dim();
  const Operand* query = scratch.query.data();
#if defined(TIDEMILL_AMX)
  if (with_tiles && dim == 64) {
    if (rows > 16) return score_heads_of_64<true>(cache, head, first_tile, tiles, scratch, ahead);
    return score_heads_of_64<false>(cache, head, first_tile, tiles, scratch, ahead);
  }
#endif
  auto tile_at = [&](int64_t tile) { return (const uint8_t*)(cache.keys + cache.tile_offset(head, first_tile + tile)); };
  for (int64_t tile = 0; tile < tiles; tile += 2) {
    bool has_second = tile + 1 < tiles;
    const uint8_t* units[2] = {tile_at(tile), tile_at(has_second ? tile + 1 : tile)};
    float* to = scratch.scores.data() + tile * kTile;
    if (ahead != nullptr) ahead->advance(has_second ? 2 : 1);
#if defined(TIDEMILL_AMX)
    if (with_tiles) {
      if (ahead != nullptr) ahead->ask_for_tiles(has_second ? 2 : 1);
      auto columns = [&](int64_t group) { return units[0] + group * 16 * 64; };
      multiply_all_tiles<false, false>(query, dim * 2, rows, columns, units[1] - units[0], 64, dim / 32, to,
                                       kChunkTokens * 4);
      continue;
    }
#endif
    (void)with_tiles;
    beside_asking(ahead, [&](const auto& meanwhile) {
      each_block(rows, [&](int64_t first, int block) {
        with_rows(block, [&](auto constant) {
          constexpr int kRows = decltype(constant)::value;
          for (int unit = 0; unit < 2; unit += kMaxUnits) {
            Columns<kMaxUnits> at{{}, 64};
            for (int u = 0; u < kMaxUnits; u++) at.units[u] = units[unit + u];
            multiply_rows_bf16<kRows, kMaxUnits>(query + first * dim, dim, at, dim / 2,
                                                 to + first * kChunkTokens + unit * kUnit, kChunkTokens, nullptr, meanwhile);
          }
        });
      });
    });
  }
}

// Turn one row's scores of a chunk into weights and return what its earlier sums are to be multiplied with. `scale` and
// `most` are those of powers of two; `most` stays while no score exceeds it by much, since sums of weights up to
// 2^kSlack are as good. Columns that the row does not see may hold anything; their weights are zero.
inline float soften_row(const CacheShape& shape, const QueryRow& row, int64_t first_tile, int64_t tiles, float scale,
                        const float* scores, Operand* weights, float& most, VF& total) {
  const int64_t step = shape.tile_tokens(), used = tiles * kTile, size = (tiles + 1) / 2 * 2 * kTile;
  const VI lanes = iota();
  auto bounds = [&](int64_t column) {  // of visible lanes in the vector that starts there
    int64_t token = (first_tile + column / kTile) * step + column % kTile;
    int64_t in_tile = column < used ? step - column % kTile : 0;
    int64_t low = row.first - token, high = std::min(row.last - token, in_tile);
    return std::pair<int32_t, int32_t>((int32_t)std::clamp<int64_t>(low, 0, kLanes), (int32_t)std::clamp<int64_t>(high, 0, kLanes));
  };
  auto hide = [&](VF value, float hidden, int32_t low, int32_t high) {
    return ((lanes >= low) & (lanes < high)) ? value : splat(hidden);
  };
  // Pairs of vectors of which all lanes are seen; none where tiles have unused slots.
  constexpr int64_t kPair = 2 * kLanes;
  int64_t whole_from = size, whole_to = size;
  if (step == kTile) {
    int64_t first = first_tile * kTile;
    whole_from = std::min(round_up(std::max<int64_t>(row.first - first, 0), kPair), size);
    whole_to = std::max(whole_from, std::min(row.last - first, used) / kPair * kPair);
  }
  auto each_edge = [&](auto&& f) {
    for (int64_t column = 0; column < whole_from; column += kLanes) f(column, bounds(column));
    for (int64_t column = whole_to; column < size; column += kLanes) f(column, bounds(column));
  };

  VF peak = splat(kLowest), other = peak;
  each_edge([&](int64_t column, std::pair<int32_t, int32_t> seen) {
    if (seen.first < seen.second) peak = larger(peak, hide(load<VF>(scores + column), kLowest, seen.first, seen.second));
  });
  for (int64_t column = whole_from; column < whole_to; column += kPair) {
    peak = larger(peak, load<VF>(scores + column));
    other = larger(other, load<VF>(scores + column + kLanes));
  }
  peak = larger(peak, other) * scale;
  float factor = 1.0f;
  if (is_any_above(peak, most + kSlack)) {
    float before = most;
    most = largest(peak);
    factor = before <= kLowest ? 0.0f : std::exp2(before - most);
    total = total * factor;
  }

  VF sums = total, more{};
  each_edge([&](int64_t column, std::pair<int32_t, int32_t> seen) {
    VF weight{};
    if (seen.first < seen.second)
      weight = hide(power_of_two(load<VF>(scores + column) * scale - most), 0.0f, seen.first, seen.second);
    sums = sums + weight;
    store_operands(weights + column, weight);
  });
  for (int64_t column = whole_from; column < whole_to; column += kPair) {
    VF a = power_of_two(load<VF>(scores + column) * scale - most);
    VF b = power_of_two(load<VF>(scores + column + kLanes) * scale - most);
    sums = sums + a;
    more = more + b;
    store_two_operands(weights + column, a, b);
  }
  total = sums + more;
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
                         int64_t rows, bool with_tiles, AttentionScratch& scratch, Lookahead* ahead) {
  int64_t dim = cache.shape->padded_dim();
#if defined(TIDEMILL_AMX)
  if (with_tiles && cache.shape->block_size % (2 * kTile) == 0)
    return weigh_value_tiles(cache, head, first_tile, tiles, end, rows, scratch);
#endif
  (void)with_tiles;
  const uint8_t* places[kChunkTokens / kTile];
  for (int64_t tile = 0; tile < tiles; tile++)
    places[tile] = (const uint8_t*)values_at(cache, head, first_tile + tile, 1, end, scratch.tail.data() + tile * kTile * dim);
  beside_asking(ahead, [&](const auto& meanwhile) {
    add_over_tiles(scratch.weights.data(), kChunkTokens, rows, places, tiles, dim / kUnit, scratch.out.data(), dim, meanwhile);
  });
}

// Attend with up to 32 rows; sums are left in scratch.out, scratch.most and scratch.total, not yet divided.
// `ahead` is told of the progress where there is one.
inline void attend(const SequenceCache& cache, int64_t head, const QueryRow* rows, int64_t count, bool with_tiles,
                   AttentionScratch& scratch, Lookahead* ahead) {
  const CacheShape& shape = *cache.shape;
  int64_t dim = shape.padded_dim(), first = rows[0].first, last = rows[0].last;
  scratch.reserve(dim);
  for (int64_t r = 0; r < count; r++) {
    Operand* to = scratch.query.data() + r * dim;
    store_row_operands(to, rows[r].query, shape.head_dim);
    for (int64_t i = shape.head_dim; i < dim; i++) to[i] = 0;
    first = std::min(first, rows[r].first);
    last = std::max(last, rows[r].last);
    scratch.most[r] = kLowest;
    scratch.totals[r] = VF{};
  }
  std::memset(scratch.out.data(), 0, count * dim * sizeof(float));
  float scale = kLog2OfE / std::sqrt((float)shape.head_dim);
  int64_t step = shape.tile_tokens(), end_tile = (last + step - 1) / step;
  for (int64_t tile = first / step / 2 * 2; tile < end_tile; tile += kChunkTokens / kTile) {
    int64_t tiles = std::min<int64_t>(kChunkTokens / kTile, end_tile - tile);
    score_tiles(cache, head, tile, tiles, count, with_tiles, scratch, ahead);
    for (int64_t r = 0; r < count; r++) {
      float factor = soften_row(shape, rows[r], tile, tiles, scale, scratch.scores.data() + r * kChunkTokens,
                                scratch.weights.data() + r * kChunkTokens, scratch.most[r], scratch.totals[r]);
      if (factor != 1.0f) {
        float* out = scratch.out.data() + r * dim;
        for (int64_t i = 0; i < dim; i += kLanes) store(out + i, load<VF>(out + i) * factor);
      }
    }
    weigh_values(cache, head, tile, tiles, last, count, with_tiles, scratch, ahead);
  }
  for (int64_t r = 0; r < count; r++) scratch.total[r] = sum(scratch.totals[r]);
}

}  // namespace tidemill
