// Python's door to the kernel, and the only file that knows nanobind: arrays become pointers, sizes and strides, the GIL
// is released, the kernel runs. Values were checked in _arguments.py; what is checked here is what would read or write out
// of bounds.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention.h"
#include "pool.h"

namespace nb = nanobind;
using namespace nb::literals;
using rootdk::attention_problem;
using rootdk::element;
using rootdk::pairs_view;
using rootdk::rows_view;

namespace {

typedef nb::ndarray<nb::ro, nb::device::cpu> any_array;
typedef nb::ndarray<nb::device::cpu> out_array;
typedef std::optional<any_array> maybe_array;
typedef std::optional<out_array> maybe_out;

void require(bool condition, const char* message) {
  if (!condition) throw nb::value_error(message);
}

// Offsets, in elements, of every index of the leading axes (all but the last three), in C order.
template <typename array>
std::vector<int64_t> batch_offsets(const array& a) {
  std::vector<int64_t> offsets{0};
  for (size_t axis = 0; axis + 3 < a.ndim(); ++axis) {
    std::vector<int64_t> next;
    next.reserve(offsets.size() * a.shape(axis));
    for (const int64_t offset : offsets)
      for (size_t i = 0; i < a.shape(axis); ++i) next.push_back(offset + int64_t(i) * a.stride(axis));
    offsets.swap(next);
  }
  return offsets;
}

// Arrays and the offset lists that the views point to, alive as long as the call.
struct call {
  attention_problem problem;
  std::vector<std::vector<int64_t>> offsets;

  call() { offsets.reserve(16); }

  template <typename array>
  const int64_t* keep_offsets(const array& a) {
    offsets.push_back(batch_offsets(a));
    require(int64_t(offsets.back().size()) == problem.batch, "kernel: arrays differ in their leading axes");
    return offsets.back().data();
  }

  template <typename array>
  rows_view rows(const array& a, int64_t heads, int64_t rows, int64_t width) {
    require(a.ndim() >= 3 && a.itemsize() == size_t(rootdk::element_bytes(problem.type)), "kernel: wrong rank or element size");
    const size_t n = a.ndim();
    require(int64_t(a.shape(n - 3)) == heads && int64_t(a.shape(n - 2)) == rows && int64_t(a.shape(n - 1)) == width,
            "kernel: an array has an unexpected shape");
    require(width <= 1 || a.size() == 0 || a.stride(n - 1) == 1, "kernel: the last axis must be contiguous");
    return {static_cast<char*>(const_cast<void*>(static_cast<const void*>(a.data()))), keep_offsets(a), a.stride(n - 3),
            a.stride(n - 2)};
  }

  pairs_view pairs(const any_array& a, size_t item_bytes) {
    const size_t n = a.ndim();
    require(n >= 3 && a.itemsize() == item_bytes, "kernel: mask or bias has a wrong rank or element size");
    require(int64_t(a.shape(n - 3)) == problem.heads && int64_t(a.shape(n - 2)) == problem.n_query &&
                int64_t(a.shape(n - 1)) == problem.n_key,
            "kernel: mask and bias must be broadcast to (heads, n_query, n_key)");
    return {static_cast<const char*>(a.data()), keep_offsets(a), a.stride(n - 3), a.stride(n - 2), a.stride(n - 1)};
  }
};

template <typename type, typename array>
type* flat(const array& a, int64_t count, const char* message) {
  int64_t expected_stride = 1;
  for (size_t axis = a.ndim(); axis-- > 0;) {
    require(a.size() == 0 || a.shape(axis) <= 1 || a.stride(axis) == expected_stride, message);
    expected_stride *= int64_t(a.shape(axis));
  }
  require(a.itemsize() == sizeof(type) && int64_t(a.size()) == count, message);
  return static_cast<type*>(const_cast<void*>(static_cast<const void*>(a.data())));
}

void* flat_real(const out_array& a, element type, int64_t count, const char* message) {
  return type == element::float64 ? static_cast<void*>(flat<double>(a, count, message))
                                  : static_cast<void*>(flat<float>(a, count, message));
}

// Everything that forward and backward share.
void describe(call& c, int type, const any_array& query, const any_array& key, const any_array& value, double scale,
              const maybe_array& row_scale, double softcap, int64_t left, int64_t right, const any_array& query_offset,
              const maybe_array& key_lengths, const maybe_array& mask, const maybe_array& bias, int bias_type,
              const maybe_array& sinks, double dropout, uint64_t seed) {
  require(type >= 0 && type <= 3 && bias_type >= 0 && bias_type <= 3, "kernel: unknown element code");
  require(query.ndim() >= 3 && key.ndim() >= 3 && value.ndim() >= 3, "kernel: query, key and value need three axes");
  attention_problem& p = c.problem;
  p.type = element(type);
  const size_t n = query.ndim();
  p.batch = 1;
  for (size_t axis = 0; axis + 3 < n; ++axis) p.batch *= int64_t(query.shape(axis));
  p.heads = int64_t(query.shape(n - 3)), p.n_query = int64_t(query.shape(n - 2)), p.d_k = int64_t(query.shape(n - 1));
  p.kv_heads = int64_t(key.shape(key.ndim() - 3)), p.n_key = int64_t(key.shape(key.ndim() - 2));
  p.d_v = int64_t(value.shape(value.ndim() - 1));
  require(p.heads == 0 || (p.kv_heads > 0 && p.heads % p.kv_heads == 0), "kernel: heads must be a multiple of kv_heads");
  p.query = c.rows(query, p.heads, p.n_query, p.d_k);
  p.key = c.rows(key, p.kv_heads, p.n_key, p.d_k);
  p.value = c.rows(value, p.kv_heads, p.n_key, p.d_v);
  p.scale = scale, p.softcap = softcap, p.left = left, p.right = right;
  if (row_scale) p.row_scale = flat<double>(*row_scale, p.batch * p.n_query, "kernel: row_scale must be float64 (batch, n_query)");
  p.query_offset = flat<int64_t>(query_offset, p.batch, "kernel: query_offset must be int64 (batch,)");
  if (key_lengths) {
    p.key_length = flat<int64_t>(*key_lengths, p.batch, "kernel: key_lengths must be int64 (batch,)");
    for (int64_t b = 0; b < p.batch; ++b)
      require(p.key_length[b] >= 0 && p.key_length[b] <= p.n_key, "kernel: key_lengths out of range");
  }
  if (mask) p.mask = c.pairs(*mask, 1);
  if (bias) {
    p.bias_type = element(bias_type);
    p.bias = c.pairs(*bias, size_t(rootdk::element_bytes(p.bias_type)));
  }
  if (sinks) p.sinks = flat<double>(*sinks, p.heads, "kernel: sinks must be float64 (heads,)");
  p.dropout = dropout, p.seed = seed;
}

void forward(int type, any_array query, any_array key, any_array value, out_array out, double scale, maybe_array row_scale,
             double softcap, int64_t left, int64_t right, any_array query_offset, maybe_array key_lengths, maybe_array mask,
             maybe_array bias, int bias_type, maybe_array sinks, double dropout, uint64_t seed, maybe_out row_state,
             maybe_out reading, maybe_out keys) {
  call c;
  describe(c, type, query, key, value, scale, row_scale, softcap, left, right, query_offset, key_lengths, mask, bias,
           bias_type, sinks, dropout, seed);
  attention_problem& p = c.problem;
  p.out = c.rows(out, p.heads, p.n_query, p.d_v);
  if (row_state) p.row_state = flat_real(*row_state, p.type, 2 * p.rows(), "kernel: row_state must be (2, batch, heads, n_query)");
  require(reading.has_value() == keys.has_value(), "kernel: reading and keys go together");
  if (reading) {
    p.reading = flat_real(*reading, p.type, rootdk::reading_fields * p.rows(), "kernel: reading must be (9, batch, heads, n_query)");
    p.keys = flat<int64_t>(*keys, p.rows(), "kernel: keys must be int64 (batch, heads, n_query)");
  }
  nb::gil_scoped_release unlocked;
  rootdk::attention_forward(p);
}

void backward(int type, any_array query, any_array key, any_array value, any_array out, any_array d_out, out_array row_state,
              out_array d_query, out_array d_key, out_array d_value, double scale, maybe_array row_scale, double softcap,
              int64_t left, int64_t right, any_array query_offset, maybe_array key_lengths, maybe_array mask,
              maybe_array bias, int bias_type, maybe_array sinks, double dropout, uint64_t seed) {
  call c;
  describe(c, type, query, key, value, scale, row_scale, softcap, left, right, query_offset, key_lengths, mask, bias,
           bias_type, sinks, dropout, seed);
  attention_problem& p = c.problem;
  p.out = c.rows(out, p.heads, p.n_query, p.d_v);
  p.d_out = c.rows(d_out, p.heads, p.n_query, p.d_v);
  p.row_state = flat_real(row_state, p.type, 2 * p.rows(), "kernel: row_state must be (2, batch, heads, n_query)");
  p.d_query = c.rows(d_query, p.heads, p.n_query, p.d_k);
  p.d_key = c.rows(d_key, p.kv_heads, p.n_key, p.d_k);
  p.d_value = c.rows(d_value, p.kv_heads, p.n_key, p.d_v);
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
        "bias_element"_a, "sinks"_a.none(), "dropout"_a, "seed"_a, "row_state"_a.none(), "reading"_a.none(), "keys"_a.none());
  m.def("backward", &backward, "element"_a, "query"_a, "key"_a, "value"_a, "out"_a, "d_out"_a, "row_state"_a, "d_query"_a,
        "d_key"_a, "d_value"_a, "scale"_a, "row_scale"_a.none(), "softcap"_a, "left"_a, "right"_a, "query_offset"_a,
        "key_lengths"_a.none(), "mask"_a.none(), "bias"_a.none(), "bias_element"_a, "sinks"_a.none(), "dropout"_a, "seed"_a);
  m.def("target", [] { return std::string(rootdk::current_target().name); });
  m.def("targets", &target_names);
  m.def("set_target", &set_target, "name"_a);
  m.def("num_threads", &rootdk::num_threads);
  m.def("set_num_threads", &rootdk::set_num_threads, "threads"_a);
  m.def("tile", &tile);
  m.def("compiler", [] { return std::string(ROOTDK_COMPILER); });
}
