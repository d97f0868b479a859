// Python's door to the kernel, and the only file that knows nanobind: arrays become pointers, sizes and strides, the GIL
// is released, the kernel runs. Values were checked in _arguments.py; what is checked here is what would read or write out
// of bounds.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "attention.h"
#include "memory.h"
#include "pool.h"

namespace nb = nanobind;
using namespace nb::literals;
using rootdk::attention_problem;
using rootdk::element;
using rootdk::memory;
using rootdk::pairs_view;
using rootdk::rows_view;

namespace {

void require(bool condition, const char* message) {
  if (!condition) throw nb::value_error(message);
}

// Arrays and the offset lists that the views point to, alive as long as the call.
struct call {
  attention_problem problem;
  static constexpr int most = 24;  // arrays in one call
  std::optional<memory> kept[most];
  int count = 0;
  std::deque<std::vector<int64_t>> offsets;

  const memory& in(nb::handle given) { return keep(given, false); }
  const memory& out(nb::handle given) { return keep(given, true); }
  const memory& keep(nb::handle given, bool writable) {
    require(count < most, "kernel: too many arrays");
    return kept[count++].emplace(given, writable);
  }

  // Offsets, in elements, of every index of the leading axes (all but the last three), in C order.
  const int64_t* batch_offsets(const memory& a) {
    static const int64_t nowhere_else = 0;
    int64_t batch = 1;
    for (int axis = a.axes(); axis-- > 3;) batch *= a.shape_from_end(axis);
    require(batch == problem.batch, "kernel: arrays differ in their leading axes");
    if (batch == 1) return &nowhere_else;
    std::vector<int64_t>& flat = offsets.emplace_back(1, 0);
    for (int axis = a.axes(); axis-- > 3;) {
      std::vector<int64_t> next;
      next.reserve(flat.size() * size_t(a.shape_from_end(axis)));
      for (const int64_t offset : flat)
        for (int64_t i = 0; i < a.shape_from_end(axis); ++i) next.push_back(offset + i * a.stride_from_end(axis));
      flat.swap(next);
    }
    return flat.data();
  }

  rows_view rows(const memory& a, int64_t heads, int64_t rows, int64_t width) {
    require(a.axes() >= 3 && a.item_bytes() == rootdk::element_bytes(problem.type), "kernel: wrong rank or element size");
    require(a.shape_from_end(2) == heads && a.shape_from_end(1) == rows && a.shape_from_end(0) == width,
            "kernel: an array has an unexpected shape");
    require(width <= 1 || a.size() == 0 || a.stride_from_end(0) == 1, "kernel: the last axis must be contiguous");
    return {a.data(), batch_offsets(a), a.stride_from_end(2), a.stride_from_end(1)};
  }

  pairs_view pairs(const memory& a, int64_t item_bytes) {
    require(a.axes() >= 3 && a.item_bytes() == item_bytes, "kernel: mask, bias or d_bias has a wrong rank or element size");
    require(a.shape_from_end(2) == problem.heads && a.shape_from_end(1) == problem.n_query &&
                a.shape_from_end(0) == problem.n_key,
            "kernel: mask, bias and d_bias must be broadcast to (heads, n_query, n_key)");
    return {a.data(), batch_offsets(a), a.stride_from_end(2), a.stride_from_end(1), a.stride_from_end(0)};
  }
};

template <typename type>
type* flat(const memory& a, int64_t count, const char* message) {
  int64_t expected_stride = 1;
  for (int axis = 0; axis < a.axes(); ++axis) {
    require(a.size() == 0 || a.shape_from_end(axis) <= 1 || a.stride_from_end(axis) == expected_stride, message);
    expected_stride *= a.shape_from_end(axis);
  }
  require(a.item_bytes() == int64_t(sizeof(type)) && a.size() == count, message);
  return reinterpret_cast<type*>(a.data());
}

void* flat_real(const memory& a, element type, int64_t count, const char* message) {
  return type == element::float64 ? static_cast<void*>(flat<double>(a, count, message))
                                  : static_cast<void*>(flat<float>(a, count, message));
}

// Everything that forward and backward share.
void describe(call& c, int type, nb::handle query, nb::handle key, nb::handle value, double scale, nb::handle row_scale,
              double softcap, int64_t left, int64_t right, nb::handle query_offset, nb::handle key_lengths,
              nb::handle mask, nb::handle bias, int bias_type, nb::handle sinks, double dropout, uint64_t seed) {
  require(type >= 0 && type <= 3 && bias_type >= 0 && bias_type <= 3, "kernel: unknown element code");
  const memory &q = c.in(query), &k = c.in(key), &v = c.in(value);
  require(q.axes() >= 3 && k.axes() >= 3 && v.axes() >= 3, "kernel: query, key and value need three axes");
  attention_problem& p = c.problem;
  p.type = element(type);
  p.batch = 1;
  for (int axis = 3; axis < q.axes(); ++axis) p.batch *= q.shape_from_end(axis);
  p.heads = q.shape_from_end(2), p.n_query = q.shape_from_end(1), p.d_k = q.shape_from_end(0);
  p.kv_heads = k.shape_from_end(2), p.n_key = k.shape_from_end(1);
  p.d_v = v.shape_from_end(0);
  require(p.heads == 0 || (p.kv_heads > 0 && p.heads % p.kv_heads == 0), "kernel: heads must be a multiple of kv_heads");
  p.query = c.rows(q, p.heads, p.n_query, p.d_k);
  p.key = c.rows(k, p.kv_heads, p.n_key, p.d_k);
  p.value = c.rows(v, p.kv_heads, p.n_key, p.d_v);
  p.scale = scale, p.softcap = softcap, p.left = left, p.right = right;
  if (!row_scale.is_none())
    p.row_scale = flat<double>(c.in(row_scale), p.batch * p.n_query, "kernel: row_scale must be float64 (batch, n_query)");
  p.query_offset = flat<int64_t>(c.in(query_offset), p.batch, "kernel: query_offset must be int64 (batch,)");
  if (!key_lengths.is_none()) {
    p.key_length = flat<int64_t>(c.in(key_lengths), p.batch, "kernel: key_lengths must be int64 (batch,)");
    for (int64_t b = 0; b < p.batch; ++b)
      require(p.key_length[b] >= 0 && p.key_length[b] <= p.n_key, "kernel: key_lengths out of range");
  }
  if (!mask.is_none()) p.mask = c.pairs(c.in(mask), 1);
  if (!bias.is_none()) {
    p.bias_type = element(bias_type);
    p.bias = c.pairs(c.in(bias), rootdk::element_bytes(p.bias_type));
  }
  if (!sinks.is_none()) p.sinks = flat<double>(c.in(sinks), p.heads, "kernel: sinks must be float64 (heads,)");
  p.dropout = dropout, p.seed = seed;
}

void forward(int type, nb::handle query, nb::handle key, nb::handle value, nb::handle out, double scale,
             nb::handle row_scale, double softcap, int64_t left, int64_t right, nb::handle query_offset,
             nb::handle key_lengths, nb::handle mask, nb::handle bias, int bias_type, nb::handle sinks, double dropout,
             uint64_t seed, nb::handle row_state, nb::handle reading, nb::handle keys, int team) {
  call c;
  describe(c, type, query, key, value, scale, row_scale, softcap, left, right, query_offset, key_lengths, mask, bias,
           bias_type, sinks, dropout, seed);
  attention_problem& p = c.problem;
  p.team = team;
  p.out = c.rows(c.out(out), p.heads, p.n_query, p.d_v);
  if (!row_state.is_none())
    p.row_state = flat_real(c.out(row_state), p.type, 2 * p.rows(), "kernel: row_state must be (2, batch, heads, n_query)");
  require(reading.is_none() == keys.is_none(), "kernel: reading and keys go together");
  if (!reading.is_none()) {
    p.reading = flat_real(c.out(reading), p.type, rootdk::reading_fields * p.rows(),
                          "kernel: reading must be (9, batch, heads, n_query)");
    p.keys = flat<int64_t>(c.out(keys), p.rows(), "kernel: keys must be int64 (batch, heads, n_query)");
  }
  nb::gil_scoped_release unlocked;
  rootdk::attention_forward(p);
}

void backward(int type, nb::handle query, nb::handle key, nb::handle value, nb::handle out, nb::handle d_out,
              nb::handle row_state, nb::handle d_query, nb::handle d_key, nb::handle d_value, double scale,
              nb::handle row_scale, double softcap, int64_t left, int64_t right, nb::handle query_offset,
              nb::handle key_lengths, nb::handle mask, nb::handle bias, int bias_type, nb::handle sinks, double dropout,
              uint64_t seed, nb::handle d_bias, int team) {
  call c;
  describe(c, type, query, key, value, scale, row_scale, softcap, left, right, query_offset, key_lengths, mask, bias,
           bias_type, sinks, dropout, seed);
  attention_problem& p = c.problem;
  p.team = team;
  p.out = c.rows(c.in(out), p.heads, p.n_query, p.d_v);
  p.d_out = c.rows(c.in(d_out), p.heads, p.n_query, p.d_v);
  p.row_state = flat_real(c.in(row_state), p.type, 2 * p.rows(), "kernel: row_state must be (2, batch, heads, n_query)");
  p.d_query = c.rows(c.out(d_query), p.heads, p.n_query, p.d_k);
  p.d_key = c.rows(c.out(d_key), p.kv_heads, p.n_key, p.d_k);
  p.d_value = c.rows(c.out(d_value), p.kv_heads, p.n_key, p.d_v);
  if (!d_bias.is_none()) p.d_bias = c.pairs(c.out(d_bias), p.type == element::float64 ? 8 : 4);
  nb::gil_scoped_release unlocked;
  rootdk::attention_backward(p);
}

std::vector<std::string> target_names() {
  std::vector<std::string> names;
  for (const rootdk::kernel_target* target : rootdk::available_targets()) names.push_back(target->name);
  return names;
}

void set_target(const std::string& name) {
  if (rootdk::set_current_target(name)) return;
  std::string known;
  for (const std::string& other : target_names()) known += (known.empty() ? "" : ", ") + other;
  throw nb::value_error(("target: must be one of " + known + " on this CPU, got '" + name + "'").c_str());
}

nb::dict tile() {
  nb::dict sizes;
  sizes["lanes"] = rootdk::current_target().panel_lanes_f32;
  sizes["keys"] = rootdk::current_target().key_block;
  return sizes;
}

}  // namespace

NB_MODULE(_kernel, m) {
  m.attr("FLOAT32") = int(element::float32);
  m.attr("FLOAT64") = int(element::float64);
  m.attr("FLOAT16") = int(element::float16);
  m.attr("BFLOAT16") = int(element::bfloat16);
  m.def("forward", &forward, "element"_a, "query"_a, "key"_a, "value"_a, "out"_a, "scale"_a, "row_scale"_a.none(),
        "softcap"_a, "left"_a, "right"_a, "query_offset"_a, "key_lengths"_a.none(), "mask"_a.none(), "bias"_a.none(),
        "bias_element"_a, "sinks"_a.none(), "dropout"_a, "seed"_a, "row_state"_a.none(), "reading"_a.none(), "keys"_a.none(),
        "team"_a = 0);
  m.def("backward", &backward, "element"_a, "query"_a, "key"_a, "value"_a, "out"_a, "d_out"_a, "row_state"_a, "d_query"_a,
        "d_key"_a, "d_value"_a, "scale"_a, "row_scale"_a.none(), "softcap"_a, "left"_a, "right"_a, "query_offset"_a,
        "key_lengths"_a.none(), "mask"_a.none(), "bias"_a.none(), "bias_element"_a, "sinks"_a.none(), "dropout"_a, "seed"_a,
        "d_bias"_a.none() = nb::none(), "team"_a = 0);
  m.def("target", [] { return std::string(rootdk::current_target().name); });
  m.def("targets", &target_names);
  m.def("set_target", &set_target, "name"_a);
  m.def("has_openmp", &rootdk::has_openmp);
  m.def("num_threads", &rootdk::num_threads);
  m.def("set_num_threads", &rootdk::set_num_threads, "threads"_a);
  m.def("tile", &tile);
  m.def("compiler", [] { return std::string(ROOTDK_COMPILER); });
}
