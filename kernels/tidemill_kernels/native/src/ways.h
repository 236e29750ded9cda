// Which way computes a product of so many rows fastest: one choice per matrix kind and bucket of rows.
//
// Filled from measurements (see api.cpp); the defaults are what was fastest where this was written.
#pragma once

#include "gemm.h"

namespace tidemill {

inline constexpr int kNumMatrixKinds = 5;  // qkv, out, gate_up, down, head
inline constexpr int kNumBuckets = 9;      // up to 1, 2, 4, ... 128 rows, and more

inline int bucket_of(int64_t rows) {
  int bucket = 0;
  while (bucket < kNumBuckets - 1 && rows > (1 << bucket)) bucket++;
  return bucket;
}

struct Ways {
  Way chosen[kNumMatrixKinds][kNumBuckets];

  explicit Ways(bool has_tiles) {
    for (auto& kind : chosen)
      for (int bucket = 0; bucket < kNumBuckets; bucket++) kind[bucket] = has_tiles && bucket >= 3 ? Way::kTiles : Way::kVector;
  }

  Way of(int kind, int64_t rows) const { return chosen[kind][bucket_of(rows)]; }
};

}  // namespace tidemill
