// How Python calls the kernel, and the only file that knows nanobind: arrays become pointers, sizes and strides, the GIL
// is released, the kernel runs. Values were checked in options.py; what is checked here is what would read or write out
// of bounds.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "attention.h"
#include "interruption.h"
#include "memory.h"
#include "pool.h"
#include "system.h"
#include "xla.h"

namespace nb = nanobind;
using namespace nb::literals;
using rootdk::attention_problem;
using rootdk::element;
using rootdk::memory;
using rootdk::pairs_view;
using rootdk::rows_view;

namespace rootdk {
extern const char* const source_digest;  // bindings/sources.py
}

namespace {

void require(bool condition, const char* message) {
  if (!condition) throw nb::value_error(message);
}

// Where the fields of a Problem, of a Learnable and of Options stand in their tuples, found by their names:
// src/rootdk/options.py says what each of them is. Looked up once per type, and there is one of each.
#define ROOTDK_PROBLEM_FIELDS(each)                                                                                     \
  each(query) each(key) each(value) each(scale) each(row_scale) each(softcap) each(left) each(right) each(query_offset) \
      each(key_lengths) each(query_segments) each(key_segments) each(query_positions) each(key_positions) each(mask)    \
          each(bias) each(sinks) each(alibi) each(dropout) each(seed)
#define ROOTDK_LEARNABLE_FIELDS(each) each(query) each(key) each(value) each(sinks) each(scale) each(bias) each(alibi)
#define ROOTDK_OPTION_FIELDS(each) each(scale) each(causal) each(query_offset) each(dropout)

#define ROOTDK_PLACE(name) Py_ssize_t name;
#define ROOTDK_FIND(name) name = place_of(#name);
#define ROOTDK_ONE(name) +1
#define ROOTDK_PLACES(fields)                                                    \
  fields(ROOTDK_PLACE) static constexpr Py_ssize_t count = 0 fields(ROOTDK_ONE); \
  template <typename place_of_t>                                                 \
  void find(const place_of_t& place_of) {                                        \
    fields(ROOTDK_FIND)                                                          \
  }
struct problem_places {
  ROOTDK_PLACES(ROOTDK_PROBLEM_FIELDS)
};
struct learnable_places {
  ROOTDK_PLACES(ROOTDK_LEARNABLE_FIELDS)
};
struct option_places {  // of the others it is enough that they are what they are in a usual call
  ROOTDK_PLACES(ROOTDK_OPTION_FIELDS)
};

template <typename places_t>
const places_t& places_in(nb::tuple record) {
  static PyTypeObject* known = nullptr;
  static places_t places;
  static Py_ssize_t fields = 0;
  if (Py_TYPE(record.ptr()) == known) {
    require(NB_TUPLE_GET_SIZE(record.ptr()) == fields, "kernel: a record has another number of fields");
    return places;
  }
  require(nb::hasattr(record, "_fields"), "kernel: a record is a named tuple");
  const nb::object names = record.attr("_fields");
  const Py_ssize_t size = NB_TUPLE_GET_SIZE(record.ptr());
  places_t looked_up;  // a record that is refused leaves what is known of the last one as it was
  looked_up.find([&](const char* name) {
    const nb::object wanted = nb::str(name);
    const Py_ssize_t place = PySequence_Index(names.ptr(), wanted.ptr());
    if (place < 0) PyErr_Clear();
    require(place >= 0 && place < size, "kernel: a record lacks a field");
    return place;
  });
  // A field that nobody here reads would be an option without an effect.
  require(std::is_same<places_t, option_places>::value || size == places_t::count, "kernel: a record has an unknown field");
  places = looked_up, fields = size;
  known = Py_TYPE(record.ptr());
  Py_INCREF(reinterpret_cast<PyObject*>(known));  // so that no other type can get its address
  return places;
}

nb::handle item(nb::tuple record, Py_ssize_t place) { return nb::handle(NB_TUPLE_GET_ITEM(record.ptr(), place)); }

char format_of(element type) { return "fdeH"[int(type)]; }

element element_of(const memory& a) {
  for (const element type : {element::float32, element::float64, element::float16, element::bfloat16})
    if (a.format() == format_of(type)) return type;
  throw nb::value_error("kernel: an array must be of a supported floating type");
}

// Arrays and the offset lists that the views point to, alive as long as the call.
struct call {
  attention_problem problem;
  static constexpr int most = 32;  // arrays in one call
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
    static const int64_t only_offset = 0;
    int64_t batch = 1;
    for (int axis = a.axes(); axis-- > 3;) batch *= a.shape_from_end(axis);
    require(batch == problem.batch, "kernel: arrays differ in their leading axes");
    if (batch == 1) return &only_offset;
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
    return rows_of(a, problem.type, heads, rows, width);
  }
  rows_view rows_of(const memory& a, element type, int64_t heads, int64_t rows, int64_t width) {
    require(a.axes() >= 3 && a.format() == format_of(type), "kernel: wrong rank or type");
    require(a.shape_from_end(2) == heads && a.shape_from_end(1) == rows && a.shape_from_end(0) == width,
            "kernel: an array has an unexpected shape");
    require(width <= 1 || a.size() == 0 || a.stride_from_end(0) == 1, "kernel: the last axis must be contiguous");
    return {a.data(), batch_offsets(a), a.stride_from_end(2), a.stride_from_end(1)};
  }

  pairs_view pairs(const memory& a, char format) {
    require(a.axes() >= 3 && a.format() == format, "kernel: mask, bias or d_bias has a wrong rank or type");
    require(
        a.shape_from_end(2) == problem.heads && a.shape_from_end(1) == problem.n_query && a.shape_from_end(0) == problem.n_key,
        "kernel: mask, bias and d_bias must be broadcast to (heads, n_query, n_key)");
    return {a.data(), batch_offsets(a), a.stride_from_end(2), a.stride_from_end(1), a.stride_from_end(0)};
  }
};

template <typename type>
constexpr char format_of_type = std::is_same_v<type, double>  ? 'd'
                                : std::is_same_v<type, float> ? 'f'
                                                              : 'q';

template <typename type>
type* flat(const memory& a, int64_t count, const char* message) {
  int64_t expected_stride = 1;
  for (int axis = 0; axis < a.axes(); ++axis) {
    require(a.size() == 0 || a.shape_from_end(axis) <= 1 || a.stride_from_end(axis) == expected_stride, message);
    expected_stride *= a.shape_from_end(axis);
  }
  require(a.format() == format_of_type<type> && a.size() == count, message);
  return reinterpret_cast<type*>(a.data());
}

void* flat_real(const memory& a, element type, int64_t count, const char* message) {
  return type == element::float64 ? static_cast<void*>(flat<double>(a, count, message))
                                  : static_cast<void*>(flat<float>(a, count, message));
}

// A Reading for the kernel to fill: an instance of `kind` with nothing but `_buffer`, of which Reading makes arrays when a
// field is read. Made here, because every step of Python makes a small call slower: right after a kernel has run, little of
// Python is left in the caches. The buffer is one piece of bytes whose parts begin at lines of the cache, because the kernel
// writes whole lines past it, and memory promises 16 bytes only. Only this function knows where the parts lie, and says so in
// `_buffer`.
nb::object make_reading(attention_problem& p, nb::handle kind, const memory& query) {
  constexpr int64_t line = 64;
  const auto whole_lines = [](int64_t bytes) { return (bytes + line - 1) / line * line; };
  const int64_t real_bytes = p.type == element::float64 ? 8 : 4;
  const int64_t fields_bytes = whole_lines(rootdk::reading_fields * p.rows() * real_bytes);
  const auto made = [](PyObject* object) {
    if (!object) throw nb::python_error();
    return nb::steal(object);
  };
  const nb::object buffer = made(PyByteArray_FromStringAndSize(nullptr, Py_ssize_t(line + fields_bytes + p.rows() * 8)));
  char* const first = PyByteArray_AsString(buffer.ptr());
  const int64_t fields_at = (line - int64_t(reinterpret_cast<uintptr_t>(first) % line)) % line;
  const int64_t keys_at = fields_at + fields_bytes;
  p.reading = first + fields_at;
  p.keys = reinterpret_cast<int64_t*>(first + keys_at);

  const int axes = query.axes() - 1;  // all but d_k
  const nb::object shape = made(PyTuple_New(axes));
  for (int axis = 0; axis < axes; ++axis)
    NB_TUPLE_SET_ITEM(shape.ptr(), axis, made(PyLong_FromLongLong(query.shape_from_end(axes - axis))).release().ptr());
  const nb::object reading = made(PyType_GenericAlloc(reinterpret_cast<PyTypeObject*>(kind.ptr()), 0));
  const nb::object held = made(PyObject_GenericGetDict(reading.ptr(), nullptr));
  static PyObject* const name = PyUnicode_InternFromString("_buffer");
  const nb::object fields_place = made(PyLong_FromLongLong(fields_at)), keys_place = made(PyLong_FromLongLong(keys_at));
  const nb::object whole = made(PyTuple_Pack(6, buffer.ptr(), fields_place.ptr(), keys_place.ptr(), shape.ptr(),
                                             real_bytes == 8 ? Py_True : Py_False, p.sinks ? Py_True : Py_False));
  if (PyDict_SetItem(held.ptr(), name, whole.ptr()) != 0) throw nb::python_error();
  return reading;
}

// Everything that forward and backward share.
void describe(call& c, nb::tuple problem, int team) {
  const problem_places& at = places_in<problem_places>(problem);
  const auto given = [&](Py_ssize_t place) { return item(problem, place); };
  const memory &q = c.in(given(at.query)), &k = c.in(given(at.key)), &v = c.in(given(at.value));
  require(q.axes() >= 3 && k.axes() >= 3 && v.axes() >= 3, "kernel: query, key and value need three axes");
  attention_problem& p = c.problem;
  p.type = element_of(q);
  p.batch = 1;
  for (int axis = 3; axis < q.axes(); ++axis) p.batch *= q.shape_from_end(axis);
  p.heads = q.shape_from_end(2), p.n_query = q.shape_from_end(1), p.d_k = q.shape_from_end(0);
  p.kv_heads = k.shape_from_end(2), p.n_key = k.shape_from_end(1);
  p.d_v = v.shape_from_end(0);
  require(p.heads == 0 || (p.kv_heads > 0 && p.heads % p.kv_heads == 0), "kernel: heads must be a multiple of kv_heads");
  p.query = c.rows(q, p.heads, p.n_query, p.d_k);
  p.cache_type = element_of(k);
  require(p.cache_type == p.type || (p.type == element::float32 && p.cache_type != element::float64),
          "kernel: key must be of query's type, or of a half type under float32");
  p.key = c.rows_of(k, p.cache_type, p.kv_heads, p.n_key, p.d_k);
  p.value = c.rows_of(v, p.cache_type, p.kv_heads, p.n_key, p.d_v);
  p.scale = nb::cast<double>(given(at.scale));
  if (!given(at.row_scale).is_none())
    p.row_scale =
        flat<double>(c.in(given(at.row_scale)), p.batch * p.n_query, "kernel: row_scale must be float64 (batch, n_query)");
  if (!given(at.softcap).is_none()) p.softcap = nb::cast<double>(given(at.softcap));
  if (!given(at.left).is_none()) p.left = nb::cast<int64_t>(given(at.left));
  if (!given(at.right).is_none()) p.right = nb::cast<int64_t>(given(at.right));
  p.query_offset = flat<int64_t>(c.in(given(at.query_offset)), p.batch, "kernel: query_offset must be int64 (batch,)");
  if (!given(at.key_lengths).is_none()) {
    p.key_length = flat<int64_t>(c.in(given(at.key_lengths)), p.batch, "kernel: key_lengths must be int64 (batch,)");
    for (int64_t b = 0; b < p.batch; ++b)
      require(p.key_length[b] >= 0 && p.key_length[b] <= p.n_key, "kernel: key_lengths out of range");
  }
  const auto numbers = [&](Py_ssize_t place, int64_t count) -> const int64_t* {
    if (given(place).is_none()) return nullptr;
    return flat<int64_t>(c.in(given(place)), p.batch * count, "kernel: segments and positions must be int64 (batch, n)");
  };
  p.query_segment = numbers(at.query_segments, p.n_query), p.key_segment = numbers(at.key_segments, p.n_key);
  p.query_position = numbers(at.query_positions, p.n_query), p.key_position = numbers(at.key_positions, p.n_key);
  require(!p.query_segment == !p.key_segment, "kernel: segments of queries and of keys go together");
  if (!given(at.mask).is_none()) p.mask = c.pairs(c.in(given(at.mask)), '?');
  if (!given(at.bias).is_none()) {
    const memory& b = c.in(given(at.bias));
    p.bias_type = element_of(b);
    p.bias = c.pairs(b, b.format());
  }
  if (!given(at.sinks).is_none())
    p.sinks = flat<double>(c.in(given(at.sinks)), p.heads, "kernel: sinks must be float64 (heads,)");
  if (!given(at.alibi).is_none())
    p.alibi = flat<double>(c.in(given(at.alibi)), p.batch * p.heads, "kernel: alibi must be float64 (batch, heads)");
  p.dropout = nb::cast<double>(given(at.dropout)), p.seed = nb::cast<uint64_t>(given(at.seed));
  p.team = team;
}

// Of calls that are kept below, at most.
constexpr int known_axes = 6;

// Whether three tensors are of one supported type and on the CPU (1), and are also of one shape in C order (2); 0: neither, or
// their type offers no table. Python would need a dozen steps for it, which make a small call slower. `axes` and `sizes`, where
// given, get the shape if it is 2; `axes` is 0 where there are more than `known_axes`.
int alike(nb::handle query, nb::handle key, nb::handle value, int32_t* axes = nullptr, int64_t* sizes = nullptr) {
  using nb::dlpack::dltensor;
  const rootdk::exchange_table* table = rootdk::exchange_table_of(query.ptr());
  if (!table) return 0;
  dltensor q, k, v;
  if (table->view(query.ptr(), &q) != 0 || table->view(key.ptr(), &k) != 0 || table->view(value.ptr(), &v) != 0) {
    PyErr_Clear();
    return 0;
  }
  const char format = memory::format_of(q.dtype);
  if (!format || !std::strchr("fdeH", format) || q.device.device_type != nb::device::cpu::value) return 0;
  bool dense = true;
  for (const dltensor* other : {&k, &v}) {
    if (memory::format_of(other->dtype) != format || other->device.device_type != nb::device::cpu::value) return 0;
    dense &= other->ndim == q.ndim;
  }
  int64_t contiguous = 1;
  for (int axis = q.ndim; dense && axis-- > 0;) {
    const int64_t size = q.shape[axis];
    for (const dltensor* each : {&q, &k, &v})
      dense &= each->shape[axis] == size && (!each->strides || size <= 1 || each->strides[axis] == contiguous);
    contiguous *= size;
  }
  if (axes && dense) {
    *axes = q.ndim <= known_axes ? q.ndim : 0;
    for (int axis = 0; axis < *axes; ++axis) sizes[axis] = q.shape[axis];
  }
  return dense ? 2 : 1;
}

// Problems of calls that were made before, whole but for the arrays: a plain call on tensors is resolved here in place of a few
// dozen steps of Python, which take longer than a small call itself. What such a call means is decided where it always is:
// `facts` is the function of options.py, asked once for each.
class known_calls {
 public:
  void keep(nb::object facts) { facts_ = facts.release().ptr(); }

  // The arrays are tensors. None where the call is to be resolved in Python: the tensors differ, or an option is not a number.
  nb::object find(nb::handle query, nb::handle key, nb::handle value, nb::tuple options) {
    call_shape wanted;
    if (!numbers_of(options, wanted) || alike(query, key, value, &wanted.axes, wanted.sizes) != 2) return nb::none();
    if (wanted.axes < 3 || wanted.sizes[wanted.axes - 1] == 0) return nb::none();
    entry& found = entries_[wanted.hash() % count];
    if (!found.facts || std::memcmp(&found.shape, &wanted, sizeof wanted) != 0) {
      nb::object facts = ask(wanted), former = nb::steal(found.facts);
      found.facts = facts.release().ptr(), found.shape = wanted;
    }
    return with_arrays(nb::borrow<nb::tuple>(found.facts), query, key, value);
  }

 private:
  static constexpr size_t count = 256;
  struct call_shape {  // no gaps: compared byte by byte
    int64_t sizes[known_axes] = {};
    double scale = 0;  // 0: the default
    int64_t offset = 0;
    int32_t axes = 0;
    int16_t causal = 0, has_offset = 0;
    size_t hash() const {
      uint64_t mixed = 0, words[sizeof(call_shape) / 8];
      std::memcpy(words, this, sizeof words);
      for (const uint64_t word : words) mixed = (mixed ^ word) * 0x9E3779B97F4A7C15u, mixed ^= mixed >> 29;
      return size_t(mixed);
    }
  };
  static_assert(sizeof(call_shape) == 8 * (known_axes + 3), "gaps would be compared");
  struct entry {
    call_shape shape;
    PyObject* facts = nullptr;
  };

  // False where an option is set that is not one of these numbers.
  static bool numbers_of(nb::tuple options, call_shape& to) {
    const option_places& at = places_in<option_places>(options);
    for (Py_ssize_t place = 0; place < NB_TUPLE_GET_SIZE(options.ptr()); ++place) {
      PyObject* const given = item(options, place).ptr();
      if (given == Py_None) {
        if (place == at.causal || place == at.dropout) return false;
      } else if (place == at.scale) {
        if (!PyFloat_CheckExact(given)) return false;
        to.scale = PyFloat_AsDouble(given);
        if (to.scale == 0) return false;
      } else if (place == at.causal) {
        if (given != Py_True && given != Py_False) return false;
        to.causal = given == Py_True;
      } else if (place == at.query_offset) {
        if (!PyLong_CheckExact(given)) return false;
        int overflow = 0;
        to.offset = PyLong_AsLongLongAndOverflow(given, &overflow), to.has_offset = 1;
        if (overflow) return false;
      } else if (place != at.dropout || !PyFloat_CheckExact(given) || PyFloat_AsDouble(given) != 0) {
        return false;
      }
    }
    return true;
  }

  nb::object ask(const call_shape& of) const {
    nb::list sizes;
    for (int axis = 0; axis < of.axes; ++axis) sizes.append(of.sizes[axis]);
    const nb::object scale = of.scale == 0 ? nb::none() : nb::object(nb::float_(of.scale));
    const nb::object offset = of.has_offset ? nb::object(nb::int_(of.offset)) : nb::none();
    return nb::handle(facts_)(nb::tuple(sizes), of.sizes[of.axes - 2], scale, of.causal != 0, offset);
  }

  static nb::object with_arrays(nb::tuple facts, nb::handle query, nb::handle key, nb::handle value) {
    const problem_places& at = places_in<problem_places>(facts);
    const Py_ssize_t fields = NB_TUPLE_GET_SIZE(facts.ptr());
    PyObject* const made = PyType_GenericAlloc(Py_TYPE(facts.ptr()), fields);
    if (!made) throw nb::python_error();
    for (Py_ssize_t place = 0; place < fields; ++place) {
      const nb::handle field = place == at.query   ? query
                               : place == at.key   ? key
                               : place == at.value ? value
                                                   : item(facts, place);
      NB_TUPLE_SET_ITEM(made, place, field.inc_ref().ptr());
    }
    return nb::steal(made);
  }

  PyObject* facts_ = nullptr;  // kept as long as the process
  entry entries_[count];
};

known_calls& the_known_calls() {
  static known_calls calls;
  return calls;
}

// Python runs its signal handlers on the main thread alone, between two steps of Python: Ctrl-C would wait for the end of a
// call. So a call on the main thread asks for signals itself, every 50 ms.
std::atomic<unsigned long> main_thread{0};

bool signal_raised() {
  nb::gil_scoped_acquire locked;
  return PyErr_CheckSignals() != 0;
}

template <typename pass_t>
void run_without_gil(attention_problem& p, const pass_t& pass) {
  std::optional<rootdk::interruption> stop;
  if (PyThread_get_thread_ident() == main_thread.load(std::memory_order_relaxed)) p.stop = &stop.emplace(signal_raised);
  try {
    nb::gil_scoped_release unlocked;
    pass(p);
  } catch (const rootdk::call_given_up&) {
    throw nb::python_error();  // what the handler raised
  }
}

// reading: None, or an array for it with one for the keys, or the class Reading: then one is made here and returned.
nb::object take_reading(call& c, nb::handle reading, nb::handle keys) {
  attention_problem& p = c.problem;
  const bool asked = PyType_Check(reading.ptr());
  require((reading.is_none() || asked) == keys.is_none(), "kernel: reading and keys go together");
  if (asked) return make_reading(p, reading, *c.kept[0]);
  if (!reading.is_none()) {
    p.reading = flat_real(c.out(reading), p.type, rootdk::reading_fields * p.rows(),
                          "kernel: reading must be (reading_fields, batch, heads, n_query)");
    p.keys = flat<int64_t>(c.out(keys), p.rows(), "kernel: keys must be int64 (batch, heads, n_query)");
  }
  return nb::none();
}

nb::object forward(nb::tuple problem, nb::handle out, nb::handle row_state, nb::handle reading, nb::handle keys, int team) {
  call c;
  describe(c, problem, team);
  attention_problem& p = c.problem;
  p.out = c.rows(c.out(out), p.heads, p.n_query, p.d_v);
  if (!row_state.is_none())
    p.row_state = flat_real(c.out(row_state), p.type, 2 * p.rows(), "kernel: row_state must be (2, batch, heads, n_query)");
  const nb::object made = take_reading(c, reading, keys);
  run_without_gil(p, rootdk::attention_forward);
  return made;
}

// As forward, without an output.
nb::object read_scores(nb::tuple problem, nb::handle reading, nb::handle keys, int team) {
  call c;
  describe(c, problem, team);
  const nb::object made = take_reading(c, reading, keys);
  run_without_gil(c.problem, rootdk::attention_read);
  return made;
}

// gradients: a Learnable of arrays to fill; None where one is not wanted. Those of sinks and of the scale are made elsewhere.
void backward(nb::tuple problem, nb::handle out, nb::handle d_out, nb::handle row_state, nb::tuple gradients, int team) {
  call c;
  describe(c, problem, team);
  attention_problem& p = c.problem;
  require(p.cache_type == p.type, "kernel: backward takes keys of the type of query");
  p.out = c.rows(c.in(out), p.heads, p.n_query, p.d_v);
  p.d_out = c.rows(c.in(d_out), p.heads, p.n_query, p.d_v);
  p.row_state = flat_real(c.in(row_state), p.type, 2 * p.rows(), "kernel: row_state must be (2, batch, heads, n_query)");
  const learnable_places& at = places_in<learnable_places>(gradients);
  const auto wanted = [&](Py_ssize_t place) { return item(gradients, place); };
  p.d_query = c.rows(c.out(wanted(at.query)), p.heads, p.n_query, p.d_k);
  p.d_key = c.rows(c.out(wanted(at.key)), p.kv_heads, p.n_key, p.d_k);
  p.d_value = c.rows(c.out(wanted(at.value)), p.kv_heads, p.n_key, p.d_v);
  if (!wanted(at.bias).is_none()) p.d_bias = c.pairs(c.out(wanted(at.bias)), p.type == element::float64 ? 'd' : 'f');
  if (!wanted(at.alibi).is_none())
    p.d_alibi = flat_real(c.out(wanted(at.alibi)), p.type, p.batch * p.heads, "kernel: d_alibi must be (batch, heads)");
  run_without_gil(p, rootdk::attention_backward);
}

// weights: (..., heads, n_query, n_key), of zeros; where its queries share, what each key received.
void weights(nb::tuple problem, nb::handle row_state, nb::handle weights, int team) {
  call c;
  describe(c, problem, team);
  attention_problem& p = c.problem;
  require(p.cache_type == p.type, "kernel: weights takes keys of the type of query");
  p.row_state = flat_real(c.in(row_state), p.type, 2 * p.rows(), "kernel: row_state must be (2, batch, heads, n_query)");
  p.weights = c.pairs(c.out(weights), p.type == element::float64 ? 'd' : 'f');
  run_without_gil(p, rootdk::attention_weights);
}

// out: None where it is not wanted. tangents: a Learnable; None for an input without a tangent.
void tangent(nb::tuple problem, nb::handle out, nb::handle d_out, nb::tuple tangents, int team) {
  call c;
  describe(c, problem, team);
  attention_problem& p = c.problem;
  require(p.cache_type == p.type, "kernel: tangent takes keys of the type of query");
  if (!out.is_none()) p.out = c.rows(c.out(out), p.heads, p.n_query, p.d_v);
  p.d_out = c.rows(c.out(d_out), p.heads, p.n_query, p.d_v);
  const learnable_places& at = places_in<learnable_places>(tangents);
  const auto given = [&](Py_ssize_t place) { return item(tangents, place); };
  const auto has_tangent = [&](Py_ssize_t place, bool there) {
    require(there || given(place).is_none(), "kernel: a tangent is of something that the problem does not have");
    return !given(place).is_none();
  };
  if (has_tangent(at.query, true)) p.d_query = c.rows(c.in(given(at.query)), p.heads, p.n_query, p.d_k);
  if (has_tangent(at.key, true)) p.d_key = c.rows(c.in(given(at.key)), p.kv_heads, p.n_key, p.d_k);
  if (has_tangent(at.value, true)) p.d_value = c.rows(c.in(given(at.value)), p.kv_heads, p.n_key, p.d_v);
  if (has_tangent(at.scale, true)) p.scale_tangent = nb::cast<double>(given(at.scale));
  if (has_tangent(at.bias, p.bias.data)) p.d_bias = c.pairs(c.in(given(at.bias)), format_of(p.bias_type));
  if (has_tangent(at.sinks, p.sinks))
    p.sinks_tangent = flat<double>(c.in(given(at.sinks)), p.heads, "kernel: d_sinks must be float64 (heads,)");
  if (has_tangent(at.alibi, p.alibi))
    p.alibi_tangent = flat<double>(c.in(given(at.alibi)), p.batch * p.heads, "kernel: d_alibi must be float64 (batch, heads)");
  run_without_gil(p, rootdk::attention_tangent);
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

// By name; empty where this was compiled without the headers of XLA.
nb::dict xla_targets() {
  nb::dict handlers;
#ifdef ROOTDK_XLA
  for (const auto& [name, handler] : rootdk::xla_targets()) handlers[name] = nb::capsule(handler);
#endif
  return handlers;
}

std::string xla_api() {
#ifdef ROOTDK_XLA
  const auto [major, minor] = rootdk::xla_api();
  return std::to_string(major) + "." + std::to_string(minor);
#else
  return "";
#endif
}

nb::dict tile() {
  nb::dict sizes;
  sizes["lanes"] = rootdk::current_target().panel_lanes_f32;
  sizes["keys"] = rootdk::current_target().key_block;
  return sizes;
}

}  // namespace

NB_MODULE(_kernel, m) {
  main_thread = nb::cast<unsigned long>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
  rootdk::after_fork([] { main_thread = PyThread_get_thread_ident(); });  // the child's only thread
  m.def("forward", &forward, "problem"_a, "out"_a, "row_state"_a.none(), "reading"_a.none(), "keys"_a.none(), "team"_a = 0);
  m.def("read", &read_scores, "problem"_a, "reading"_a.none(), "keys"_a.none(), "team"_a = 0);
  m.def("backward", &backward, "problem"_a, "out"_a, "d_out"_a, "row_state"_a, "gradients"_a, "team"_a = 0);
  m.def("tangent", &tangent, "problem"_a, "out"_a.none(), "d_out"_a, "tangents"_a, "team"_a = 0);
  // Names of arguments would take time.
  m.def("alike", [](nb::handle query, nb::handle key, nb::handle value) { return alike(query, key, value); });
  m.def("keep_known", [](nb::object facts) { the_known_calls().keep(facts); });
  m.def("known", [](nb::handle query, nb::handle key, nb::handle value, nb::tuple options) {
    return the_known_calls().find(query, key, value, options);
  });
  m.def("weights", &weights, "problem"_a, "row_state"_a, "weights"_a, "team"_a = 0);
  m.def("target", [] { return std::string(rootdk::current_target().name); });
  m.def("targets", &target_names);
  m.def("set_target", &set_target, "name"_a);
  m.def("has_openmp", &rootdk::has_openmp);
  m.attr("most_threads") = rootdk::most_threads;
  m.def("num_threads", &rootdk::num_threads);
  m.def("set_num_threads", &rootdk::set_num_threads, "threads"_a);
  m.def("tile", &tile);
  m.def("xla_targets", &xla_targets);
  m.def("xla_api", &xla_api);
  m.def("reading_fields", [] {
#define ROOTDK_NAME(name) #name,
    return std::vector<std::string>{ROOTDK_READING_FIELDS(ROOTDK_NAME)};
#undef ROOTDK_NAME
  });
  m.def("sources", [] { return std::string(rootdk::source_digest); });
  m.def("compiler", [] { return std::string(ROOTDK_COMPILER); });
}
