// Asks for cached keys and values before they are attended to.
//
// Knows where tiles lie and how far a walk has come; computes nothing.
#pragma once

#include "kv_cache.h"

namespace tidemill {

// A range of one sequence's context, of some key/value heads one after the other.
struct Walk {
  SequenceCache cache;
  int64_t head, last_head, first_tile, last_tile;
};

// Asks for keys and values some tiles before they are attended to: blocks lie anywhere, so no hardware guesses the next
// one, and what a core asks for too late it waits for. One per thread and layer.
class Lookahead {
 public:
  // Begin with a walk, followed, as far as is known, by another one.
  void begin(const Walk& walk, const Walk* next) {
    bool is_expected = has_next_ && is_in_next_ && walk.cache.blocks == next_.cache.blocks && walk.head == next_.head &&
                       walk.first_tile == next_.first_tile;
    if (is_expected) {
      walk_ = next_;
    } else {
      walk_ = walk;
      head_ = walk.head;
      tile_ = walk.first_tile;
      lead_ = 0;
    }
    is_in_next_ = false;
    has_next_ = next != nullptr;
    if (has_next_) next_ = *next;
  }

  // So many tiles are attended to now.
  void advance(int64_t tiles) {
    lead_ -= tiles;
    for (int64_t budget = tiles + kCatchUp; lead_ < kLead && budget > 0; budget--)
      if (!fetch()) return;
  }

 private:
  static constexpr int64_t kLead = 24;  // tiles of keys and of values: 96 KiB of 64 numbers
  static constexpr int64_t kCatchUp = 2;

  bool fetch() {
    const Walk& walk = is_in_next_ ? next_ : walk_;
    if (tile_ >= walk.last_tile) {
      tile_ = walk.first_tile;
      head_++;
    }
    if (head_ >= walk.last_head) {
      if (is_in_next_ || !has_next_) return false;
      is_in_next_ = true;
      head_ = next_.head;
      tile_ = next_.first_tile;
      return fetch();
    }
    int64_t at = walk.cache.tile_offset(head_, tile_), bytes = kTile * walk.cache.shape->padded_dim() * (int64_t)sizeof(bf16);
    const uint8_t *keys = (const uint8_t*)(walk.cache.keys + at), *values = (const uint8_t*)(walk.cache.values + at);
    for (int64_t line = 0; line < bytes; line += 64) prefetch_l2(keys + line);
    for (int64_t line = 0; line < bytes; line += 64) prefetch_l2(values + line);
    tile_++;
    lead_++;
    return true;
  }

  Walk walk_{}, next_{};
  bool has_next_ = false, is_in_next_ = false;
  int64_t head_ = 0, tile_ = 0, lead_ = 0;
};

}  // namespace tidemill
