// Drawing a token from logits without sorting the vocabulary, with the same meaning as the engine's own sampler.
//
// Temperature, min-p, top-k, top-p, and a given uniform number. Only the tokens near the largest logit are ever
// sorted: as many as hold the mass that is asked for. Knows one row at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "simd.h"

namespace tidemill {

// Crosses the C interface: keep in step with native/library.py.
struct Draw {
  float temperature, min_p, top_p;
  int32_t top_k;  // 0: all
  double number;  // uniform in [0, 1)
};

struct SamplingScratch {
  std::vector<float> weights;
  std::vector<std::pair<float, int32_t>> candidates;
};

// weights[i] = e^((logit - largest) / temperature), those under min_p zeroed; return their sum.
inline double weigh_logits(const float* logits, int64_t size, const Draw& draw, float most, float* weights) {
  float inverse = 1.0f / draw.temperature;
  double total = 0;
  for (int64_t i = 0; i < size; i += kLanes) {
    if (i + kLanes <= size) {
      VF weight = exponential((load<VF>(logits + i) - most) * inverse);
      weight = weight < splat(draw.min_p) ? VF{} : weight;
      store(weights + i, weight);
      total += sum(weight);
      continue;
    }
    for (int64_t j = i; j < size; j++) {
      weights[j] = std::exp((logits[j] - most) * inverse);
      if (weights[j] < draw.min_p) weights[j] = 0;
      total += weights[j];
    }
  }
  return total;
}

// Fill candidates with the heaviest tokens in falling order (of equals the first): at most `count`, but as many as hold
// `mass` if that is fewer. Return the mass they hold.
inline void take_heaviest(const float* weights, int64_t size, int64_t count, double mass, SamplingScratch& scratch) {
  auto& found = scratch.candidates;
  auto is_heavier = [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; };
  // The largest weight is 1, so a falling threshold gathers whole prefixes of the order.
  for (float threshold = 1.0f / 64;; threshold = threshold > 1e-30f ? threshold / 64 : 0.0f) {
    found.clear();
    double held = 0;
    for (int64_t i = 0; i < size; i++) {
      if (weights[i] >= threshold && weights[i] > 0) {
        found.emplace_back(weights[i], (int32_t)i);
        held += weights[i];
      }
    }
    bool is_enough = held >= mass || (int64_t)found.size() >= count || threshold == 0.0f;
    if (!is_enough) continue;
    std::sort(found.begin(), found.end(), is_heavier);
    if ((int64_t)found.size() > count) found.resize(count);
    return;
  }
}

inline int32_t draw_token(const float* logits, int64_t size, const Draw& draw, SamplingScratch& scratch) {
  scratch.weights.resize(size + kLanes);
  float* weights = scratch.weights.data();
  float most = *std::max_element(logits, logits + size);
  double total = weigh_logits(logits, size, draw, most, weights);
  bool has_top_k = draw.top_k > 0 && draw.top_k < size;
  if (draw.top_k == 0 && draw.top_p >= 1) {
    double target = draw.number * total, mass = 0;
    int32_t last = 0;
    for (int64_t i = 0; i < size; i++) {
      if (weights[i] == 0) continue;
      mass += weights[i];
      last = (int32_t)i;
      if (mass > target) break;
    }
    return last;
  }
  auto& found = scratch.candidates;
  take_heaviest(weights, size, has_top_k ? draw.top_k : size, has_top_k ? 2 * total : draw.top_p * total, scratch);
  double held = 0;
  for (auto& [weight, token] : found) held += weight;
  if (draw.top_p < 1) {  // of what top_k left, the fewest that hold top_p
    double wanted = draw.top_p * (has_top_k ? held : total);
    double mass = 0;
    size_t count = 0;
    while (count < found.size() && mass < wanted) mass += found[count++].first;
    found.resize(std::max<size_t>(1, count));
    held = std::max<double>(mass, found[0].first);
  }
  double target = draw.number * held, mass = 0;
  for (auto& [weight, token] : found) {
    mass += weight;
    if (mass > target) return token;
  }
  return found.back().second;
}

}  // namespace tidemill
