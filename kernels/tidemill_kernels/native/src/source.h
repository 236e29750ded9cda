// Tensors as they come from a file: plain numbers or a GGUF file's blocks, several above one another as one matrix.
//
// q4_1: blocks of 32 numbers `number * scale + least`: scale and least as halves, then 16 bytes, of which byte i holds
// numbers i (low nibble) and 16 + i. q8_0: a scale as half and 32 signed bytes (github.com/ggml-org/ggml, ggml-common.h).
#pragma once

#include <cstring>

#include "simd.h"

namespace tidemill {

inline constexpr int kGroup = 32;  // inputs that share a scale
inline constexpr int kQ41Bytes = 20, kQ80Bytes = 34;

enum class Kind : int32_t { kFloat32 = 0, kBf16 = 1, kQ41 = 2, kQ80 = 3 };

// Crosses the C interface: keep in step with native/library.py. With `heads`, the two halves of each head's rows are
// interleaved in the file, as GGUF has them for llama's queries and keys.
struct Tensor {
  const void* data;
  Kind kind;
  int32_t heads;
  int64_t rows, inputs;

  int64_t row_bytes() const {
    switch (kind) {
      case Kind::kFloat32: return inputs * 4;
      case Kind::kBf16: return inputs * 2;
      case Kind::kQ41: return inputs / kGroup * kQ41Bytes;
      default: return inputs / kGroup * kQ80Bytes;
    }
  }

  const uint8_t* raw_row(int64_t row) const {
    if (heads > 0) {
      int64_t size = rows / heads, half = size / 2, place = row % size;
      row = row - place + place % half * 2 + place / half;
    }
    return static_cast<const uint8_t*>(data) + row * row_bytes();
  }
};

struct Source {
  const Tensor* tensors;
  int64_t count;

  int64_t inputs() const { return tensors[0].inputs; }

  int64_t rows() const {
    int64_t total = 0;
    for (int64_t i = 0; i < count; i++) total += tensors[i].rows;
    return total;
  }

  bool is_all(Kind kind) const {
    for (int64_t i = 0; i < count; i++)
      if (tensors[i].kind != kind) return false;
    return true;
  }

  // Whether all have as many inputs, in whole blocks, and rows in whole heads.
  bool is_sound() const {
    for (int64_t i = 0; i < count; i++) {
      const Tensor& tensor = tensors[i];
      bool is_in_blocks = tensor.kind == Kind::kQ41 || tensor.kind == Kind::kQ80;
      if (tensor.inputs != inputs() || (is_in_blocks && tensor.inputs % kGroup != 0)) return false;
      if (tensor.heads > 0 && tensor.rows % (2 * tensor.heads) != 0) return false;
    }
    return count > 0;
  }

  // Return a row's bytes, null for -1.
  const uint8_t* raw_row(int64_t row) const {
    if (row < 0) return nullptr;
    int64_t tensor = 0;
    for (; row >= tensors[tensor].rows; tensor++) row -= tensors[tensor].rows;
    return tensors[tensor].raw_row(row);
  }

  // Write a row, or zeros for -1, with zeros behind it.
  void row(int64_t index, int64_t padded, float* to) const {
    int64_t size = index < 0 ? 0 : inputs();
    if (size > 0) {
      Kind kind = tensors[0].kind;
      int64_t before = 0;
      for (int64_t i = 0; i < count && index >= before; before += tensors[i++].rows) kind = tensors[i].kind;
      widen(kind, raw_row(index), size, to);
    }
    std::memset(to + size, 0, (padded - size) * sizeof(float));
  }

 private:
  static void widen(Kind kind, const uint8_t* from, int64_t size, float* to) {
    if (kind == Kind::kFloat32) {
      std::memcpy(to, from, size * sizeof(float));
    } else if (kind == Kind::kBf16) {
      const bf16* narrow = reinterpret_cast<const bf16*>(from);
      for (int64_t k = 0; k < size; k++) to[k] = to_float(narrow[k]);
    } else {
      for (int64_t k = 0; k < size; k += kGroup, from += kind == Kind::kQ41 ? kQ41Bytes : kQ80Bytes) {
        uint16_t halves[2];
        std::memcpy(halves, from, 4);
        float scale = half_to_float(halves[0]), least = half_to_float(halves[1]);
        const int8_t* bytes = reinterpret_cast<const int8_t*>(from + 2);
        for (int i = 0; kind == Kind::kQ80 && i < kGroup; i++) to[k + i] = (float)bytes[i] * scale;
        for (int i = 0; kind == Kind::kQ41 && i < kGroup / 2; i++) {
          to[k + i] = (float)(from[4 + i] & 15) * scale + least;
          to[k + kGroup / 2 + i] = (float)(from[4 + i] >> 4) * scale + least;
        }
      }
    }
  }
};

}  // namespace tidemill
