// A Llama-family model's weights in one run of memory, and where each part of it lies.
//
// The run can be written to a file and read back: its layout follows from the configuration alone. Knows parts and
// places; computes nothing.
#pragma once

#include <vector>

#include "gemm.h"
#include "kv_cache.h"

namespace tidemill {

// Crosses the C interface: keep in step with native/library.py.
struct ModelConfig {
  int32_t num_layers, hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim, vocab_size, max_positions;
  int32_t block_size, sliding_window, has_qkv_bias, has_qk_norm, format, head_format, num_threads;
  float eps;
};

enum Part : int32_t {  // of a layer, then of the model
  kInputNorm, kQkv, kQkvBias, kQueryNorm, kKeyNorm, kOut, kMlpNorm, kGateUp, kDown,
  kEmbedding, kFinalNorm, kHead, kCosines, kSines
};

struct Layer {
  float *input_norm, *mlp_norm, *qkv_bias = nullptr, *query_norm = nullptr, *key_norm = nullptr;
  Matrix qkv, out, gate_up, down;
};

struct Model {
  ModelConfig config;
  CacheShape cache;
  Buffer<uint8_t> memory;
  std::vector<Layer> layers;
  bf16* embedding = nullptr;  // [vocab][padded hidden]
  float *final_norm = nullptr, *cosines = nullptr, *sines = nullptr;  // angles: [positions][head_dim / 2]
  Matrix head;

  explicit Model(const ModelConfig& config)
      : config(config), cache{config.block_size, config.num_kv_heads, config.head_dim}, layers(config.num_layers) {
    place(nullptr);
    memory.reserve(num_bytes_);
    place(memory.data());
  }

  int64_t hidden_stride() const { return round_up(config.hidden_size, kInputPadding); }
  int64_t query_size() const { return (int64_t)config.num_heads * config.head_dim; }
  int64_t kv_size() const { return (int64_t)config.num_kv_heads * config.head_dim; }
  int64_t qkv_size() const { return query_size() + 2 * kv_size(); }
  int64_t num_bytes() const { return num_bytes_; }

  // Copy or pack a part of the weights; false if there is no such part, or it has another size or can't be held so.
  bool set(Pool& pool, int32_t layer, Part part, const Source& source) {
    if (layer >= config.num_layers || !source.is_sound()) return false;
    int64_t rows = source.rows(), inputs = source.inputs();
    if (part == kEmbedding) return set_embedding(pool, source, rows);
    if (Matrix* matrix = matrix_of(layer, part)) {
      if (matrix->shape.outputs != rows || matrix->shape.inputs != inputs || !is_packable(source, matrix->format)) return false;
      pack(pool, source, matrix->shape, matrix->format, matrix->values);
      return true;
    }
    auto [to, size] = vector_of(layer, part);
    if (to == nullptr || rows * inputs != size) return false;
    for (int64_t row = 0; row < rows; row++) source.row(row, inputs, to + row * inputs);
    return true;
  }

  Matrix* matrix_of(int32_t layer, Part part) {
    if (part == kHead) return &head;
    if (layer < 0) return nullptr;
    Layer& of = layers[layer];
    return part == kQkv ? &of.qkv : part == kOut ? &of.out : part == kGateUp ? &of.gate_up : part == kDown ? &of.down : nullptr;
  }

 private:
  int64_t num_bytes_ = 0;

  template <typename T>
  T* take(uint8_t* base, int64_t count) {
    T* at = reinterpret_cast<T*>(base + num_bytes_);
    num_bytes_ += round_up(count * (int64_t)sizeof(T), 4096);
    return at;
  }

  Matrix take_matrix(uint8_t* base, Shape shape, Format format) {
    Matrix matrix = view_packed(base + num_bytes_, shape, format);
    num_bytes_ += packed_bytes(shape, format);
    return matrix;
  }

  // Say where every part lies from `base` on; with no base, only count bytes.
  void place(uint8_t* base) {
    num_bytes_ = 0;
    Format format = (Format)config.format;
    int64_t hidden = config.hidden_size;
    for (Layer& layer : layers) {
      layer.input_norm = take<float>(base, hidden);
      layer.mlp_norm = take<float>(base, hidden);
      if (config.has_qkv_bias) layer.qkv_bias = take<float>(base, qkv_size());
      if (config.has_qk_norm) layer.query_norm = take<float>(base, config.head_dim);
      if (config.has_qk_norm) layer.key_norm = take<float>(base, config.head_dim);
      layer.qkv = take_matrix(base, {qkv_size(), hidden}, format);
      layer.out = take_matrix(base, {hidden, query_size()}, format);
      layer.gate_up = take_matrix(base, {2 * (int64_t)config.intermediate_size, hidden, Order::kGateUp}, format);
      layer.down = take_matrix(base, {hidden, config.intermediate_size}, format);
    }
    embedding = take<bf16>(base, config.vocab_size * hidden_stride());
    final_norm = take<float>(base, hidden);
    head = take_matrix(base, {config.vocab_size, hidden}, (Format)config.head_format);
    cosines = take<float>(base, (int64_t)config.max_positions * config.head_dim / 2);
    sines = take<float>(base, (int64_t)config.max_positions * config.head_dim / 2);
  }

  bool set_embedding(Pool& pool, const Source& source, int64_t rows) {
    if (rows != config.vocab_size || source.inputs() != config.hidden_size) return false;
    pool.run([&](int) {
      std::vector<float> values(hidden_stride());
      pool.each(rows, 64, [&](int64_t row) {
        source.row(row, hidden_stride(), values.data());
        store_row_bf16(embedding + row * hidden_stride(), values.data(), hidden_stride());
      });
    });
    return true;
  }

  std::pair<float*, int64_t> vector_of(int32_t layer, Part part) {
    int64_t angles = (int64_t)config.max_positions * config.head_dim / 2;
    if (part == kFinalNorm) return {final_norm, config.hidden_size};
    if (part == kCosines) return {cosines, angles};
    if (part == kSines) return {sines, angles};
    if (layer < 0) return {nullptr, 0};
    Layer& of = layers[layer];
    if (part == kInputNorm) return {of.input_norm, config.hidden_size};
    if (part == kMlpNorm) return {of.mlp_norm, config.hidden_size};
    if (part == kQkvBias) return {of.qkv_bias, qkv_size()};
    if (part == kQueryNorm) return {of.query_norm, config.head_dim};
    if (part == kKeyNorm) return {of.key_norm, config.head_dim};
    return {nullptr, 0};
  }
};

}  // namespace tidemill
