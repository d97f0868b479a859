// One random problem: sizes at the edges of the kernel's tiles, every option, arrays of every layout, and NaN or infinity
// where they must and where they must not be felt.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <sstream>

#include "array.h"

namespace fuzz {

struct random_problem {
  uint64_t seed = 0;
  rootdk::attention_problem facts;
  strided_array query, key, value, d_out, mask, bias;          // inputs
  strided_array out, d_query, d_key, d_value, d_bias, weights;  // results
  std::vector<int64_t> query_offset, key_length, query_segment, key_segment, query_position, key_position;
  std::vector<double> row_scale, sinks, alibi;
  exact_block row_state, reading, keys, d_alibi;
  bool with_backward = false;
  // The tangent pass: the same problem with what moves, and results of its own.
  bool with_tangent = false;
  rootdk::attention_problem moved;
  strided_array moved_query, moved_key, moved_value, moved_bias, out_again, moved_out;
  std::vector<double> moved_sinks, moved_alibi;
  int threads = 1;
  std::string notes;

  element real() const { return facts.type == element::float64 ? element::float64 : element::float32; }
};

// Lengths around the vectors and panels of any target, mostly tiny; now and then around a block of keys.
class size_source {
 public:
  explicit size_source(random_source& random) : random_(random) {
    const auto targets = rootdk::available_targets();
    const rootdk::kernel_target& target = *targets[size_t(random.below(int64_t(targets.size())))];
    lanes_ = target.panel_lanes_f32 / (random.chance(0.3) ? 2 : 1);  // float64 has half as many
    block_ = target.key_block;
  }
  int64_t tiny() { return random_.pick<int64_t>({0, 1, 1, 2, 3, 5, 7}); }
  int64_t edge() {
    if (random_.chance(0.6)) return random_.pick<int64_t>({1, 2, 3, 4, 6, 7, 8, 9});
    return random_.pick<int64_t>({0, lanes_ / 2, lanes_ - 1, lanes_, lanes_ + 1, 2 * lanes_ + 1});
  }
  int64_t block() const { return block_; }
  int64_t long_one() {
    return random_.pick<int64_t>({block_ - 1, block_, block_ + 1, 2 * block_ - 1, 2 * block_ + 1, 300, 5 * block_ + 3});
  }

 private:
  random_source& random_;
  int64_t lanes_, block_;
};

inline void draw_sizes(random_source& random, rootdk::attention_problem& p) {
  size_source size(random);
  p.type = random.pick({element::float32, element::float32, element::float64, element::float16, element::bfloat16});
  p.batch = random.chance(0.02) ? 0 : random.pick<int64_t>({1, 1, 1, 2, 3});
  p.kv_heads = random.chance(0.02) ? 0 : random.pick<int64_t>({1, 1, 1, 2, 3});
  p.heads = p.kv_heads * random.pick<int64_t>({1, 1, 1, 2, 3, 5});
  p.n_query = size.edge(), p.n_key = size.edge();
  p.d_k = size.edge(), p.d_v = random.chance(0.3) ? p.d_k : size.edge();
  if (random.chance(0.06)) {  // long in one direction, so small in the others
    (random.chance(0.75) ? p.n_key : p.n_query) = size.long_one();
    p.batch = 1, p.d_k = size.tiny(), p.d_v = size.tiny();
    if (p.n_key > 64 && p.n_query > 9) p.n_query = random.between(1, 9);
    if (p.n_query > 64 && p.n_key > 9) p.n_key = random.between(1, 9);
  } else if (random.chance(0.01)) {
    (random.chance(0.5) ? p.d_k : p.d_v) = random.pick<int64_t>({128, 129, 200, 257});
  } else if (random.chance(0.02)) {  // the few rows of a decoder over several blocks, now and then several chunks, of keys
    p.batch = 1, p.kv_heads = random.pick<int64_t>({1, 2}), p.heads = p.kv_heads * random.pick<int64_t>({1, 1, 2, 4, 7});
    p.n_query = 1, p.n_key = random.chance(0.1) ? 8 * size.block() + 70 : size.long_one();
  } else if (random.chance(0.002)) {  // many rows and several chunks of keys: the backward pass merges more than one part
    p.batch = 1, p.kv_heads = 1, p.heads = 3, p.n_query = 90, p.n_key = 2 * size.block() + 9, p.d_k = 2, p.d_v = 1;
  }
}

inline void draw_numbers(random_source& random, random_problem& p) {
  rootdk::attention_problem& f = p.facts;
  const double usual = 1 / std::sqrt(double(f.d_k > 0 ? f.d_k : 1));
  // 1e4 makes one key win each row, 1e12 also loses all digits after the point; both must stay finite.
  f.scale = usual * random.pick<double>({1, 1, 1, 1, 1, 3, -1, 0, 30, 1e4, 1e12});
  if (random.chance(0.2)) {
    p.row_scale.resize(size_t(f.batch * f.n_query));
    for (double& x : p.row_scale) x = random.chance(0.1) ? 0 : random.normal();
    f.row_scale = p.row_scale.data();
  }
  if (random.chance(0.25)) f.softcap = random.pick<double>({0.5, 2, 30, 1e6});
  if (random.chance(0.3)) f.right = random.pick<int64_t>({0, 0, 0, 1, 3, f.n_key, int64_t(1) << 62});
  if (random.chance(0.25)) f.left = random.pick<int64_t>({0, 1, 2, 9, f.n_key, int64_t(1) << 62});
  if (random.chance(0.7)) {
    for (int64_t b = 0; b < f.batch; ++b)
      p.query_offset.push_back(random.pick<int64_t>({f.n_key - f.n_query, 0, random.between(-f.n_query - 3, f.n_key + 3),
                                                     random.between(-3, 3), -(int64_t(1) << 60), int64_t(1) << 60}));
    p.query_offset.shrink_to_fit();
    f.query_offset = p.query_offset.data();
  }
  if (random.chance(0.25)) {
    for (int64_t b = 0; b < f.batch; ++b) p.key_length.push_back(random.chance(0.15) ? 0 : random.between(0, f.n_key));
    p.key_length.shrink_to_fit();
    f.key_length = p.key_length.data();
  }
  if (random.chance(0.25)) {
    p.sinks.resize(size_t(f.heads));
    for (double& x : p.sinks) x = random.pick<double>({random.normal(), 8 * random.normal(), -1e4, 300, -1e30, 1e30});
    f.sinks = p.sinks.data();
  }
  if (random.chance(0.2)) {
    p.alibi.resize(size_t(f.batch * f.heads));
    for (double& x : p.alibi) x = random.pick<double>({random.normal(), 0.1 * random.normal(), 0, 1e-4, 30});
    f.alibi = p.alibi.data();
  }
  if (random.chance(0.2)) f.dropout = random.pick<double>({0.1, 0.5, 0.9, 1e-10, 0.999});
  f.seed = random.next();
}

// Ids in runs or in any order, and where queries and keys stand among those of their segment.
inline void draw_segments(random_source& random, random_problem& p) {
  rootdk::attention_problem& f = p.facts;
  const int64_t most = random.pick<int64_t>({1, 2, 3, 7, 50});
  const bool runs = random.chance(0.7);
  const auto draw = [&](int64_t n, std::vector<int64_t>& ids) {
    ids.resize(size_t(f.batch * n));
    for (int64_t& id : ids) id = random.below(most) * (int64_t(1) << 40) - 3;
    for (int64_t b = 0; runs && b < f.batch; ++b) std::sort(ids.begin() + b * n, ids.begin() + (b + 1) * n);
  };
  draw(f.n_query, p.query_segment), draw(f.n_key, p.key_segment);
  const int64_t offset = random.pick<int64_t>({0, 0, 1, random.between(-9, 9), int64_t(1) << 60});
  const auto count = [&](int64_t n, const std::vector<int64_t>& ids, int64_t first, std::vector<int64_t>& positions) {
    std::map<std::pair<int64_t, int64_t>, int64_t> before;
    for (int64_t at = 0; at < f.batch * n; ++at) positions.push_back(first + before[{at / n, ids[size_t(at)]}]++);
    positions.shrink_to_fit();
  };
  count(f.n_query, p.query_segment, offset, p.query_position), count(f.n_key, p.key_segment, 0, p.key_position);
  f.query_segment = p.query_segment.data(), f.key_segment = p.key_segment.data();
  f.query_position = p.query_position.data(), f.key_position = p.key_position.data();
}

inline strided_array draw_rows(random_source& random, const random_problem& p, element type, int64_t heads, int64_t rows,
                               int64_t width) {
  const double size = random.pick<double>({1, 1, 1, 1e-3, 10});
  const double centre = random.chance(0.15) ? random.pick<double>({0.3, -4, 50}) : 0;  // far from zero: sums cancel
  strided_array a(random, type, rootdk::element_bytes(type), {p.facts.batch, heads, rows, width}, {true, true});
  a.each([&](int64_t b, int64_t h, int64_t r, int64_t d) { a.set({b, h, r, d}, centre + size * random.normal()); });
  if (type == element::float16 && random.chance(0.1))  // subnormal halves are numbers like others
    a.each([&](int64_t b, int64_t h, int64_t r, int64_t d) { a.set({b, h, r, d}, 3e-6 * random.normal()); });
  return a;
}

inline strided_array result_rows(random_source& random, const random_problem& p, int64_t heads, int64_t rows, int64_t width) {
  return strided_array(random, p.facts.type, rootdk::element_bytes(p.facts.type), {p.facts.batch, heads, rows, width},
                       {false, true});
}

inline strided_array pairs_array(random_source& random, const random_problem& p, element type, int64_t item_bytes) {
  const rootdk::attention_problem& f = p.facts;
  layout_choice choice{true, false};
  choice.repeat = 0.3;
  return strided_array(random, type, item_bytes, {f.batch, f.heads, f.n_query, f.n_key}, choice);
}

// Which pairs a mask with a structure shows: documents, a band, or blocks that are hidden, open or neither; so that rows have no
// holes, holes between runs, or holes inside them.
inline std::function<bool(int64_t, int64_t)> draw_structure(random_source& random, const rootdk::attention_problem& f) {
  const int64_t n = std::max<int64_t>(f.n_key, 1);
  switch (random.below(4)) {
    case 0: return [](int64_t, int64_t) { return true; };
    case 1: {
      const int64_t length = random.between(1, n);
      return [=](int64_t i, int64_t j) { return i / length == j / length; };
    }
    case 2: {
      const int64_t offset = random.between(-n, n), width = random.between(0, n), sinks = random.pick<int64_t>({0, 0, 1, 5});
      return [=](int64_t i, int64_t j) { return (j - i - offset >= 0 && j - i - offset <= width) || j < sinks; };
    }
    default: {
      const int64_t rows = random.between(1, 40), keys = random.pick<int64_t>({1, 3, 16, 127, 128, 129});
      const uint64_t salt = random.next();
      return [=](int64_t i, int64_t j) {
        random_source kind(salt + uint64_t(i / rows) * 8191 + uint64_t(j / keys));
        return kind.below(3) == 0 || (kind.below(3) == 0 && (i * 7 + j * 3) % 5 < 2);
      };
    }
  }
}

inline void draw_mask(random_source& random, random_problem& p) {
  p.mask = pairs_array(random, p, element::float32, 1);
  const auto shows = draw_structure(random, p.facts);
  const double keep = random.pick<double>({0, 0.1, 0.5, 0.9, 1, 1, 1});
  const int64_t hidden_start = random.chance(0.3) ? random.between(0, p.facts.n_key) : 0;
  std::vector<char> column(size_t(p.facts.n_key));
  const double hole = random.pick<double>({0, 0.15});
  for (char& hidden : column) hidden = random.chance(hole);
  p.mask.each([&](int64_t b, int64_t h, int64_t i, int64_t j) {
    const bool seen = j >= hidden_start && !column[size_t(j)] && random.chance(keep) && shows(i, j);
    *p.mask.at({b, h, i, j}) = seen ? random.pick<char>({1, 1, 1, char(0xff)}) : 0;
  });
  p.facts.mask = p.mask.pairs();
}

inline void draw_bias(random_source& random, random_problem& p) {
  p.facts.bias_type = random.pick({element::float32, element::float64, element::float16, element::bfloat16});
  p.bias = pairs_array(random, p, p.facts.bias_type, rootdk::element_bytes(p.facts.bias_type));
  const double size = random.pick<double>({1, 1, 10, 1e-3}), hide = random.pick<double>({0, 0, 0.2, 0.7, 1});
  const double centre = random.pick<double>({0, 0, 0, -1e4, 1e4});  // a log-sum-exp far below any exponent's range
  p.bias.each([&](int64_t b, int64_t h, int64_t i, int64_t j) {
    p.bias.set({b, h, i, j}, random.chance(hide) ? -infinity : exact(centre + size * random.normal()));
  });
  p.facts.bias = p.bias.pairs();
}

// NaN and infinity at a few places; in keys and values often where a length hides them.
inline void draw_specials(random_source& random, random_problem& p) {
  const rootdk::attention_problem& f = p.facts;
  const auto special = [&] { return random.pick<exact>({nan_value, nan_value, infinity, -infinity}); };
  const auto place = [&](strided_array& a, const char* name) {
    for (const int64_t n : a.shape)
      if (n == 0) return;
    int64_t row = random.below(a.shape[2]);
    const int64_t b = random.below(a.shape[0]), h = random.below(a.shape[1]);
    if (f.key_length && random.chance(0.5) && a.shape[2] == f.n_key) row = f.n_key - 1;
    const int64_t d = random.below(a.shape[3]);
    const exact x = special();
    a.set({b, h, row, d}, x);
    std::ostringstream text;
    text << " " << name << "[" << b << "," << h << "," << row << "," << d << "]=" << double(x);
    p.notes += text.str();
  };
  for (int64_t count = random.between(1, 3); count > 0; --count) switch (random.below(6)) {
      case 0: place(p.query, "query"); break;
      case 1: place(p.d_out, "d_out"); break;
      case 2:
        if (f.bias.data) place(p.bias, "bias");
        break;
      case 3: place(p.key, "key"); break;
      default: place(p.value, "value");
    }
}

// Which inputs move, and where to: any of them, now and then none; NaN and infinity among the numbers too.
inline void draw_tangents(random_source& random, random_problem& p) {
  const rootdk::attention_problem& f = p.facts;
  p.with_tangent = true;
  p.moved = f;
  p.moved.row_state = p.moved.reading = nullptr, p.moved.keys = nullptr;
  p.moved.d_query = p.moved.d_key = p.moved.d_value = p.moved.out = {}, p.moved.d_bias = {}, p.moved.d_alibi = nullptr;
  const auto draw = [&](strided_array& a, int64_t heads, int64_t rows, int64_t width, rootdk::rows_view& view) {
    if (random.chance(0.25)) return;
    a = draw_rows(random, p, f.type, heads, rows, width);
    if (a.block.size() > 0 && random.chance(0.06))
      a.set({random.below(f.batch), random.below(heads), random.below(rows), random.below(width)},
            random.pick<exact>({nan_value, infinity}));
    view = a.rows();
  };
  draw(p.moved_query, f.heads, f.n_query, f.d_k, p.moved.d_query);
  draw(p.moved_key, f.kv_heads, f.n_key, f.d_k, p.moved.d_key);
  draw(p.moved_value, f.kv_heads, f.n_key, f.d_v, p.moved.d_value);
  if (f.bias.data && random.chance(0.75)) {
    p.moved_bias = pairs_array(random, p, f.bias_type, rootdk::element_bytes(f.bias_type));
    p.moved_bias.each([&](int64_t b, int64_t h, int64_t i, int64_t j) {
      p.moved_bias.set({b, h, i, j}, random.chance(0.01) ? nan_value : exact(random.normal()));
    });
    p.moved.d_bias = p.moved_bias.pairs();
  }
  if (f.sinks && random.chance(0.75)) {
    p.moved_sinks.resize(size_t(f.heads));
    for (double& x : p.moved_sinks) x = random.normal();
    p.moved.sinks_tangent = p.moved_sinks.data();
  }
  if (f.alibi && random.chance(0.75)) {
    p.moved_alibi.resize(size_t(f.batch * f.heads));
    for (double& x : p.moved_alibi) x = random.normal();
    p.moved.alibi_tangent = p.moved_alibi.data();
  }
  if (random.chance(0.3)) p.moved.scale_tangent = f.scale * random.normal();
  p.moved_out = result_rows(random, p, f.heads, f.n_query, f.d_v);
  p.moved.d_out = p.moved_out.rows();
  if (random.chance(0.7)) {
    p.out_again = result_rows(random, p, f.heads, f.n_query, f.d_v);
    p.moved.out = p.out_again.rows();
  }
}

inline std::unique_ptr<random_problem> draw_problem(uint64_t seed) {
  random_source random(seed);
  auto p = std::make_unique<random_problem>();
  rootdk::attention_problem& f = p->facts;
  p->seed = seed;
  draw_sizes(random, f);
  draw_numbers(random, *p);
  if (random.chance(0.2)) draw_segments(random, *p);
  f.cache_type = f.type;
  if (f.type == element::float32 && random.chance(0.2)) f.cache_type = random.pick({element::float16, element::bfloat16});
  p->query = draw_rows(random, *p, f.type, f.heads, f.n_query, f.d_k);
  p->key = draw_rows(random, *p, f.cache_type, f.kv_heads, f.n_key, f.d_k);
  p->value = draw_rows(random, *p, f.cache_type, f.kv_heads, f.n_key, f.d_v);
  p->d_out = draw_rows(random, *p, f.type, f.heads, f.n_query, f.d_v);
  if (random.chance(0.25)) draw_mask(random, *p);
  if (random.chance(0.25)) draw_bias(random, *p);
  if (random.chance(0.25)) draw_specials(random, *p);
  p->out = result_rows(random, *p, f.heads, f.n_query, f.d_v);
  p->d_query = result_rows(random, *p, f.heads, f.n_query, f.d_k);
  p->d_key = result_rows(random, *p, f.kv_heads, f.n_key, f.d_k);
  p->d_value = result_rows(random, *p, f.kv_heads, f.n_key, f.d_v);
  f.query = p->query.rows(), f.key = p->key.rows(), f.value = p->value.rows(), f.out = p->out.rows();
  if (f.bias.data && random.chance(0.8)) {
    // Any axes broadcast, whatever those of the bias are: the sums are the same.
    p->d_bias = strided_array(random, p->real(), rootdk::element_bytes(p->real()), p->bias.shape, {true, false, 0.4});
    f.d_bias = p->d_bias.pairs();
  }
  f.d_out = p->d_out.rows(), f.d_query = p->d_query.rows(), f.d_key = p->d_key.rows(), f.d_value = p->d_value.rows();

  const int64_t real_bytes = rootdk::element_bytes(p->real());
  p->with_backward = random.chance(0.85) && f.cache_type == f.type;
  if (p->with_backward || random.chance(0.5)) {
    p->row_state = exact_block(2 * f.rows() * real_bytes, random.chance(0.5));
    f.row_state = p->row_state.data();
  }
  if (f.row_state && f.cache_type == f.type && random.chance(0.3)) {
    layout_choice choice{false, false};
    p->weights = strided_array(random, p->real(), real_bytes, {f.batch, f.heads, f.n_query, f.n_key}, choice);
    f.weights = p->weights.pairs();
    if (random.chance(0.5)) f.weights.query_stride = 0;  // what each key received, in the first row
  }
  if (f.alibi && random.chance(0.8)) {
    p->d_alibi = exact_block(f.batch * f.heads * real_bytes, random.chance(0.5));
    f.d_alibi = p->d_alibi.data();
  }
  if (random.chance(0.5)) {
    p->reading = exact_block(rootdk::reading_fields * f.rows() * real_bytes, random.chance(0.5));
    p->keys = exact_block(f.rows() * 8, random.chance(0.5));
    f.reading = p->reading.data();
    f.keys = reinterpret_cast<int64_t*>(p->keys.data());
  }
  p->threads = int(random.between(1, 3));
  if (f.cache_type == f.type && random.chance(0.7)) draw_tangents(random, *p);  // of one type, as gradients are
  return p;
}

// The problem in one block that a person can read.
inline std::string describe(const random_problem& p) {
  const rootdk::attention_problem& f = p.facts;
  std::ostringstream s;
  const auto list = [&](const char* name, const auto& values) {
    s << "\n  " << name;
    for (size_t i = 0; i < values.size() && i < 12; ++i) s << ' ' << values[i];
    if (values.size() > 12) s << " ...";
  };
  s << "  seed " << p.seed << "\n  " << element_name(f.type) << " over " << element_name(f.cache_type) << "  batch " << f.batch
    << "  heads " << f.heads << "  kv_heads " << f.kv_heads << "  n_query " << f.n_query << "  n_key " << f.n_key << "  d_k "
    << f.d_k << "  d_v " << f.d_v << "\n  scale " << f.scale << "  softcap " << f.softcap << "  left " << f.left << "  right "
    << f.right << "  dropout " << f.dropout << "  dropout seed " << f.seed << "\n  threads " << p.threads << "  row_state "
    << (f.row_state != nullptr) << "  reading " << (f.reading != nullptr) << "  backward " << p.with_backward;
  if (f.query_offset) list("query_offset", p.query_offset);
  if (f.key_length) list("key_length", p.key_length);
  if (f.key_segment) list("query_segment", p.query_segment), list("key_segment", p.key_segment);
  if (f.query_position) list("query_position", p.query_position);
  if (f.row_scale) list("row_scale", p.row_scale);
  if (f.sinks) list("sinks", p.sinks);
  if (f.alibi) list("alibi", p.alibi);
  const auto layout = [&](const char* name, const strided_array& a) { s << "\n  " << name << " " << a.text(); };
  layout("query", p.query), layout("key", p.key), layout("value", p.value), layout("out", p.out);
  layout("d_out", p.d_out), layout("d_query", p.d_query), layout("d_key", p.d_key), layout("d_value", p.d_value);
  if (p.with_tangent) {
    s << "\n  moved scale " << p.moved.scale_tangent;
    if (p.moved.d_query.data) layout("moved_query", p.moved_query);
    if (p.moved.d_key.data) layout("moved_key", p.moved_key);
    if (p.moved.d_value.data) layout("moved_value", p.moved_value);
    if (p.moved.d_bias.data) layout("moved_bias", p.moved_bias);
    if (p.moved.sinks_tangent) list("moved_sinks", p.moved_sinks);
    if (p.moved.alibi_tangent) list("moved_alibi", p.moved_alibi);
    layout("moved_out", p.moved_out);
  }
  if (f.mask.data) layout("mask", p.mask);
  if (f.bias.data) layout("bias", p.bias), s << ' ' << element_name(f.bias_type);
  if (f.d_bias.data) layout("d_bias", p.d_bias);
  if (!p.notes.empty()) s << "\n  special values:" << p.notes;
  return s.str() + "\n";
}

}  // namespace fuzz
