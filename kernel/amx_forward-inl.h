// The forward pass of the half types on AMX: the blocks, limits, softmax and measurement of forward-inl.h, with both products
// by tiles. The scale is applied to the finished product, so that queries enter as they are stored, exactly.

namespace rootdk::ROOTDK_TARGET {

// Rows of one item: values are transposed once for all of them.
constexpr int64_t tile_item_rows = 256;

// Pairs from one d of the transposed values to the next. A window may begin anywhere in a block, and the last tile of
// weights reaches past it: one tile more than a block, which then holds zeros.
constexpr int64_t value_pairs = key_block / 2 + tile_pairs;

template <typename stored>
struct tile_scratch {
  static constexpr int64_t panels = tile_item_rows / tile_lanes, parts = stored_parts<stored>;
  int64_t d_k, d_v;                               // up to whole tiles
  int64_t query_part, key_part, value_part;       // pairs from one part to the next
  bf16_pair *queries, *keys, *values;
  bool* by_hand;  // per panel: some query is not finite, and split
  float *factor, *ones, *scores, *product, *sums_out, *dropped;
  panel<float>* places;
  block_view* views;
  row_sums<float>* rows;
  int64_t bytes;

  tile_scratch(const attention_problem& problem, void* buffer)
      : d_k(round_up(problem.d_k, 2 * tile_pairs)),
        d_v(round_up(problem.d_v, 2 * tile_side)),
        query_part(d_k / 2 * tile_lanes),
        key_part((key_block + tile_side) * d_k / 2),
        value_part(d_v * value_pairs) {
    carver carve{static_cast<char*>(buffer)};
    queries = carve.take<bf16_pair>(panels * parts * query_part);
    keys = carve.take<bf16_pair>(parts * key_part);
    values = carve.take<bf16_pair>(parts * value_part);
    factor = carve.take<float>(panels * tile_lanes);
    ones = carve.take<float>(tile_lanes);
    scores = carve.take<float>(key_block * tile_lanes);
    product = carve.take<float>(2 * tile_side * tile_lanes);
    sums_out = carve.take<float>(panels * d_v * tile_lanes);
    dropped = carve.take<float>(problem.dropout > 0 ? key_block * tile_lanes : 0);
    by_hand = carve.take<bool>(panels);
    places = carve.take<panel<float>>(panels);
    views = carve.take<block_view>(panels);
    rows = carve.take<row_sums<float>>(panels);
    bytes = carve.used;
  }
};

template <typename stored>
inline bool finite_row(const stored* row, int64_t length) {
  const __m512i exponent = _mm512_set1_epi32(0x7f800000);
  __mmask16 special = 0;
  for (int64_t d = 0; d < length; d += 16)
    special |= _mm512_cmpeq_epi32_mask(_mm512_and_si512(load_some(row + d, length - d), exponent), exponent);
  return special == 0;
}

// Keys [first, last) of a block as A: in place where the tiles read nothing but keys, else a copy in parts with zeros around.
struct tile_keys {
  const char* part[2];
  int64_t row_bytes;
  bool by_hand;  // some are not finite, and split
};
// Whether every panel begins with the first key of a block that some panel sees.
inline bool begin_together(const attention_problem& problem) { return problem.left < 0 && !problem.seen && !problem.segments; }
template <typename stored>
inline tile_keys fetch_tile_keys(const attention_problem& problem, int64_t batch, int64_t kv_head, int64_t first, int64_t last,
                                 const tile_scratch<stored>& s) {
  const stored* from = row_pointer<stored>(problem.key, batch, kv_head, first);
  // Where all begin at `first`, the last tile ends with the block.
  const bool inside = last + tile_side <= problem.n_key || (begin_together(problem) && (last - first) % tile_side == 0);
  if (s.parts == 1 && problem.d_k == s.d_k && inside) {
    const char* rows = reinterpret_cast<const char*>(from);
    return {{rows, rows}, problem.key.row_stride * int64_t(sizeof(stored)), false};
  }
  bool finite = true;
  for (int64_t key = 0; key < last - first; ++key) {
    const stored* row = from + key * problem.key.row_stride;
    split_row(row, problem.d_k, s.d_k, s.key_part, s.keys + key * s.d_k / 2);
    if constexpr (stored_parts<stored> > 1) finite &= finite_row(row, problem.d_k);
  }
  for (int part = 0; part < s.parts; ++part)  // the rest of the last tile
    std::memset(s.keys + part * s.key_part + (last - first) * s.d_k / 2, 0, size_t(tile_side * s.d_k) * 2);
  const char* rows = reinterpret_cast<const char*>(s.keys);
  return {{rows, rows + s.key_part * int64_t(sizeof(bf16_pair))}, s.d_k * 2, !finite};
}

// Products of numbers that are not finite, one by one: a part that is 0, times infinity, would make an infinite product NaN.
template <typename stored>
inline void scores_by_hand(const attention_problem& problem, int64_t batch, int64_t kv_head, const panel<float>& p,
                           int64_t start, int64_t keys, float* scores) {
  for (int64_t key = 0; key < keys; ++key) {
    const stored* k = row_pointer<stored>(problem.key, batch, kv_head, start + key);
    const bool finite_key = finite_row(k, problem.d_k);
    for (int lane = 0; lane < p.live; ++lane) {
      const stored* q = row_pointer<stored>(problem.query, batch, p.head[lane], p.query[lane]);
      if (finite_key && finite_row(q, problem.d_k)) continue;
      float sum = 0;
      for (int64_t d = 0; d < problem.d_k; ++d) sum += widen(q[d]) * widen(k[d]);
      scores[key * tile_lanes + lane] = sum;
    }
  }
}

// The products of the i-th panel with the keys of its view, which begin at the `from`-th of `keys`.
template <typename stored>
inline void tile_scores(const attention_problem& problem, int64_t batch, int64_t kv_head, int64_t i, const panel<float>& p,
                        const tile_keys& keys, int64_t from, const block_view& view, const tile_scratch<stored>& s) {
  const bf16_pair* queries = s.queries + i * s.parts * s.query_part;
  for (int64_t key = 0; key < view.keys(); key += 2 * tile_side) {
    const bool two_rows = key + tile_side < view.keys();
    const int64_t steps[2] = {key < view.stop[0] ? s.d_k / 2 / tile_pairs : 0, key < view.stop[1] ? s.d_k / 2 / tile_pairs : 0};
    float* to = s.scores + key * tile_lanes;
    const char* a = keys.part[0] + (from + key) * keys.row_bytes;
    if constexpr (stored_parts<stored> == 1) {
      const tile_term terms[] = {{a, queries}};
      tile_products(terms, keys.row_bytes, two_rows, tile_lanes, steps, to, tile_lanes);
    } else {
      const char* a_rest = keys.part[1] + (from + key) * keys.row_bytes;
      const bf16_pair* b_rest = queries + s.query_part;
      const tile_term terms[] = {{a, queries}, {a, b_rest}, {a_rest, queries}, {a_rest, b_rest}};
      tile_products(terms, keys.row_bytes, two_rows, tile_lanes, steps, to, tile_lanes);
    }
  }
  if (keys.by_hand || s.by_hand[i]) scores_by_hand<stored>(problem, batch, kv_head, p, view.start, view.keys(), s.scores);
}

template <typename stored>
inline void scale_scores(const float* factor, const block_view& view, const tile_scratch<stored>& s) {
  for (int v = 0; v < panel_vectors; ++v) {
    const vec<float> scale = load(factor + v * tile_side);
    for (int64_t key = 0; key < view.stop[v]; ++key) {
      float* at = s.scores + key * tile_lanes + v * tile_side;
      store(at, load(at) * scale);
    }
  }
}

// out[d][lane] = out * finish.before + (values * weights) * finish.block; `from`: the first key's place in the block.
template <typename stored>
inline void add_tile_values(int64_t from, const block_view& view, const rescale_add<float>& finish, int64_t d_v, float* out,
                            const tile_scratch<stored>& s) {
  for (int v = 0; v < panel_vectors; ++v) clear_rest(s.scores + v * tile_side, view.stop[v]);
  const int64_t steps[2] = {ceil_div(view.stop[0], 2 * tile_pairs), ceil_div(view.stop[1], 2 * tile_pairs)};
  const bf16_pair* weights = reinterpret_cast<const bf16_pair*>(s.scores);
  const bf16_pair* rest = weights + tile_lanes;
  for (int64_t d = 0; d < d_v; d += 2 * tile_side) {
    const bool two_rows = d + tile_side < d_v;
    const bf16_pair* a = s.values + d * value_pairs + from / 2;
    constexpr int64_t a_bytes = value_pairs * int64_t(sizeof(bf16_pair));
    if constexpr (stored_parts<stored> == 1) {
      const tile_term terms[] = {{a, weights}, {a, rest}};
      tile_products(terms, a_bytes, two_rows, 2 * tile_lanes, steps, s.product, tile_lanes);
    } else {
      // The rest of the values times the rest of the weights is 2^-16 of the product, as is what the weights leave out.
      const tile_term terms[] = {{a, weights}, {a, rest}, {a + s.value_part, weights}};
      tile_products(terms, a_bytes, two_rows, 2 * tile_lanes, steps, s.product, tile_lanes);
    }
    for (int v = 0; v < panel_vectors; ++v) {
      if (steps[v] == 0) continue;  // sees nothing of this block: its maximum stays, and there is nothing to rescale
      for (int64_t row = 0; row < (two_rows ? 2 : 1) * tile_side; ++row)
        finish(out + (d + row) * tile_lanes + v * tile_side, v, load(s.product + row * tile_lanes + v * tile_side));
    }
  }
}

// What pack_values left out: values that are not finite, for the lanes that see them. Of the weight only its sign and whether
// it is 0 matter: its leading part has both.
template <typename stored>
inline void values_by_hand(const attention_problem& problem, int64_t batch, int64_t kv_head, const panel<float>& p,
                           const block_view& view, const rescale_add<float>& finish, const float* split, const float* marks,
                           float* out) {
  for (int64_t key = 0; key < view.keys(); ++key) {
    const stored* v = row_pointer<stored>(problem.value, batch, kv_head, view.start + key);
    if (finite_row(v, problem.d_v)) continue;
    for (int lane = 0; lane < p.live; ++lane) {
      if (key >= view.stop[lane / tile_side] || marks[key * tile_lanes + lane] < 0) continue;
      const uint32_t pair = to_bits(split[(key - key % 2) * tile_lanes + lane]);
      const float weight =
          from_bits(key % 2 ? pair & 0xffff0000u : pair << 16) * finish.block[lane / tile_side][lane % tile_side];
      for (int64_t d = 0; d < problem.d_v; ++d)
        if (!finite_row(v + d, 1)) out[d * tile_lanes + lane] += weight * widen(v[d]);
    }
  }
}

// Whether logits are products times a factor and nothing else: then the softmax can begin with the products. A factor of at
// most 1 makes no product infinite.
inline bool softmax_can_take_products(const attention_problem& problem, const float* factor) {
  for (int lane = 0; lane < tile_lanes; ++lane)
    if (!(factor[lane] > 0 && factor[lane] <= 1)) return false;
  return logits_are_products(problem) && !(problem.dropout > 0);
}

// As walk_keys. A second walk with `marks` computes one by one what is not finite.
template <typename stored>
inline bool walk_tiles(const attention_problem& problem, int64_t batch, int64_t kv_head, int64_t panels,
                       tile_scratch<stored>& s, float* marks) {
  int64_t first = problem.n_key, last = 0;
  for (int64_t i = 0; i < panels; ++i) {
    first = at_most(first, s.places[i].first_any), last = at_least(last, s.places[i].last_any);
    s.rows[i].reset();
  }
  std::memset(s.sums_out, 0, size_t(panels * s.d_v * tile_lanes) * sizeof(float));

  for (int64_t block = first / key_block * key_block; block < last; block += key_block) {
    if (between_steps(problem)) whole_tiles::configure();
    const auto [block_first, block_last] = view_panels(problem, panels, block, at_most(block + key_block, problem.n_key),
                                                       s.views, [&](int64_t i) { return s.places + i; });
    if (block_first >= block_last) continue;
    const tile_keys keys_of_block = fetch_tile_keys<stored>(problem, batch, kv_head, block_first, block_last, s);
    const int64_t pairs = round_up(block_last - block_first, 2 * tile_pairs) / 2 + (begin_together(problem) ? 0 : tile_pairs);
    if (!problem.only_reads)
      pack_values(row_pointer<stored>(problem.value, batch, kv_head, block_first), problem.value.row_stride,
                  block_last - block_first, problem.d_v, marks != nullptr, pairs, value_pairs, s.value_part, s.values);
    for (int64_t i = 0; i < panels; ++i) {
      const panel<float>& p = s.places[i];
      const block_view& view = s.views[i];
      const int64_t start = view.start, keys = view.keys();
      if (keys == 0) continue;
      tile_scores(problem, batch, kv_head, i, p, keys_of_block, start - block_first, view, s);
      // Softcap and bias need logits; else the softmax multiplies by the factor itself.
      const float* factor = s.factor + i * tile_lanes;
      if (!softmax_can_take_products(problem, factor)) {
        scale_scores(factor, view, s);
        factor = s.ones;
      }
      shape_scores(problem, batch, p, view, s.scores, static_cast<float*>(nullptr));
      if (marks) mark_hidden(s.scores, keys * tile_lanes, marks);
      rescale_add<float> finish;
      if (problem.dropout > 0) {
        softmax(problem, s.scores, view, s.rows[i], finish);
        dropout_factors(problem, p, start, keys, s.dropped);
        for (int64_t at = 0; at < keys * tile_lanes; ++at) s.scores[at] *= s.dropped[at];
        for (int v = 0; v < panel_vectors; ++v) split_weights(s.scores + v * tile_side, view.stop[v]);
      } else {
        softmax(problem, s.scores, view, s.rows[i], finish, panel_vectors, products_to_split_weights{factor});
      }
      if (view.end() == p.last_any) finish_rows(problem, p, s.rows[i]);
      if (problem.only_reads) continue;
      float* out = s.sums_out + i * s.d_v * tile_lanes;
      add_tile_values(start - block_first, view, finish, problem.d_v, out, s);
      if (marks) values_by_hand<stored>(problem, batch, kv_head, p, view, finish, s.scores, marks, out);
    }
  }

  for (int64_t i = 0; i < panels; ++i)
    if (!all_finite(s.sums_out + i * s.d_v * tile_lanes, problem.d_v, s.places[i].live)) return true;
  return false;
}

template <typename stored>
inline void take_queries(const attention_problem& problem, int64_t batch, int64_t i, const panel<float>& p,
                         const tile_scratch<stored>& s) {
  query_factors(problem, batch, p, s.factor + i * tile_lanes);
  stored* from[tile_lanes];
  row_pointers(problem.query, batch, p, from);
  pack_queries<stored>(from, p.live, problem.d_k, s.query_part, s.queries + i * s.parts * s.query_part);
  s.by_hand[i] = false;
  if constexpr (stored_parts<stored> > 1)
    for (int lane = 0; lane < p.live; ++lane) s.by_hand[i] |= !finite_row(from[lane], problem.d_k);
}

template <typename stored>
inline void tile_item(const attention_problem& problem, int64_t item, void* buffer) {
  const int64_t rows = problem.group() * problem.n_query, blocks = ceil_div(rows, tile_item_rows);
  const int64_t block = blocks - 1 - item % blocks, pair = item / blocks;  // the order of row_block_item
  const int64_t batch = pair / problem.kv_heads, kv_head = pair % problem.kv_heads;
  const int64_t start = block * tile_item_rows, stop = at_most(start + tile_item_rows, rows);
  const int64_t panels = ceil_div(stop - start, tile_lanes);

  const whole_tiles tiles;
  tile_scratch<stored> s(problem, buffer);
  for (int64_t lane = 0; lane < tile_lanes; ++lane) s.ones[lane] = 1;
  for (int64_t i = 0; i < panels; ++i) {
    panel<float>& p = s.places[i];
    place_panel(problem, batch, kv_head, start + i * tile_lanes, at_most(start + (i + 1) * tile_lanes, stop), p);
    take_queries(problem, batch, i, p, s);
  }
  if (walk_tiles(problem, batch, kv_head, panels, s, static_cast<float*>(nullptr))) {
    std::vector<float> marks(size_t(key_block * tile_lanes));
    walk_tiles(problem, batch, kv_head, panels, s, marks.data());
  }
  finish_panels<stored>(problem, batch, panels, s.places, s.rows, s.sums_out, s.d_v * tile_lanes);
}

// The same scores for the backward pass, bit by bit.
template <typename stored>
class tile_scores_again {
 public:
  static constexpr bool few = false;
  static int64_t extra_bytes(const attention_problem& problem) { return tile_scratch<stored>(problem, nullptr).bytes; }
  tile_scores_again(const attention_problem& problem, void* extra) : s_(problem, extra) {}

  void take_rows(const attention_problem& problem, int64_t batch, int64_t i, panel<float>& p, stored* const*, float*) {
    take_queries(problem, batch, i, p, s_);
  }
  void restore_registers() { whole_tiles::configure(); }
  void take_keys(const attention_problem& problem, int64_t batch, int64_t kv_head, int64_t first, int64_t last) {
    first_ = first;
    keys_ = fetch_tile_keys<stored>(problem, batch, kv_head, first, last, s_);
  }
  void make(const attention_problem& problem, int64_t batch, int64_t kv_head, int64_t i, const panel<float>& p, const float*,
            row_block<float>, const block_view& view, float* scores, float* slope) {
    s_.scores = scores;
    tile_scores(problem, batch, kv_head, i, p, keys_, view.start - first_, view, s_);
    scale_scores(s_.factor + i * tile_lanes, view, s_);
    shape_scores(problem, batch, p, view, scores, slope);
  }

 private:
  whole_tiles tiles_;
  tile_scratch<stored> s_;
  tile_keys keys_ = {};
  int64_t first_ = 0;
};

}  // namespace rootdk::ROOTDK_TARGET
