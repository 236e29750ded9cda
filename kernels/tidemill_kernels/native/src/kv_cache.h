// How keys and values lie inside a block of the paged cache, so that both vector and tile kernels read them in place.
//
// A block is `[kv head][slots * padded head size]` bf16. Keys: tiles of 16 slots, `[head size / 2][16][2]`. Values:
// pairs of slots, `[slots / 2][head size][2]`. Head sizes are padded to 32, slots to 16; a new
// cache is all zeros, and padding stays so. Knows places; attends nothing.
#pragma once

#include "memory.h"
#include "simd.h"

namespace tidemill {

inline constexpr int kTile = 16;
inline constexpr int kMostHeadDim = 512;

struct CacheShape {
  int64_t block_size, num_kv_heads, head_dim;

  int64_t padded_dim() const { return round_up(head_dim, 32); }
  int64_t slots() const { return round_up(block_size, kTile); }
  int64_t head_elements() const { return slots() * padded_dim(); }
  int64_t block_elements() const { return num_kv_heads * head_elements(); }
  // Tokens of a sequence that share a tile: 16, or a whole small block.
  int64_t tile_tokens() const { return block_size < kTile ? block_size : kTile; }
};

// Key and value as bf16, `head_dim` each.
inline void write_key(const CacheShape& shape, bf16* block_head, int64_t slot, const bf16* key) {
  bf16* to = block_head + slot / kTile * (kTile * shape.padded_dim()) + slot % kTile * 2;
  for (int64_t i = 0; i < shape.head_dim; i += 2) std::memcpy(to + i * kTile, key + i, 2 * sizeof(bf16));
}

inline void write_value(const CacheShape& shape, bf16* block_head, int64_t slot, const bf16* value) {
  bf16* to = block_head + slot / 2 * (2 * shape.padded_dim()) + slot % 2;
  for (int64_t i = 0; i < shape.head_dim; i++) to[i * 2] = value[i];
}

// One layer's cache and one sequence's way through it.
struct SequenceCache {
  const CacheShape* shape;
  const bf16* keys;
  const bf16* values;
  const int32_t* blocks;

  // The place of the tile that holds token `tile * tile_tokens`; keys and values lie at the same distance.
  int64_t tile_offset(int64_t head, int64_t tile) const {
    int64_t token = tile * shape->tile_tokens();
    int64_t block = blocks[token / shape->block_size], slot = token % shape->block_size;
    return block * shape->block_elements() + head * shape->head_elements() + slot * shape->padded_dim();
  }
};

}  // namespace tidemill
