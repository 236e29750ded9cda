// How one step's attention is cut into pieces that threads take one after another; the same for every layer.
//
// Decodes whose first blocks are the same share one walk over them. A context that is long beside the others is cut so that
// all threads have work, and each thread begins with its largest pieces, so that none is left alone with one at the end.
// What a sequence then has in several parts is put together in a second phase. Knows block tables and lengths; touches no
// keys.
#pragma once

#include <algorithm>
#include <vector>

#include "attention.h"

namespace tidemill {

// The sequences of a step: sequence s owns flat tokens starts[s] .. starts[s + 1] and has lengths[s] in all.
struct Sequences {
  int64_t count;
  const int32_t* starts;
  const int32_t* lengths;
  const int32_t* row_index;    // into the block table
  const int32_t* block_table;  // [rows][stride]
  int64_t stride;

  const int32_t* blocks(int64_t sequence) const { return block_table + row_index[sequence] * stride; }
  int64_t tokens(int64_t sequence) const { return starts[sequence + 1] - starts[sequence]; }
};

struct Piece {
  enum Kind { kDecode, kChunk, kShared } kind;
  int32_t sequence;               // kShared: the first of `members` in `order`
  int32_t head, heads;            // key/value heads
  int32_t first_token, tokens;    // kChunk: of the sequence's new tokens; kShared: members
  int32_t begin, end;             // range of the context
  int32_t part;                   // kDecode: where the sums go, or -1 if they are all

  int64_t work() const { return (int64_t)(end - begin) * heads; }  // of a decode: tokens to attend to
};

class AttentionPlan {
 public:
  std::vector<Piece> pieces;
  std::vector<int32_t> order;       // members of shared pieces
  std::vector<int32_t> first_part;  // [sequences + 1]: parts of each decode; none if one piece does it all
  std::vector<int32_t> shared;      // [sequences]: tokens that a shared piece covers

  void make(const CacheShape& shape, const Sequences& batch, int64_t group, int64_t window, int threads) {
    pieces.clear();
    order.clear();
    shared.assign(batch.count, 0);
    first_part.assign(batch.count + 1, 0);
    int64_t decodes = 0, work = 0;
    for (int64_t s = 0; s < batch.count; s++) decodes += batch.tokens(s) == 1;
    if (window == 0 && decodes > 1) find_shared(shape, batch);
    for (int64_t s = 0; s < batch.count; s++)
      if (batch.tokens(s) == 1) work += batch.lengths[s] - first_token(batch, s, window);
    int64_t shares = threads == 1 ? 1 : kSharesPerThread * threads, share = (work + shares - 1) / shares;
    for (int64_t s = 0; s < batch.count; s++) {
      first_part[s + 1] = first_part[s];
      if (batch.tokens(s) == 1) add_decode(shape, batch, s, first_token(batch, s, window), decodes, share, threads);
    }
    int64_t decode_pieces = (int64_t)pieces.size();
    add_shared(shape, batch, group);
    for (int64_t s = 0; s < batch.count; s++)
      if (batch.tokens(s) > 1) add_chunk(shape, batch, s, group);
    sort_parts(decode_pieces, threads);
  }

 private:
  static constexpr int64_t kLeastShared = 64;  // tokens
  static constexpr int64_t kLeastSplit = 256;
  static constexpr int64_t kSharesPerThread = 4;

  // Return the first token that a decode's own pieces attend to.
  int32_t first_token(const Sequences& batch, int64_t s, int64_t window) const {
    return window > 0 ? std::max<int32_t>(shared[s], batch.lengths[s] - (int32_t)window) : shared[s];
  }

  // Note the longest run of first blocks that all sequences with the same first block have in common.
  void find_shared(const CacheShape& shape, const Sequences& batch) {
    for (int64_t s = 0; s < batch.count; s++)
      if (batch.tokens(s) == 1 && batch.lengths[s] > kLeastShared) order.push_back((int32_t)s);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return batch.blocks(a)[0] < batch.blocks(b)[0]; });
    std::vector<int32_t> kept;
    for (size_t first = 0, last; first < order.size(); first = last) {
      const int32_t* leader = batch.blocks(order[first]);
      int64_t common = (batch.lengths[order[first]] - 1) / shape.block_size;
      for (last = first + 1; last < order.size() && batch.blocks(order[last])[0] == leader[0]; last++) {
        common = std::min<int64_t>(common, (batch.lengths[order[last]] - 1) / shape.block_size);
        const int32_t* other = batch.blocks(order[last]);
        common = std::mismatch(leader, leader + common, other).first - leader;
      }
      if (last - first < 2 || common * shape.block_size < kLeastShared) continue;
      for (size_t i = first; i < last; i++) {
        shared[order[i]] = (int32_t)(common * shape.block_size);
        kept.push_back(order[i]);
      }
    }
    order = kept;
  }

  // In a crowd a sequence is one piece unless it is more than a share of the work; else each head is a piece, or several.
  void add_decode(const CacheShape& shape, const Sequences& batch, int64_t s, int32_t begin, int64_t decodes, int64_t share,
                  int threads) {
    int32_t end = batch.lengths[s], heads = (int32_t)shape.num_kv_heads;
    int64_t range = end - begin;
    bool is_crowd = decodes >= 2 * threads, is_one = is_crowd && (range <= share || range <= kLeastSplit);
    int64_t few = (2 * threads + decodes * heads - 1) / (decodes * heads), many = (range + share * heads - 1) / (share * heads);
    int64_t splits = is_one ? 1 : std::clamp<int64_t>(range / kLeastSplit, 1, std::max<int64_t>(1, is_crowd ? many : few));
    bool is_whole = splits == 1 && shared[s] == 0;
    first_part[s + 1] += is_whole ? 0 : (int32_t)(splits + (shared[s] > 0));
    for (int64_t split = 0; split < splits; split++) {
      int32_t part = is_whole ? -1 : first_part[s] + (int32_t)split;
      int32_t from = begin + (int32_t)(range * split / splits);
      int32_t to = begin + (int32_t)(range * (split + 1) / splits);
      for (int32_t head = 0; head < heads; head += is_one ? heads : 1)
        pieces.push_back({Piece::kDecode, (int32_t)s, head, is_one ? heads : 1, 0, 1, from, to, part});
    }
  }

  // Put the largest of the first `count` pieces first in each thread's own part (see pool.h); equals keep their order.
  void sort_parts(int64_t count, int threads) {
    int64_t all = (int64_t)pieces.size();
    for (int64_t thread = 0; thread < threads; thread++) {
      int64_t first = std::min(count, all * thread / threads), last = std::min(count, all * (thread + 1) / threads);
      std::stable_sort(pieces.begin() + first, pieces.begin() + last,
                       [](const Piece& a, const Piece& b) { return a.work() > b.work(); });
    }
  }

  void add_shared(const CacheShape& shape, const Sequences& batch, int64_t group) {
    int64_t most = std::max<int64_t>(1, kMostRows / group);
    for (size_t first = 0, last; first < order.size(); first = last) {
      int32_t block = batch.blocks(order[first])[0];
      for (last = first + 1; last < order.size() && batch.blocks(order[last])[0] == block;) last++;
      int64_t count = last - first, parts = (count + most - 1) / most;
      for (int64_t part = 0; part < parts; part++) {
        int32_t from = (int32_t)(first + count * part / parts), to = (int32_t)(first + count * (part + 1) / parts);
        for (int32_t head = 0; head < shape.num_kv_heads; head++)
          pieces.push_back({Piece::kShared, from, head, 1, 0, to - from, 0, shared[order[first]], -1});
      }
    }
  }

  void add_chunk(const CacheShape& shape, const Sequences& batch, int64_t s, int64_t group) {
    int64_t most = std::max<int64_t>(1, kMostRows / group), count = batch.tokens(s);
    for (int32_t head = 0; head < shape.num_kv_heads; head++) {  // one after the other, so that its keys stay near
      for (int64_t last = count; last > 0; last -= most) {       // the longest contexts first
        int64_t first = std::max<int64_t>(0, last - most);
        pieces.push_back({Piece::kChunk, (int32_t)s, head, 1, (int32_t)first, (int32_t)(last - first), 0, 0, -1});
      }
    }
  }
};

}  // namespace tidemill
