// The C interface, for ctypes: engines, steps, draws, and each operator alone for tests and measurements.
//
// Every function that can fail returns 0 or a pointer on success; nothing throws across the border.
#include <exception>

#include "engine.h"
#include "sampling.h"

using namespace tidemill;

namespace {

bool has_tiles() {
  static const bool has = kHasAmx && request_amx();
  return has;
}

}  // namespace

extern "C" {

int32_t tm_lanes() { return kLanes; }
int32_t tm_has_tiles() { return has_tiles(); }

void* tm_engine_new(const ModelConfig* config) {
  try {
    return new Engine(*config, has_tiles());
  } catch (const std::exception&) {
    return nullptr;
  }
}

void tm_engine_free(void* engine) { delete static_cast<Engine*>(engine); }

int32_t tm_engine_set(void* handle, int32_t layer, int32_t part, const Tensor* tensors, int64_t count) {
  Engine& engine = *static_cast<Engine*>(handle);
  return engine.model.set(engine.pool, layer, (Part)part, Source{tensors, count}) ? 0 : -1;
}

void* tm_engine_memory(void* engine) { return static_cast<Engine*>(engine)->model.memory.data(); }
int64_t tm_engine_memory_bytes(void* engine) { return static_cast<Engine*>(engine)->model.num_bytes(); }
int64_t tm_engine_block_elements(void* engine) { return static_cast<Engine*>(engine)->model.cache.block_elements(); }

int32_t tm_engine_step(void* engine, const Step* step) {
  try {
    static_cast<Engine*>(engine)->run(*step);
    return 0;
  } catch (const std::exception&) {
    return -1;
  }
}

// Cut decodes at contexts of so many tokens, nothing shared, for so many threads: write each piece's tokens (times
// key/value heads) in their order, at most `capacity`, and return how many pieces there are.
int64_t tm_plan_decodes(const int32_t* lengths, int64_t count, int32_t heads, int32_t threads, int64_t* work, int64_t capacity) {
  std::vector<int32_t> starts(count + 1), rows(count);
  for (int64_t i = 0; i <= count; i++) starts[i] = (int32_t)i;
  for (int64_t i = 0; i < count; i++) rows[i] = (int32_t)i;
  AttentionPlan plan;
  plan.make({32, heads, 64}, {count, starts.data(), lengths, rows.data(), rows.data(), 1}, 1, 0, threads);
  for (int64_t i = 0; i < std::min<int64_t>(capacity, plan.pieces.size()); i++) work[i] = plan.pieces[i].work();
  return (int64_t)plan.pieces.size();
}

void tm_engine_times(void* handle, double* seconds) {
  Engine& engine = *static_cast<Engine*>(handle);
  for (int section = 0; section < kNumSections; section++) {
    seconds[section] = engine.seconds[section];
    engine.seconds[section] = 0;
  }
}

// Mean seconds of one product of a matrix kind (as in ways.h) in a given way, over all layers in turn; for kind -1 the
// seconds of all layers' matrices in the order of a step, whose weights push one another out of the caches. The best of
// `repeats`.
double tm_engine_time_matrix(void* handle, int32_t kind, int64_t rows, int32_t way, int32_t repeats) {
  static const Part kParts[kNumMatrixKinds] = {kQkv, kOut, kGateUp, kDown, kHead};
  constexpr int kHeadKind = kNumMatrixKinds - 1;
  Engine& engine = *static_cast<Engine*>(handle);
  Ways before = engine.ways;
  for (auto& chosen : engine.ways.chosen) chosen[bucket_of(rows)] = (Way)way;
  int32_t layers = kind == kHeadKind ? 0 : engine.model.config.num_layers;
  int first = kind < 0 ? 0 : kind, last = kind < 0 ? kHeadKind : kind + 1;
  double best = 1e9;
  for (int32_t i = 0; i < repeats; i++) {
    auto started = std::chrono::steady_clock::now();
    for (int32_t layer = 0; layer < layers; layer++)
      for (int each = first; each < last; each++) engine.run_matrix(layer, kParts[each], each, rows);
    if (kind == kHeadKind) engine.run_matrix(0, kHead, kHeadKind, rows);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count());
  }
  engine.ways = before;
  return kind < 0 || kind == kHeadKind ? best : best / layers;
}

void tm_engine_set_way(void* engine, int32_t kind, int32_t bucket, int32_t way) {
  static_cast<Engine*>(engine)->ways.chosen[kind][bucket] = (Way)way;
}

// Draw a token for each of `count` rows: logits[rows[i]], tokens[i].
void tm_engine_draw(void* handle, const float* logits, int64_t stride, int64_t size, int64_t count, const int32_t* rows,
                    const Draw* draws, int32_t* tokens) {
  Engine& engine = *static_cast<Engine*>(handle);
  engine.pool.run([&](int) {
    SamplingScratch scratch;
    engine.pool.each(count, 1, [&](int64_t i) { tokens[i] = draw_token(logits + rows[i] * stride, size, draws[i], scratch); });
  });
}
}
