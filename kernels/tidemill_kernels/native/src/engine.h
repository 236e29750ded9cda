// One step of a model: tokens in, keys and values written, logits out, in one run of the thread pool.
//
// Knows layers and their order. Does not know requests, schedules or sampling.
#pragma once

#include <chrono>

#include "elementwise.h"
#include "model.h"
#include "step_attention.h"
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
  const int32_t* logit_tokens;  // [num_logits], rising
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
      : model(config),
        pool(config.num_threads),
        ways(has_tiles),
        threads_(pool.size()),
        attention_(model.config, model.cache, has_tiles) {}

  Model model;
  Pool pool;
  Ways ways;
  double seconds[kNumSections] = {};

  void run(const Step& step) {
    reserve(step);
    const ModelConfig& config = model.config;
    Sequences batch{step.num_sequences, step.starts, step.lengths, step.row_index, step.block_table, step.block_stride};
    attention_.plan(batch, pool.size());
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
      const Operand* wide = part == kDown ? gated_.data() : part == kOut ? attended_.data() : normed_.data();
      product(thread, kind, *matrix, wide, rows, nullptr, [](int64_t, int64_t, int64_t, const float*) {});
    });
  }

 private:
  // Of so few rows each thread prepares what it multiplies by itself: that takes less than waiting for one another.
  static constexpr int64_t kFewRows = 4;
  static constexpr int64_t kFewRowsPadded = 32;

  // A linear layer's operand as whole numbers, see Activations.
  struct Narrow {
    Buffer<uint8_t> numbers;
    Buffer<float> scales, group_sums;

    void reserve(int64_t count) {
      numbers.reserve(count * sizeof(Whole));
      scales.reserve(count / kGroup);
      group_sums.reserve(count / kGroup);
    }
  };

  struct Thread {
    GemmScratch gemm;
    Buffer<Operand> normed;  // of a few rows
    Narrow narrow;
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

  std::vector<Thread> threads_;
  StepAttention attention_;
  std::vector<int32_t> sequence_of_;  // [num_tokens]
  Buffer<float> hidden_, qkv_;
  Buffer<Operand> normed_, attended_, gated_;
  Narrow narrow_;
  int64_t rows_ = 0;

  int64_t qkv_stride() const { return round_up(model.qkv_size(), kPanel); }
  int64_t attended_stride() const { return round_up(model.query_size(), kInputPadding); }
  int64_t gated_stride() const { return round_up(model.config.intermediate_size, kInputPadding); }

  AttentionOperands operands_of(const Step& step, int32_t layer) const {
    return {step.keys[layer], step.values[layer], qkv_.data(), qkv_stride(), attended_.data(), attended_stride()};
  }

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
    for (Thread& thread : threads_) {
      thread.normed.reserve(kFewRowsPadded * model.hidden_stride());
      thread.narrow.reserve(kFewRowsPadded * widest);
    }
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

  void normalise_row(const float* weight, int64_t token, Operand* to) const {
    rms_norm(hidden_.data() + token * model.hidden_stride(), weight, model.config.hidden_size, model.config.eps, to);
  }

  // Normalise every token and return where the rows lie.
  const Operand* normalise(int thread, const float* weight, int64_t count) {
    int64_t stride = model.hidden_stride();
    if (count > kFewRows) {
      pool.each(count, grain(count), [&](int64_t i) { normalise_row(weight, i, normed_.data() + i * stride); });
      return normed_.data();
    }
    Operand* own = threads_[thread].normed.data();
    for (int64_t i = 0; i < count; i++) normalise_row(weight, i, own + i * stride);
    return own;
  }

  // Turn a row into whole numbers as a matrix wants them.
  static void narrow(const Matrix& matrix, const Operand* from, int64_t row, const Narrow& to) {
    int64_t stride = matrix.shape.padded_inputs(), groups = stride / kGroup;
    if (matrix.format == Format::kInt4)
      narrow_groups(from + row * stride, stride, to.numbers.data() + row * stride, to.scales.data() + row * groups, to.group_sums.data() + row * groups);
    else to.scales.data()[row] = narrow_row(from + row * stride, stride, (Whole*)to.numbers.data() + row * stride);
  }

  // A linear layer: turn the rows into whole numbers where the matrix wants them, then multiply; `following` comes next.
  template <typename Take>
  void product(int thread, int kind, const Matrix& matrix, const Operand* wide, int64_t rows, const Matrix* following, Take&& take) {
    Activations in{wide, nullptr, nullptr, nullptr, rows};
    Way way = ways.of(kind, rows);
    if ((matrix.format == Format::kInt8 || matrix.format == Format::kInt4) && !is_widened(matrix, way)) {
      bool is_few = rows <= kFewRows;
      const Narrow& to = is_few ? threads_[thread].narrow : narrow_;
      if (is_few) for (int64_t row = 0; row < rows; row++) narrow(matrix, wide, row, to);
      else pool.each(rows, grain(rows), [&](int64_t row) { narrow(matrix, wide, row, to); });
      in = {wide, to.numbers.data(), to.scales.data(), to.group_sums.data(), rows};
    }
    gemm(pool, threads_[thread].gemm, in, matrix, following, way, take);
  }

  void run_layer(const Step& step, const Sequences& batch, int32_t index, int thread, Clock& clock) {
    const Layer& layer = model.layers[index];
    const Matrix* next_qkv = index + 1 < model.config.num_layers ? &model.layers[index + 1].qkv : nullptr;
    int64_t tokens = step.num_tokens;
    const Operand* normed = normalise(thread, layer.input_norm, tokens);
    clock.end(kNormSection);
    product(thread, 0, layer.qkv, normed, tokens, &layer.out, [&](int64_t panel, int64_t first, int64_t rows, const float* sums) {
      for (int64_t r = 0; r < rows; r++)
        std::memcpy(qkv_.data() + (first + r) * qkv_stride() + panel * kPanel, sums + r * kPanel, kPanel * sizeof(float));
    });
    clock.end(kQkvSection);
    pool.each(tokens, grain(tokens), [&](int64_t t) { place_token(step, batch, layer, index, t); });
    clock.end(kRopeSection);
    bool is_last = index == model.config.num_layers - 1;
    if (is_last && step.num_logits == 0) return;
    attention_.run(pool, threads_[thread].attention, batch, operands_of(step, index));
    clock.end(kAttentionSection);
    if (is_last) {
      keep_wanted(step);
      tokens = step.num_logits;
    }
    auto add_to_hidden = [&](int64_t panel, int64_t first, int64_t rows, const float* sums) {
      for (int64_t r = 0; r < rows; r++)
        add_panel_row(sums + r * kPanel, hidden_.data() + (first + r) * model.hidden_stride() + panel * kPanel);
    };
    product(thread, 1, layer.out, attended_.data(), tokens, &layer.gate_up, add_to_hidden);
    clock.end(kOutSection);
    normed = normalise(thread, layer.mlp_norm, tokens);
    clock.end(kNormSection);
    product(thread, 2, layer.gate_up, normed, tokens, &layer.down, [&](int64_t panel, int64_t first, int64_t rows, const float* sums) {
      for (int64_t r = 0; r < rows; r++)
        gate_panel_row(sums + r * kPanel, gated_.data() + (first + r) * gated_stride() + panel * (kPanel / 2));
    });
    clock.end(kGateUpSection);
    product(thread, 3, layer.down, gated_.data(), tokens, next_qkv, add_to_hidden);
    clock.end(kDownSection);
  }

  // What the last layer does behind its attention concerns only the tokens whose logits are wanted: move these to the front.
  void keep_wanted(const Step& step) {
    if (step.num_logits == step.num_tokens) return;
    int64_t stride = model.hidden_stride();
    pool.each(1, 1, [&](int64_t) {
      for (int64_t i = 0; i < step.num_logits; i++) {
        int64_t token = step.logit_tokens[i];
        std::memmove(hidden_.data() + i * stride, hidden_.data() + token * stride, stride * sizeof(float));
        std::memmove(attended_.data() + i * attended_stride(), attended_.data() + token * attended_stride(),
                     attended_stride() * sizeof(Operand));
      }
    });
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

  void compute_logits(const Step& step, int thread, Clock& clock) {
    if (step.num_logits == 0) return;
    pool.each(step.num_logits, grain(step.num_logits), [&](int64_t i) {
      normalise_row(model.final_norm, i, normed_.data() + i * model.hidden_stride());
    });
    clock.end(kNormSection);
    float* best = threads_[thread].best.data();
    int32_t* best_id = threads_[thread].best_id.data();
    int64_t vocab = model.config.vocab_size;
    product(thread, 4, model.head, normed_.data(), step.num_logits, nullptr, [&](int64_t panel, int64_t first, int64_t rows, const float* sums) {
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
      for (int64_t k = 0; k < model.config.hidden_size; k++) check += 0.0f * from_operand(normed_.data()[i * model.hidden_stride() + k]);
      step.is_valid[i] = check == 0.0f;
    }
  }
};

}  // namespace tidemill
