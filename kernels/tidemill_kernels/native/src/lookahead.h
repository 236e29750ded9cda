// Asks for cached keys and values before they are attended to.
//
// Knows where tiles lie and how far a walk has come; computes nothing.
#pragma once

#include <algorithm>

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
      lead_ = left_ = 0;
      values_ = nullptr;
    }
    is_in_next_ = false;
    has_next_ = next != nullptr;
    if (has_next_) next_ = *next;
  }

  // So many tiles are attended to now.
  void advance(int64_t tiles) { lead_ -= tiles * lines_per_tile(); }

  // Ask for the next so many cache lines, as far as the lead allows. A core keeps few requests open at a time and stands
  // still beyond them, so asking a little between multiplications is faster than much at once.
  void ask(int64_t lines) {
    for (lines = std::min(lines, kLead * lines_per_tile() - lead_); lines > 0;) {
      if (left_ == 0 && !find_run()) return;
      int64_t count = std::min(lines, left_);
      for (int64_t line = 0; line < count; line++) prefetch_l2(at_ + 64 * line);
      at_ += 64 * count;
      left_ -= count;
      lead_ += count;
      lines -= count;
    }
  }

  // Ask for what so many tiles take that are attended to at once, and a little more, so that a lead is won.
  void ask_for_tiles(int64_t tiles) { ask((tiles + kCatchUp) * lines_per_tile()); }

 private:
  static constexpr int64_t kLead = 24;  // tiles of keys and of values: 96 KiB of 64 numbers
  static constexpr int64_t kCatchUp = 2;

  // Of keys and of values together; the same for all walks, as they have one cache.
  int64_t lines_per_tile() const { return 2 * kTile * walk_.cache.shape->padded_dim() * (int64_t)sizeof(bf16) / 64; }

  // Go on to the values of the tiles whose keys were asked for, or to the next tiles' keys: two at a time where they lie
  // side by side.
  bool find_run() {
    if (values_ != nullptr) {
      at_ = values_;
      left_ = values_lines_;
      values_ = nullptr;
      return true;
    }
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
      return find_run();
    }
    bool is_pair = walk.cache.shape->block_size % (2 * kTile) == 0 && tile_ % 2 == 0 && tile_ + 1 < walk.last_tile;
    int64_t tiles = is_pair ? 2 : 1, place = walk.cache.tile_offset(head_, tile_);
    at_ = (const uint8_t*)(walk.cache.keys + place);
    values_ = (const uint8_t*)(walk.cache.values + place);
    left_ = values_lines_ = tiles * lines_per_tile() / 2;
    tile_ += tiles;
    return true;
  }

  Walk walk_{}, next_{};
  bool has_next_ = false, is_in_next_ = false;
  int64_t head_ = 0, tile_ = 0, lead_ = 0;  // the lead in cache lines
  const uint8_t *at_ = nullptr, *values_ = nullptr;  // what is asked for next, and the values that follow
  int64_t left_ = 0, values_lines_ = 0;
};

}  // namespace tidemill
