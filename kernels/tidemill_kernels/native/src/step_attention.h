// One layer's attention of a step: all threads carry out the plan's pieces, then put parts of a decode together.
//
// Knows plans, and where queries and results lie. Does not know what comes before or after.
#pragma once

#include "attention_plan.h"
#include "model.h"

namespace tidemill {

// What one layer's attention reads and writes; a token's queries lie in front of its row of `qkv`.
struct AttentionOperands {
  const bf16 *keys, *values;
  const float* qkv;
  int64_t qkv_stride;
  Operand* attended;
  int64_t attended_stride;
};

class StepAttention {
 public:
  StepAttention(const ModelConfig& config, const CacheShape& cache, bool has_tiles)
      : config_(config), cache_(cache), has_tiles_(has_tiles) {}

  // Plan a step; the plan serves all its layers.
  void plan(const Sequences& batch, int threads) {
    plan_.make(cache_, batch, group(), config_.sliding_window, threads);
    parts_.reserve(plan_.first_part.back() * config_.num_heads * part_stride());
  }

  // Within a run of the pool.
  void run(Pool& pool, AttentionScratch& scratch, const Sequences& batch, const AttentionOperands& operands) {
    Lookahead ahead;
    int64_t count = (int64_t)plan_.pieces.size(), tokens = cache_.tile_tokens();
    auto walk_of = [&](const Piece& piece, int64_t heads_done) {
      SequenceCache cache = cache_of(batch, operands, piece);
      return Walk{cache, piece.head + heads_done, piece.head + piece.heads, piece.begin / tokens / 2 * 2, (piece.end + tokens - 1) / tokens};
    };
    pool.each_in_steps(count, [&](int64_t i, Turn& turn) {
      const Piece& piece = plan_.pieces[i];
      bool is_read_once = piece.kind != Piece::kChunk;
      if (is_read_once) {
        bool has_next = i + 1 < count && plan_.pieces[i + 1].kind != Piece::kChunk;
        Walk next = has_next ? walk_of(plan_.pieces[i + 1], 0) : Walk{};
        ahead.begin(walk_of(piece, turn.first()), has_next ? &next : nullptr);
      }
      for (int32_t head = piece.head + (int32_t)turn.first(); head < piece.head + piece.heads; head++)
        if (!attend_piece(batch, operands, piece, head, scratch, is_read_once ? &ahead : nullptr, turn)) return;
    });
    if (plan_.first_part.back() > 0)
      pool.each(batch.count, 1, [&](int64_t sequence) { join_parts(batch, operands, sequence); });
  }

 private:
  const ModelConfig& config_;
  const CacheShape& cache_;
  const bool has_tiles_;
  AttentionPlan plan_;
  Buffer<float> parts_;  // [parts][heads]: a maximum, a sum, and from number 16 on the weighted values

  int64_t group() const { return config_.num_heads / config_.num_kv_heads; }
  int64_t part_stride() const { return cache_.padded_dim() + 16; }
  float* part_of(int64_t part, int64_t head) const { return parts_.data() + (part * config_.num_heads + head) * part_stride(); }

  // Return the sequence whose token is a piece's number `member`.
  int32_t sequence_of(const Piece& piece, int32_t member) const {
    return piece.kind == Piece::kShared ? plan_.order[piece.sequence + member] : piece.sequence;
  }

  SequenceCache cache_of(const Sequences& batch, const AttentionOperands& operands, const Piece& piece) const {
    return {&cache_, operands.keys, operands.values, batch.blocks(sequence_of(piece, 0))};
  }

  // List the queries of a piece that share a key/value head; return how many.
  int64_t list_rows(const Sequences& batch, const AttentionOperands& operands, const Piece& piece, int32_t head,
                    QueryRow* rows) const {
    int64_t count = 0, window = config_.sliding_window;
    for (int32_t i = 0; i < piece.tokens; i++) {
      int32_t sequence = sequence_of(piece, i);
      int64_t token = batch.starts[sequence] + piece.first_token + (piece.kind == Piece::kShared ? 0 : i);
      int64_t first = piece.begin, last = piece.end;
      if (piece.kind == Piece::kChunk) {
        last = batch.lengths[sequence] - batch.tokens(sequence) + piece.first_token + i + 1;
        first = window > 0 ? std::max<int64_t>(0, last - window) : 0;
      }
      const float* queries = operands.qkv + token * operands.qkv_stride + head * group() * config_.head_dim;
      for (int64_t g = 0; g < group(); g++) rows[count++] = {queries + g * config_.head_dim, first, last};
    }
    return count;
  }

  // Attend with one head; false if this is no longer this thread's to do.
  bool attend_piece(const Sequences& batch, const AttentionOperands& operands, const Piece& piece, int32_t head,
                    AttentionScratch& scratch, Lookahead* ahead, Turn& turn) {
    QueryRow rows[kMostRows];
    int64_t count = list_rows(batch, operands, piece, head, rows);
    attend(cache_of(batch, operands, piece), head, rows, count, has_tiles_, scratch, ahead);
    return turn.write([&] { write_piece(batch, operands, piece, head, count, scratch); });
  }

  // Write out what the scratch holds for so many rows: results, or parts that join_parts puts together.
  void write_piece(const Sequences& batch, const AttentionOperands& operands, const Piece& piece, int32_t head, int64_t count,
                   const AttentionScratch& scratch) {
    int64_t dim = cache_.padded_dim();
    for (int64_t r = 0; r < count; r++) {
      int32_t member = (int32_t)(r / group());
      int32_t sequence = sequence_of(piece, member);
      int64_t query_head = head * group() + r % group();
      const float* sums = scratch.out.data() + r * dim;
      int64_t part = piece.kind == Piece::kShared ? plan_.first_part[sequence + 1] - 1 : piece.part;
      if (piece.kind == Piece::kChunk || part < 0) {
        int64_t token = batch.starts[sequence] + piece.first_token + (piece.kind == Piece::kChunk ? member : 0);
        write_attended(operands, token, query_head, sums, 1.0f / scratch.total[r]);
      } else {
        float* to = part_of(part, query_head);
        to[0] = scratch.most[r];
        to[1] = scratch.total[r];
        std::memcpy(to + 16, sums, dim * sizeof(float));
      }
    }
  }

  void write_attended(const AttentionOperands& operands, int64_t token, int64_t head, const float* sums, float factor) const {
    Operand* to = operands.attended + token * operands.attended_stride + head * config_.head_dim;
    store_row_operands(to, sums, config_.head_dim, factor);
  }

  // Put together the parts of one decode: sums weighed by how their maxima differ.
  void join_parts(const Sequences& batch, const AttentionOperands& operands, int64_t sequence) const {
    int64_t first = plan_.first_part[sequence], last = plan_.first_part[sequence + 1];
    if (first == last) return;
    alignas(64) float sums[kMostHeadDim];
    for (int64_t head = 0; head < config_.num_heads; head++) {
      float most = kLowest, total = 0;
      for (int64_t part = first; part < last; part++) most = std::max(most, part_of(part, head)[0]);
      std::memset(sums, 0, sizeof sums);
      for (int64_t part = first; part < last; part++) {
        const float* from = part_of(part, head);
        float factor = std::exp2(from[0] - most);
        total += factor * from[1];
        for (int64_t i = 0; i < config_.head_dim; i++) sums[i] += factor * from[16 + i];
      }
      write_attended(operands, batch.starts[sequence], head, sums, 1.0f / total);
    }
  }
};

}  // namespace tidemill
