// A panel: some query rows side by side in the lanes of the vectors, and what each of them may see.
//
// The rows of all query heads that share one key head form one long list (head after head), and panels are cut from that list.
// So grouped heads reuse keys without any expansion, and the other heads of a short query's group fill the lanes.

namespace rootdk::ROOTDK_TARGET {

constexpr double log2_e = 1.4426950408889634074;
constexpr double ln_2 = 0.69314718055994530942;

template <typename real>
struct panel {
  static constexpr int lanes = panel_lanes<real>;
  int live;                // lanes in use; the rest compute on zeros and are never written
  int64_t flat;            // the first lane's row in (batch, heads, n_query); the others follow it
  int64_t head[lanes];     // query head
  int64_t query[lanes];    // row within that head
  int64_t first[lanes];    // the row sees keys first <= j < last, and between them
  int64_t last[lanes];
  const visibility::run* runs[lanes];  // only these of each block; null: all of them
  bool holes;                          // some lane has
  int32_t segment[lanes];  // with segments, the row's own; and whether keys of others lie between those of some lane
  bool mixed_segments;
  int64_t first_any, last_any;  // some lane sees these
  // Per vector, because under a causal limit the first vector is done earlier than the second.
  int64_t first_all[panel_vectors], last_all[panel_vectors];  // every lane of the vector sees these
  int64_t vector_last[panel_vectors];  // no lane of the vector sees a key from here on
  bool stretched;  // scores-inl.h: some query times its factor left the range,
  alignas(64) real stretch[lanes];  // and this part of each factor waits for the product; else not set
};

ROOTDK_INLINE int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
ROOTDK_INLINE int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }

// Not inlined: inside the code that packs an item its loop was compiled worse.
template <typename real>
inline __attribute__((noinline)) void place_panel(const attention_problem& problem, int64_t batch, int64_t kv_head,
                                                  int64_t start, int64_t stop, panel<real>& p) {
  const int64_t length = problem.key_length ? problem.key_length[batch] : problem.n_key;
  p.live = int(stop - start);
  p.flat = (batch * problem.heads + kv_head * problem.group()) * problem.n_query + start;
  int64_t head = kv_head * problem.group() + start / problem.n_query, query = start % problem.n_query;
  p.first_any = problem.n_key, p.last_any = 0;
  p.stretched = p.holes = p.mixed_segments = false;
  for (int v = 0; v < panel_vectors; ++v) p.first_all[v] = 0, p.last_all[v] = problem.n_key, p.vector_last[v] = 0;
  for (int lane = p.live; lane < p.lanes; ++lane) {
    p.first[lane] = p.last[lane] = 0;
    p.runs[lane] = nullptr;
    p.segment[lane] = -1;
  }
  for (int lane = 0; lane < p.live; ++lane) {
    if (query == problem.n_query) query = 0, ++head;
    p.head[lane] = head;
    p.query[lane] = query++;
    const int64_t position = problem.position(batch, p.query[lane]);
    // Clamped to [0, n_key] on both sides; a row that sees nothing gets an empty range.
    int64_t first = problem.left < 0 ? 0 : at_least(position - problem.left, 0);
    int64_t last = problem.right < 0 ? length : at_most(length, position + problem.right + 1);
    p.runs[lane] = nullptr;
    if (problem.segments) {
      const segment_rows::row& seen = problem.segments->at(batch, p.query[lane]);
      first = seen.first, last = seen.last;
      p.segment[lane] = seen.segment;
      p.mixed_segments |= seen.holes;
    }
    if (problem.seen) {
      const int64_t row = problem.seen->row_index(batch, head, p.query[lane]);
      const visibility::row& seen = problem.seen->at(row);
      first = at_least(first, seen.first), last = at_most(last, seen.last);
      if (seen.holes) p.runs[lane] = problem.seen->runs(row), p.holes = true;
    }
    if (last <= first) first = last = 0;
    p.first[lane] = first, p.last[lane] = last;
    if (first < last) {
      p.first_any = at_most(p.first_any, first);
      p.last_any = at_least(p.last_any, last);
    }
    const int v = lane / simd<real>::width;
    p.first_all[v] = at_least(p.first_all[v], first);
    p.last_all[v] = at_most(p.last_all[v], last);
    p.vector_last[v] = at_least(p.vector_last[v], last);
  }
  p.first_any -= p.first_any % 2;  // the softmax takes keys in pairs, and the same pairs wherever the visible ones begin
}

// rows -> lanes: to[d][lane] = factor[lane] * from[lane][d], for d < length. Lanes out of use become zero.
template <typename stored>
inline void pack_transposed(const stored* const* from, int live, const compute<stored>* factor, int64_t length,
                            compute<stored>* to) {
  typedef compute<stored> real;
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  for (int group = 0; group < lanes; group += width) {
    const vec<real> scale = load(factor + group);
    for (int64_t d = 0; d < length; d += width) {
      const int count = int(at_most(width, length - d));
      vec<real> block[width];
      for (int lane = 0; lane < width; ++lane) {
        block[lane] = vec<real>{};
        if (group + lane >= live) continue;
        if (std::is_same<stored, real>::value && count == width) {
          block[lane] = load(reinterpret_cast<const real*>(from[group + lane] + d));
        } else {
          alignas(64) real part[width] = {};
          widen_row(from[group + lane] + d, count, part);
          block[lane] = load<real>(part);
        }
      }
      transpose<real>(block);
      for (int i = 0; i < count; ++i) store(to + (d + i) * lanes + group, block[i] * scale);
    }
  }
}

// lanes -> rows: to[lane][d] = factor[lane] * from[d][lane].
template <typename stored>
inline void unpack_transposed(const compute<stored>* from, int live, const compute<stored>* factor, int64_t length,
                              stored* const* to) {
  typedef compute<stored> real;
  constexpr int width = simd<real>::width, lanes = panel_lanes<real>;
  for (int group = 0; group < live; group += width) {
    const vec<real> scale = load(factor + group);
    for (int64_t d = 0; d < length; d += width) {
      const int count = int(at_most(width, length - d));
      vec<real> block[width];
      for (int i = 0; i < width; ++i) block[i] = i < count ? load(from + (d + i) * lanes + group) * scale : vec<real>{};
      transpose<real>(block);
      for (int lane = 0; lane < width && group + lane < live; ++lane) {
        if (std::is_same<stored, real>::value && count == width) {
          store(reinterpret_cast<real*>(to[group + lane] + d), block[lane]);
        } else {
          alignas(64) real part[width];
          store<real>(part, block[lane]);
          narrow_row(part, count, to[group + lane] + d);
        }
      }
    }
  }
}

template <typename real>
inline bool finite_numbers(const real* x, int64_t count) {
  constexpr int width = simd<real>::width;
  vec<real> sum = vec<real>{};  // x - x is 0 for every finite x, NaN for the others
  int64_t i = 0;
  for (; i + width <= count; i += width) sum += load(x + i) - load(x + i);
  real rest = sum_lanes<real>(sum);
  for (; i < count; ++i) rest += x[i] - x[i];
  return rest == 0;
}

template <typename stored>
ROOTDK_INLINE stored* row_pointer(const rows_view& view, int64_t batch, int64_t head, int64_t row) {
  return reinterpret_cast<stored*>(view.data) + view.batch_offset[batch] + head * view.head_stride + row * view.row_stride;
}

// Some keys and values of one key head, as the products need them.
template <typename real>
struct key_rows {
  row_block<real> keys, values;
  // From the i-th on.
  key_rows from(int64_t i) const {
    return {{keys.data + i * keys.stride, keys.stride}, {values.data + i * values.stride, values.stride}};
  }
};

template <typename stored>
ROOTDK_INLINE key_rows<compute<stored>> fetch_keys(const attention_problem& problem, int64_t batch, int64_t kv_head,
                                                   int64_t start, int64_t count, compute<stored>* key_copy,
                                                   compute<stored>* value_copy) {
  return {
      widen_rows(row_pointer<stored>(problem.key, batch, kv_head, start), problem.key.row_stride, count, problem.d_k, key_copy),
      widen_rows(row_pointer<stored>(problem.value, batch, kv_head, start), problem.value.row_stride, count, problem.d_v,
                 value_copy)};
}

template <typename stored, typename real>
ROOTDK_INLINE void row_pointers(const rows_view& view, int64_t batch, const panel<real>& p, stored** rows) {
  for (int lane = 0; lane < p.live; ++lane) rows[lane] = row_pointer<stored>(view, batch, p.head[lane], p.query[lane]);
}

}  // namespace rootdk::ROOTDK_TARGET
