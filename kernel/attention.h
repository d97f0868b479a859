// The problem that the kernel solves, as plain facts: pointers, sizes, strides, numbers. There are no defaults here, no
// framework, no Python. Everything below defines *what* is computed; kernel/README.md says *how*.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rootdk {

enum class element : int { float32 = 0, float64 = 1, float16 = 2, bfloat16 = 3 };

inline int64_t element_bytes(element type) { return type == element::float64 ? 8 : type == element::float32 ? 4 : 2; }

// (batch, head, row, d) with a contiguous last axis. Strides are in elements. The batch axis is a list of offsets
// because several leading axes of any strides must be walked without a copy.
struct rows_view {
  char* data = nullptr;
  const int64_t* batch_offset = nullptr;
  int64_t head_stride = 0;
  int64_t row_stride = 0;
};

// (batch, head, query, key), every stride free; zero where the array was broadcast.
struct pairs_view {
  char* data = nullptr;  // null: absent
  const int64_t* batch_offset = nullptr;
  int64_t head_stride = 0;
  int64_t query_stride = 0;
  int64_t key_stride = 0;
};

// The numbers of a Reading, in the order of its buffer: (reading_fields, batch, heads, n_query). src/rootdk/reading.py says
// what each of them is; bindings/module.cc gives Python their names, and a test compares the two lists.
#define ROOTDK_READING_FIELDS(each) \
  each(log_sum_exp) each(max) each(min) each(mean) each(variance) each(entropy) each(p_squared) each(p_cubed) each(sink_mass)

enum reading_field {
#define ROOTDK_FIELD(name) reading_##name,
  ROOTDK_READING_FIELDS(ROOTDK_FIELD)
#undef ROOTDK_FIELD
      reading_fields
};

class interruption;
class segment_rows;
class visibility;

struct attention_problem {
  element type = element::float32;
  element cache_type = element::float32;  // of key and value: as `type`, or half types under float32 (forward only)
  int64_t batch = 0, heads = 0, kv_heads = 0, n_query = 0, n_key = 0, d_k = 0, d_v = 0;
  rows_view query, key, value, out;

  double scale = 1.0;
  const double* row_scale = nullptr;  // (batch, n_query), or null
  double softcap = 0.0;               // 0: none
  int64_t left = -1, right = -1;      // -1: no limit
  const int64_t* query_offset = nullptr;
  const int64_t* key_length = nullptr;  // (batch,), or null
  // One number per query and per key, (batch, n_query) and (batch, n_key), or null: a pair is visible only where they are
  // equal, and limits and distances are between the positions below, which count the keys of a segment.
  const int64_t *query_segment = nullptr, *key_segment = nullptr;
  const int64_t *query_position = nullptr, *key_position = nullptr;  // null: query + query_offset, and the key itself
  pairs_view mask;  // one byte per pair, 0 hides
  pairs_view bias;
  element bias_type = element::float32;
  const double* sinks = nullptr;  // (heads,), or null
  const double* alibi = nullptr;  // (batch, heads): what a logit loses per key between it and the query's position, or null
  double dropout = 0.0;
  uint64_t seed = 0;
  int team = 0;  // threads of the framework's OpenMP team beside which this runs, or 0: see pool.h
  interruption* stop = nullptr;  // how the call may be given up, or null: see interruption.h

  // In the type that is computed with (float, double for float64), each C-contiguous; null where not wanted.
  void* row_state = nullptr;  // (2, batch, heads, n_query): the row's maximum in log2 units, and its sum
  void* reading = nullptr;  // (reading_fields, batch, heads, n_query)
  int64_t* keys = nullptr;  // (batch, heads, n_query)

  // Backward: d_out is an input (`out` and `row_state` too) and the others are results. Tangent: d_out is a result, `out` is
  // one too or absent, and the others are inputs: null for an input without a tangent.
  rows_view d_out, d_query, d_key, d_value;
  // Backward: added to, so the caller clears it; in the type that is computed with, whatever the type of the bias. Strides are
  // zero where the bias was broadcast: all pairs that read one number of it add to one number here. Else no two overlap.
  // Tangent: read, and of the type of the bias.
  pairs_view d_bias;
  void* d_alibi = nullptr;  // (batch, heads) in the type that is computed with; null where not wanted; backward only
  // attention_weights only: every pair's weight, before dropout, is added to its number; as d_bias. `row_state` is then an
  // input.
  pairs_view weights;
  // Tangent only, as the option each belongs to; null without a tangent.
  double scale_tangent = 0.0;
  const double *sinks_tangent = nullptr, *alibi_tangent = nullptr;
  // The (batch, key head) pairs to work on, each as batch * kv_heads + kv_head; null: all of them.
  const int64_t* pair_list = nullptr;
  int64_t pair_list_size = 0;

  // Found by the kernel itself: null when it is called.
  const visibility* seen = nullptr;
  const segment_rows* segments = nullptr;
  bool only_reads = false;  // the weights are not needed; then d_v is 0

  int64_t pairs() const { return pair_list ? pair_list_size : batch * kv_heads; }
  int64_t pair(int64_t i) const { return pair_list ? pair_list[i] : i; }
  int64_t group() const { return kv_heads > 0 ? heads / kv_heads : 0; }
  int64_t rows() const { return batch * heads * n_query; }
  int64_t position(int64_t entry, int64_t query) const {
    if (query_position) return query_position[entry * n_query + query];
    return query + (query_offset ? query_offset[entry] : 0);
  }
};

// They throw call_given_up (interruption.h) if the problem has a `stop` and its caller wants to stop.
void attention_forward(const attention_problem& problem);
// The Reading of a forward pass, bit by bit, from query and key alone: value, out, dropout and row_state are not read.
void attention_read(const attention_problem& problem);
void attention_backward(const attention_problem& problem);
void attention_weights(const attention_problem& problem);
void attention_tangent(const attention_problem& problem);

// A pass as work for threads: items that are independent of each other, then, where several items contributed to one result,
// merges of what they left in the shared buffer. How many there are depends on the problem, never on the number of threads, so
// that the result is bitwise the same on any of them.
struct kernel_pass {
  int64_t items = 0;
  int64_t scratch_bytes = 0;  // per thread
  void (*item)(const attention_problem&, int64_t item, void* scratch, void* shared) = nullptr;
  int64_t merges = 0;
  int64_t shared_bytes = 0;
  void (*merge)(const attention_problem&, int64_t merge, void* shared) = nullptr;
};

// Called by the items between two steps that take some milliseconds at most: throws call_given_up if the call is to end. True:
// code of the caller ran on this thread meanwhile, which preserves only the registers that every function preserves (no tile
// registers).
bool between_steps(const attention_problem& problem);

// One instruction set, compiled from the same source as the others.
struct kernel_target {
  const char* name;
  int panel_lanes_f32;  // query rows side by side in one panel
  int key_block;  // keys between two updates of the running maximum
  // Which way a problem is computed (rows, few rows, tiles) is chosen here, once per call.
  kernel_pass (*forward)(const attention_problem&);
  kernel_pass (*backward)(const attention_problem&);
  kernel_pass (*weights)(const attention_problem&);
  kernel_pass (*tangent)(const attention_problem&);
};

std::vector<const kernel_target*> available_targets();  // those this CPU can run, best first
const kernel_target& current_target();
bool set_current_target(const std::string& name);

}  // namespace rootdk
