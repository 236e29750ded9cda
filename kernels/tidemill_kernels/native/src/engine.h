// One step of a model: tokens in, keys and values written, logits out, in one run of the thread pool.
//
// Knows layers and their order. Does not know requests, schedules or sampling.
#pragma once

#include <chrono>

#include "attention_plan.h"
#include "elementwise.h"
#include "model.h"
#include "ways.h"

namespace tidemill {

// Crosses the C interface: keep in step with native/library.py.
struct Step {
  int64_t num_tokens, num_sequences, num_logits;
  const int32_t *token_ids, *positions;        // [num_tokens]
  const int32_t *starts, *lengths, *row_index;  // [num_sequences + 1], [num_sequences], [num_sequences]
  const int32_t* block_table;                   // [rows][block_stride]
  int64_t block_stride;
  bf16* const* keys;    // one per layer
  bf16* const* values;
  const int32_t* logit_tokens;  // [num_logits]
  float* logits;                // [num_logits][logit_stride], or null where only the best are wanted
  int64_t logit_stride;
  int32_t* best;      // [num_logits]: the largest logit
  uint8_t* is_valid;  // [num_logits]: all numbers
};

enum Section { kEmbedSection, kNormSection, kQkvSection, kRopeSection, kAttentionSection, kOutSection, kGateUpSection,
               kDownSection, kHeadSection, kNumSections };

class Engine {
 public:
  explicit Engine(const ModelConfig& config, bool has_tiles)
      : model(config), pool(config.num_threads), ways(has_tiles), has_tiles_(has_tiles), threads_(pool.size()) {}

  Model model;
  Pool pool;
  Ways ways;
  double seconds[kNumSections] = {};

  void run(const Step& step) {
    reserve(step);
    const ModelConfig& config = model.config;
    Sequences batch{step.num_sequences, step.starts, step.lengths, step.row_index, step.block_table, step.block_stride};
    plan_.make(model.cache, batch, config.num_heads / config.num_kv_heads, config.sliding_window, pool.size());
    parts_.reserve(plan_.first_part.back() * config.num_heads * part_stride());
    find_sequences(batch);
    pool.run([&](int thread) {
#if defined(TIDEMILL_AMX)
      TileScope tiles;
#endif
      Clock clock{thread == 0 ? seconds : nullptr};
      embed(step);
      clock.end(kEmbedSection);
      for (int32_t layer = 0; layer < config.num_layers; layer++) run_layer(step, batch, layer, thread, clock);
      compute_logits(step, thread, clock);
    });
    choose_best(step);
  }

  // Compute one matrix for `rows` rows of whatever the buffers hold, for measurements.
  void run_matrix(int32_t layer, Part part, int kind, int64_t rows) {
    Matrix* matrix = model.matrix_of(layer, part);
    reserve_rows(rows);
    pool.run([&](int thread) {
#if defined(TIDEMILL_AMX)
      TileScope tiles;
#endif
      const bf16* wide = part == kDown ? gated_.data() : part == kOut ? attended_.data() : normed_.data();
      product(thread, kind, *matrix, wide, rows, [](int64_t, int64_t, int64_t, const float*) {});
    });
  }

 private:
  struct Thread {
    GemmScratch gemm;
    AttentionScratch attention;
    Buffer<float> best;
    Buffer<int32_t> best_id;
  };

  // Adds up what thread 0 spends between ends of phases.
  struct Clock {
    double* seconds;
    std::chrono::steady_clock::time_point last = std::chrono::steady_clock::now();
    void end(Section section) {
      if (seconds == nullptr) return;
      auto now = std::chrono::steady_clock::now();
      seconds[section] += std::chrono::duration<double>(now - last).count();
      last = now;
    }
  };

  bool has_tiles_;
  std::vector<Thread> threads_;
  AttentionPlan plan_;
  std::vector<int32_t> sequence_of_;  // [num_tokens]
  Buffer<float> hidden_, qkv_, parts_;
  Buffer<bf16> normed_, attended_, gated_;
  Buffer<uint8_t> narrow_;
  Buffer<float> narrow_scales_, group_sums_;
  int64_t rows_ = 0;

  int64_t qkv_stride() const { return round_up(model.qkv_size(), kPanel); }
  int64_t attended_stride() const { return round_up(model.query_size(), kInputPadding); }
  int64_t gated_stride() const { return round_up(model.config.intermediate_size, kInputPadding); }
  int64_t part_stride() const { return model.cache.padded_dim() + 16; }
  int64_t group() const { return model.config.num_heads / model.config.num_kv_heads; }

  void reserve_rows(int64_t count) {
    int64_t rows = round_up(count, 32) + 32, widest = std::max({model.hidden_stride(), attended_stride(), gated_stride()});
    if (rows <= rows_) return;
    rows_ = 0;  // where memory is refused half-way, some are gone
    hidden_.reserve(rows * model.hidden_stride());
    normed_.reserve(rows * model.hidden_stride());
    qkv_.reserve(rows * qkv_stride());
    attended_.reserve(rows * attended_stride());
    gated_.reserve(rows * gated_stride());
    narrow_.reserve(rows * widest);
    narrow_scales_.reserve(rows * widest / kGroup);
    group_sums_.reserve(rows * widest / kGroup);
    rows_ = rows;
  }

  void reserve(const Step& step) {
    reserve_rows(std::max(step.num_tokens, step.num_logits));
    for (Thread& thread : threads_) {
      thread.best.reserve(step.num_logits);
      thread.best_id.reserve(step.num_logits);
      for (int64_t i = 0; i < step.num_logits; i++) thread.best.data()[i] = kLowest;
      for (int64_t i = 0; i < step.num_logits; i++) thread.best_id.data()[i] = 0;
    }
  }

  void find_sequences(const Sequences& batch) {
    sequence_of_.resize(batch.starts[batch.count]);
    for (int64_t s = 0; s < batch.count; s++)
      for (int32_t t = batch.starts[s]; t < batch.starts[s + 1]; t++) sequence_of_[t] = (int32_t)s;
  }

  int64_t grain(int64_t count) const { return std::max<int64_t>(1, count / (pool.size() * 4)); }

  void embed(const Step& step) {
    int64_t stride = model.hidden_stride();
    pool.each(step.num_tokens, grain(step.num_tokens), [&](int64_t t) {
      const bf16* from = model.embedding + step.token_ids[t] * stride;
      for (int64_t i = 0; i < stride; i += kLanes) store(hidden_.data() + t * stride + i, load_bf16(from + i));
    });
  }

  void normalise(const float* weight, int64_t count, const int32_t* tokens = nullptr) {
    int64_t stride = model.hidden_stride();
    pool.each(count, grain(count), [&](int64_t i) {
      int64_t token = tokens == nullptr ? i : tokens[i];
      rms_norm(hidden_.data() + token * stride, weight, model.config.hidden_size, model.config.eps, normed_.data() + i * stride);
    });
  }

  // A linear layer: turn the rows into whole numbers where the matrix wants them, then multiply.
  template <typename Take>
  void product(int thread, int kind, const Matrix& matrix, const bf16* wide, int64_t rows, Take&& take) {
    Activations in{wide, nullptr, nullptr, nullptr, rows};
    Way way = ways.of(kind, rows);
    if ((matrix.format == Format::kInt8 || matrix.format == Format::kInt4) && !is_widened(matrix, rows, way)) {
      int64_t stride = matrix.shape.padded_inputs(), groups = stride / kGroup;
      bool is_int4 = matrix.format == Format::kInt4;
      uint8_t* narrow = narrow_.data();
      float *scales = narrow_scales_.data(), *sums = group_sums_.data();
      pool.each(rows, grain(rows), [&](int64_t row) {
        const bf16* from = wide + row * stride;
        if (is_int4) narrow_groups(from, stride, narrow + row * stride, scales + row * groups, sums + row * groups);
        else scales[row] = narrow_row(from, stride, 128, narrow + row * stride);
      });
      in = {wide, narrow, scales, sums, rows};
    }
    gemm(pool, threads_[thread].gemm, in, matrix, way, take);
  }

  void run_layer(const Step& step, const Sequences& batch, int32_t index, int thread, Clock& clock) {
    const Layer& layer = model.layers[index];
    int64_t tokens = step.num_tokens;
    normalise(layer.input_norm, tokens);
    clock.end(kNormSection);
    product(thread, 0, layer.qkv, normed_.data(), tokens, [&](int64_t panel, int64_t first, int64_t rows, const float* sums) {
      for (int64_t r = 0; r < rows; r++)
        std::memcpy(qkv_.data() + (first + r) * qkv_stride() + panel * kPanel, sums + r * kPanel, kPanel * sizeof(float));
    });
    clock.end(kQkvSection);
    pool.each(tokens, grain(tokens), [&](int64_t t) { place_token(step, batch, layer, index, t); });
    clock.end(kRopeSection);
    attend_all(step, batch, index, thread);
    clock.end(kAttentionSection);
    auto add_to_hidden = [&](int64_t panel, int64_t first, int64_t rows, const float* sums) {
      for (int64_t r = 0; r < rows; r++)
        add_panel_row(sums + r * kPanel, hidden_.data() + (first + r) * model.hidden_stride() + panel * kPanel);
    };
    product(thread, 1, layer.out, attended_.data(), tokens, add_to_hidden);
    clock.end(kOutSection);
    normalise(layer.mlp_norm, tokens);
    clock.end(kNormSection);
    product(thread, 2, layer.gate_up, normed_.data(), tokens, [&](int64_t panel, int64_t first, int64_t rows, const float* sums) {
      for (int64_t r = 0; r < rows; r++)
        gate_panel_row(sums + r * kPanel, gated_.data() + (first + r) * gated_stride() + panel * (kPanel / 2));
    });
    clock.end(kGateUpSection);
    product(thread, 3, layer.down, gated_.data(), tokens, add_to_hidden);
    clock.end(kDownSection);
  }

  // Finish a token's queries and keys (bias, head norms, rotation) and put its keys and values into the cache.
  void place_token(const Step& step, const Sequences& batch, const Layer& layer, int32_t index, int64_t token) {
    const ModelConfig& config = model.config;
    const CacheShape& cache = model.cache;
    int64_t dim = config.head_dim, position = step.positions[token];
    float* qkv = qkv_.data() + token * qkv_stride();
    if (layer.qkv_bias != nullptr)
      for (int64_t i = 0; i < model.qkv_size(); i++) qkv[i] += layer.qkv_bias[i];
    const float* cosine = model.cosines + position * (dim / 2);
    const float* sine = model.sines + position * (dim / 2);
    for (int64_t head = 0; head < config.num_heads + config.num_kv_heads; head++) {
      const float* norm = head < config.num_heads ? layer.query_norm : layer.key_norm;
      if (norm != nullptr) rms_norm_in_place(qkv + head * dim, norm, dim, config.eps);
      rotate(qkv + head * dim, cosine, sine, dim / 2);
    }
    int64_t block = batch.blocks(sequence_of_[token])[position / cache.block_size], slot = position % cache.block_size;
    alignas(64) bf16 key[kMostHeadDim], value[kMostHeadDim];
    for (int64_t head = 0; head < config.num_kv_heads; head++) {
      int64_t at = block * cache.block_elements() + head * cache.head_elements();
      store_row_bf16(key, qkv + model.query_size() + head * dim, dim);
      store_row_bf16(value, qkv + model.query_size() + model.kv_size() + head * dim, dim);
      write_key(cache, step.keys[index] + at, slot, key);
      write_value(cache, step.values[index] + at, slot, value);
    }
  }

  void attend_all(const Step& step, const Sequences& batch, int32_t index, int thread) {
    AttentionScratch& scratch = threads_[thread].attention;
    Lookahead ahead;
    int64_t count = (int64_t)plan_.pieces.size();
    auto cache_of = [&](const Piece& piece) {
      int32_t sequence = piece.kind == Piece::kShared ? plan_.order[piece.sequence] : piece.sequence;
      return SequenceCache{&model.cache, step.keys[index], step.values[index], batch.blocks(sequence)};
    };
    auto walk_of = [&](const Piece& piece) {
      int64_t tokens = model.cache.tile_tokens();
      return Walk{cache_of(piece), piece.head, piece.head + piece.heads, piece.begin / tokens / 2 * 2, (piece.end + tokens - 1) / tokens};
    };
    pool.each(count, 1, [&](int64_t i) {
      const Piece& piece = plan_.pieces[i];
      bool is_read_once = piece.kind != Piece::kChunk;
      if (is_read_once) {
        bool has_next = i + 1 < count && plan_.pieces[i + 1].kind != Piece::kChunk;
        Walk next = has_next ? walk_of(plan_.pieces[i + 1]) : Walk{};
        ahead.begin(walk_of(piece), has_next ? &next : nullptr);
      }
      SequenceCache cache = cache_of(piece);
      for (int32_t head = piece.head; head < piece.head + piece.heads; head++)
        attend_piece(batch, cache, piece, head, scratch, is_read_once ? &ahead : nullptr);
    });
    if (plan_.first_part.back() > 0)
      pool.each(batch.count, 1, [&](int64_t s) { join_parts(batch, s); });
  }

  const float* query_of(int64_t token, int64_t head) const {
    return qkv_.data() + token * qkv_stride() + head * model.config.head_dim;
  }

  void attend_piece(const Sequences& batch, const SequenceCache& cache, const Piece& piece, int32_t head,
                    AttentionScratch& scratch, Lookahead* ahead) {
    QueryRow rows[kMostRows];
    int64_t count = 0, dim = model.cache.padded_dim(), window = model.config.sliding_window;
    for (int32_t i = 0; i < piece.tokens; i++) {
      int32_t sequence = piece.kind == Piece::kShared ? plan_.order[piece.sequence + i] : piece.sequence;
      int64_t token = batch.starts[sequence] + piece.first_token + (piece.kind == Piece::kShared ? 0 : i);
      int64_t first = piece.begin, last = piece.end;
      if (piece.kind == Piece::kChunk) {
        last = batch.lengths[sequence] - batch.tokens(sequence) + piece.first_token + i + 1;
        first = window > 0 ? std::max<int64_t>(0, last - window) : 0;
      }
      for (int64_t g = 0; g < group(); g++) rows[count++] = {query_of(token, head * group() + g), first, last};
    }
    attend(cache, head, rows, count, has_tiles_, scratch, ahead);
    for (int64_t r = 0; r < count; r++) {
      int32_t member = (int32_t)(r / group());
      int32_t sequence = piece.kind == Piece::kShared ? plan_.order[piece.sequence + member] : piece.sequence;
      int64_t query_head = head * group() + r % group();
      const float* sums = scratch.out.data() + r * dim;
      int64_t part = piece.kind == Piece::kShared ? plan_.first_part[sequence + 1] - 1 : piece.part;
      if (piece.kind == Piece::kChunk || part < 0) {
        int64_t token = batch.starts[sequence] + piece.first_token + (piece.kind == Piece::kChunk ? member : 0);
        write_attended(token, query_head, sums, 1.0f / scratch.total[r]);
      } else {
        float* to = parts_.data() + (part * model.config.num_heads + query_head) * part_stride();
        to[0] = scratch.most[r];
        to[1] = scratch.total[r];
        std::memcpy(to + 16, sums, dim * sizeof(float));
      }
    }
  }

  void write_attended(int64_t token, int64_t head, const float* sums, float factor) {
    bf16* to = attended_.data() + token * attended_stride() + head * model.config.head_dim;
    store_row_bf16(to, sums, model.config.head_dim, factor);
  }

  // Put together the parts of one decode: sums weighed by how their maxima differ.
  void join_parts(const Sequences& batch, int64_t sequence) {
    int64_t first = plan_.first_part[sequence], last = plan_.first_part[sequence + 1], heads = model.config.num_heads;
    if (first == last) return;
    alignas(64) float sums[kMostHeadDim];
    for (int64_t head = 0; head < heads; head++) {
      float most = kLowest, total = 0;
      auto part_of = [&](int64_t part) { return parts_.data() + (part * heads + head) * part_stride(); };
      for (int64_t part = first; part < last; part++) most = std::max(most, part_of(part)[0]);
      std::memset(sums, 0, sizeof sums);
      for (int64_t part = first; part < last; part++) {
        float factor = std::exp2(part_of(part)[0] - most);
        total += factor * part_of(part)[1];
        for (int64_t i = 0; i < model.config.head_dim; i++) sums[i] += factor * part_of(part)[16 + i];
      }
      write_attended(batch.starts[sequence], head, sums, 1.0f / total);
    }
  }

  void compute_logits(const Step& step, int thread, Clock& clock) {
    if (step.num_logits == 0) return;
    normalise(model.final_norm, step.num_logits, step.logit_tokens);
    clock.end(kNormSection);
    float* best = threads_[thread].best.data();
    int32_t* best_id = threads_[thread].best_id.data();
    int64_t vocab = model.config.vocab_size;
    product(thread, 4, model.head, normed_.data(), step.num_logits, [&](int64_t panel, int64_t first, int64_t rows, const float* sums) {
      int64_t columns = std::min<int64_t>(kPanel, vocab - panel * kPanel);
      for (int64_t r = 0; r < rows; r++) {
        const float* row = sums + r * kPanel;
        if (step.logits != nullptr)
          std::memcpy(step.logits + (first + r) * step.logit_stride + panel * kPanel, row, columns * sizeof(float));
        VF most = load<VF>(row);
        for (int i = kLanes; i < kPanel; i += kLanes) most = larger(most, load<VF>(row + i));
        // Padding counts as zero here, so a larger value is only a hint; the columns themselves decide.
        if (largest(most) < best[first + r]) continue;
        for (int64_t i = 0; i < columns; i++) {
          int32_t id = (int32_t)(panel * kPanel + i);  // panels come in any order
          if (row[i] < best[first + r] || (row[i] == best[first + r] && id >= best_id[first + r])) continue;
          best[first + r] = row[i];
          best_id[first + r] = id;
        }
      }
    });
    clock.end(kHeadSection);
  }

  // Of the threads' best, take the largest, and of equals the first; a row is valid if its last hidden state is numbers.
  void choose_best(const Step& step) {
    for (int64_t i = 0; i < step.num_logits; i++) {
      float best = kLowest;
      int32_t id = 0;
      for (Thread& thread : threads_) {
        float value = thread.best.data()[i];
        int32_t candidate = thread.best_id.data()[i];
        if (value > best || (value == best && candidate < id)) {
          best = value;
          id = candidate;
        }
      }
      step.best[i] = id;
      float check = 0;
      for (int64_t k = 0; k < model.config.hidden_size; k++) check += 0.0f * to_float(normed_.data()[i * model.hidden_stride() + k]);
      step.is_valid[i] = check == 0.0f;
    }
  }
};

}  // namespace tidemill
