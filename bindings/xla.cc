// How XLA calls the kernel: buffers of a compiled jax program become pointers, sizes and strides, and the kernel runs, without
// Python. src/rootdk/backends/jax/primitives.py writes such calls; what each operand is stands there.
//
// Every operand begins with the leading axes of the call, first those that vmap added; an axis along which it does not change
// has size 1. So vmap costs no copy, and the kernel sees one batch. What a Problem has one of (a scale, sinks, a seed) may
// differ from one vmapped call to the next: then the kernel runs once per call.
#include "xla.h"

#include <cstring>
#include <deque>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "attention.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
using rootdk::attention_problem;
using rootdk::element;
using rootdk::pairs_view;
using rootdk::rows_view;

namespace {

using pass = void (*)(const attention_problem&);

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

element element_of(ffi::DataType type) {
  if (type == ffi::DataType::F32) return element::float32;
  if (type == ffi::DataType::F64) return element::float64;
  if (type == ffi::DataType::F16) return element::float16;
  require(type == ffi::DataType::BF16, "rootdk: an operand must be of a supported floating type");
  return element::bfloat16;
}

ffi::DataType real_of(element type) { return type == element::float64 ? ffi::DataType::F64 : ffi::DataType::F32; }

int64_t size_of(ffi::DataType type) { return type == ffi::DataType::F64 || type == ffi::DataType::S64 ? 8 : 4; }

struct operand {
  char* data;
  ffi::DataType type;
  ffi::AnyBuffer::Dimensions dims;
  bool result;
  int64_t count() const {
    int64_t product = 1;
    for (const int64_t size : dims) product *= size;
    return product;
  }
};

class call {
 public:
  call(ffi::RemainingArgs args, ffi::RemainingRets rets, const ffi::Dictionary& attributes) : attributes_(attributes) {
    each_name(text("operands"), args.size(), [&](std::string_view name, size_t i) {
      const ffi::AnyBuffer buffer = args.get<ffi::AnyBuffer>(i).value();
      keep(name, {static_cast<char*>(buffer.untyped_data()), buffer.element_type(), buffer.dimensions(), false});
    });
    each_name(text("results"), rets.size(), [&](std::string_view name, size_t i) {
      ffi::Result<ffi::AnyBuffer> buffer = rets.get<ffi::AnyBuffer>(i).value();
      keep(name, {static_cast<char*>(buffer->untyped_data()), buffer->element_type(), buffer->dimensions(), true});
    });
    const operand &q = get("query"), &k = get("key"), &v = get(find("value") ? "value" : "key");
    const size_t rank = q.dims.size();
    require(rank >= 3 && k.dims.size() == rank && v.dims.size() == rank, "rootdk: query, key and value differ in rank");
    rows_first_ = integer("rows_first") != 0;
    vmapped_ = size_t(integer("vmapped"));
    require(vmapped_ <= rank - 3, "rootdk: more vmapped axes than leading ones");
    leading_.assign(rank - 3, 1);
    for (const auto& [name, given] : operands_) {
      const size_t first = is_row_block(name) ? 1 : 0, axes = is_per_call(name) ? vmapped_ : leading_.size();
      require(given.dims.size() >= first + axes, "rootdk: an operand has too few axes");
      for (size_t axis = 0; axis < axes; ++axis)
        if (given.dims[first + axis] != 1) leading_[axis] = given.dims[first + axis];
    }
    for (size_t axis = 0; axis < leading_.size(); ++axis) (axis < vmapped_ ? calls_ : own_) *= leading_[axis];
  }

  void run(pass kernel) {
    bool one_by_one = real("dropout") > 0;
    for (const auto& [name, given] : operands_)
      if (is_per_call(name))
        for (size_t axis = 0; axis < vmapped_; ++axis) one_by_one |= given.dims[axis] > 1;
    for (const char* name : {"d_bias", "weights"})
      if (const operand* given = find(name); given && given->result)
        std::memset(given->data, 0, size_t(given->count() * size_of(given->type)));
    if (!one_by_one || calls_ == 1) return run(kernel, 0, calls_ * own_, 0);
    for (int64_t i = 0; i < calls_; ++i) run(kernel, i * own_, own_, i);
  }

 private:
  // The kernel on `batch` entries from `first` on; what a problem has one of is that of vmapped call `of`.
  void run(pass kernel, int64_t first, int64_t batch, int64_t of) {
    kept_offsets_.clear(), kept_reals_.clear(), kept_integers_.clear();
    first_ = first, batch_ = batch;
    attention_problem p;
    const operand &q = get("query"), &k = get("key"), &v = get(find("value") ? "value" : "key");
    const size_t heads_at = rows_first_ ? 2 : 3, rows_at = rows_first_ ? 3 : 2;
    const auto from_end = [](const operand& a, size_t axis) { return a.dims[a.dims.size() - axis]; };
    p.type = element_of(q.type), p.cache_type = element_of(k.type), p.batch = batch;
    p.heads = from_end(q, heads_at), p.n_query = from_end(q, rows_at), p.d_k = from_end(q, 1);
    p.kv_heads = from_end(k, heads_at), p.n_key = from_end(k, rows_at), p.d_v = from_end(v, 1);
    require(p.heads == 0 || (p.kv_heads > 0 && p.heads % p.kv_heads == 0), "rootdk: heads must be a multiple of kv_heads");
    require(p.cache_type == p.type || (p.type == element::float32 && p.cache_type != element::float64),
            "rootdk: key must be of query's type, or of a half type under float32");
    p.query = rows("query", p.type, p.heads, p.n_query, p.d_k);
    p.key = rows("key", p.cache_type, p.kv_heads, p.n_key, p.d_k);
    p.value = rows(find("value") ? "value" : "key", p.cache_type, p.kv_heads, p.n_key, p.d_v);

    p.scale = find("scale") ? reals("scale", vmapped_, 1)[of] : real("scale");
    p.row_scale = maybe_reals("row_scale", p.n_query);
    p.softcap = real("softcap"), p.left = integer("left"), p.right = integer("right"), p.dropout = real("dropout");
    if (find("seed")) p.seed = uint64_t(integers("seed", vmapped_, 1)[of]);
    if (const int64_t* lengths = maybe_integers("key_lengths", 1)) {
      for (int64_t b = 0; b < batch; ++b)
        if (lengths[b] < 0 || lengths[b] > p.n_key)
          throw std::invalid_argument("key_lengths: must be from 0 to " + std::to_string(p.n_key) + ", got " +
                                      std::to_string(lengths[b]));
      p.key_length = lengths;
    }
    const int64_t* offset = maybe_integers("query_offset", 1);
    p.query_segment = maybe_integers("query_segments", p.n_query), p.key_segment = maybe_integers("key_segments", p.n_key);
    require(!p.query_segment == !p.key_segment, "rootdk: segments of queries and of keys go together");
    p.query_position = maybe_integers("query_positions", p.n_query);
    if (p.key_segment) number_segments(p, offset);
    std::vector<int64_t>& offsets = kept_integers_.emplace_back(size_t(batch), p.n_key - p.n_query);
    for (int64_t b = 0; b < batch; ++b)
      if (offset || p.key_length) offsets[size_t(b)] = offset ? offset[b] : p.key_length[b] - p.n_query;
    p.query_offset = offsets.data();

    if (const operand* mask = find("mask")) {
      require(mask->type == ffi::DataType::PRED, "rootdk: a mask must be bool");
      p.mask = pairs("mask", p);
    }
    if (const operand* bias = find("bias")) p.bias_type = element_of(bias->type), p.bias = pairs("bias", p);
    if (find("sinks")) p.sinks = reals("sinks", vmapped_, p.heads) + of * p.heads;
    p.alibi = maybe_reals("alibi", p.heads);

    if (find("out")) p.out = rows("out", p.type, p.heads, p.n_query, p.d_v);
    if (find("d_out")) p.d_out = rows("d_out", p.type, p.heads, p.n_query, p.d_v);
    if (find("d_query")) p.d_query = rows("d_query", p.type, p.heads, p.n_query, p.d_k);
    if (find("d_key")) p.d_key = rows("d_key", p.type, p.kv_heads, p.n_key, p.d_k);
    if (find("d_value")) p.d_value = rows("d_value", p.type, p.kv_heads, p.n_key, p.d_v);
    if (const operand* d_bias = find("d_bias")) {
      require(d_bias->type == (is_result("d_bias") ? real_of(p.type) : get("bias").type), "rootdk: d_bias is of another type");
      p.d_bias = pairs("d_bias", p);
    }
    if (find("weights")) {
      require(get("weights").type == real_of(p.type), "rootdk: weights are of another type");
      p.weights = pairs("weights", p);
    }
    if (find("d_alibi")) {
      if (is_result("d_alibi")) {
        require(get("d_alibi").count() == calls_ * own_ * p.heads && get("d_alibi").type == real_of(p.type),
                "rootdk: d_alibi has another shape");
        p.d_alibi = get("d_alibi").data + first * p.heads * size_of(get("d_alibi").type);
      } else {
        p.alibi_tangent = maybe_reals("d_alibi", p.heads);
      }
    }
    if (find("d_sinks")) p.sinks_tangent = reals("d_sinks", vmapped_, p.heads) + of * p.heads;
    if (find("d_scale")) p.scale_tangent = reals("d_scale", vmapped_, 1)[of];

    // (fields, *leading, heads, n_query): the part of one call is not in one piece, unless it is all of it.
    std::vector<char> state, fields;
    p.row_state = row_block("row_state", 2, p, state);
    if (p.row_state && !is_result("row_state")) copy_block("row_state", 2, p, state, true);
    p.reading = row_block("reading", rootdk::reading_fields, p, fields);
    std::vector<int64_t> counts;
    if (const operand* keys = find("keys")) {
      require(keys->count() == calls_ * own_ * p.heads * p.n_query, "rootdk: keys have another shape");
      counts.resize(size_t(p.rows()));
      p.keys = counts.data();
    }
    kernel(p);
    if (p.row_state && is_result("row_state")) copy_block("row_state", 2, p, state, false);
    if (p.reading) copy_block("reading", rootdk::reading_fields, p, fields, false);
    if (const operand* keys = find("keys")) write_keys(*keys, counts, first * p.heads * p.n_query);
  }

  static bool is_per_call(std::string_view name) {
    return name == "scale" || name == "sinks" || name == "seed" || name == "d_scale" || name == "d_sinks";
  }
  static bool is_row_block(std::string_view name) { return name == "row_state" || name == "reading"; }

  template <typename visit_t>
  static void each_name(std::string_view names, size_t count, const visit_t& visit) {
    size_t i = 0;
    while (!names.empty()) {
      const size_t end = names.find(' ');
      require(i < count, "rootdk: fewer buffers than names");
      visit(names.substr(0, end), i++);
      names = end == std::string_view::npos ? std::string_view() : names.substr(end + 1);
    }
    require(i == count, "rootdk: more buffers than names");
  }

  std::string_view text(const char* name) const { return attributes_.get<std::string_view>(name).value(); }
  int64_t integer(const char* name) const { return attributes_.get<int64_t>(name).value(); }
  double real(const char* name) const { return attributes_.get<double>(name).value(); }

  void keep(std::string_view name, operand given) { operands_.emplace_back(name, given); }
  const operand* find(std::string_view name) const {
    for (const auto& [known, given] : operands_)
      if (known == name) return &given;
    return nullptr;
  }
  const operand& get(std::string_view name) const {
    const operand* given = find(name);
    require(given, "rootdk: an operand is missing");
    return *given;
  }
  bool is_result(std::string_view name) const {
    const operand* given = find(name);
    return given && given->result;
  }

  // Where every entry of the leading axes begins, in elements; `count` of them lie behind each other per entry.
  std::vector<int64_t> entries(const operand& a, size_t axes, int64_t count) const {
    std::vector<int64_t> strides(axes);
    int64_t stride = count, size = 1;
    for (size_t axis = axes; axis-- > 0;) {
      require(a.dims[axis] == leading_[axis] || a.dims[axis] == 1, "rootdk: operands differ in their leading axes");
      strides[axis] = a.dims[axis] == 1 ? 0 : stride;
      stride *= a.dims[axis], size *= leading_[axis];
    }
    require(stride == a.count(), "rootdk: an operand has another number of elements");
    std::vector<int64_t> starts{0}, next;
    starts.reserve(size_t(size));
    for (size_t axis = 0; axis < axes; ++axis) {
      next.clear();
      for (const int64_t start : starts)
        for (int64_t i = 0; i < leading_[axis]; ++i) next.push_back(start + i * strides[axis]);
      starts.swap(next);
    }
    return starts;
  }

  const int64_t* batch_offsets(const operand& a, int64_t count) {
    return kept_offsets_.emplace_back(entries(a, leading_.size(), count)).data() + first_;
  }

  rows_view rows(std::string_view name, element type, int64_t heads, int64_t n, int64_t width) {
    const operand& a = get(name);
    const size_t rank = leading_.size() + 3;
    require(a.dims.size() == rank && element_of(a.type) == type && a.dims[rank - 1] == width &&
                a.dims[rank - (rows_first_ ? 2 : 3)] == heads && a.dims[rank - (rows_first_ ? 3 : 2)] == n,
            "rootdk: an operand has an unexpected shape or type");
    const int64_t head_stride = rows_first_ ? width : n * width, row_stride = rows_first_ ? heads * width : width;
    return {a.data, batch_offsets(a, heads * n * width), head_stride, row_stride};
  }

  pairs_view pairs(std::string_view name, const attention_problem& p) {
    const operand& a = get(name);
    const size_t rank = leading_.size() + 3;
    const int64_t full[] = {p.heads, p.n_query, p.n_key};
    require(a.dims.size() == rank, "rootdk: mask, bias or weights have another rank");
    int64_t strides[3], count = 1;
    for (size_t axis = 3; axis-- > 0;) {
      const int64_t size = a.dims[rank - 3 + axis];
      require(size == full[axis] || size == 1, "rootdk: mask, bias or weights have another shape");
      strides[axis] = size == 1 ? 0 : count;
      count *= size;
    }
    return {a.data, batch_offsets(a, count), strides[0], strides[1], strides[2]};
  }

  // Numbers as the kernel takes them, `count` per entry. 64 bits come as two of 32 on one more axis where jax has no wider
  // type.
  template <typename number, typename kept_t>
  number* gathered(std::string_view name, size_t axes, int64_t count, kept_t& kept) {
    const operand& a = get(name);
    const bool halves = a.type == ffi::DataType::U32;
    const std::vector<int64_t> starts = entries(a, axes, halves ? 2 * count : count);
    auto& numbers = kept.emplace_back();
    numbers.reserve(starts.size() * size_t(count));
    for (const int64_t start : starts)
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = start + (halves ? 2 * i : i);
        number read;
        if (halves)
          std::memcpy(&read, a.data + at * 4, 8);
        else if (a.type == ffi::DataType::S32)
          read = number(reinterpret_cast<const int32_t*>(a.data)[at]);
        else if (a.type == ffi::DataType::S64)
          read = number(reinterpret_cast<const int64_t*>(a.data)[at]);
        else if (a.type == ffi::DataType::F32)
          read = number(reinterpret_cast<const float*>(a.data)[at]);
        else if (a.type == ffi::DataType::F64)
          read = number(reinterpret_cast<const double*>(a.data)[at]);
        else
          throw std::invalid_argument("rootdk: numbers of an unexpected type");
        numbers.push_back(read);
      }
    return numbers.data();
  }
  double* reals(std::string_view name, size_t axes, int64_t count) { return gathered<double>(name, axes, count, kept_reals_); }
  int64_t* integers(std::string_view name, size_t axes, int64_t count) {
    return gathered<int64_t>(name, axes, count, kept_integers_);
  }
  const double* maybe_reals(std::string_view name, int64_t count) {
    return find(name) ? reals(name, leading_.size(), count) + first_ * count : nullptr;
  }
  const int64_t* maybe_integers(std::string_view name, int64_t count) {
    return find(name) ? integers(name, leading_.size(), count) + first_ * count : nullptr;
  }

  // Positions count the keys of a segment, and its last query stands at its last key, unless an offset says where the first
  // stands: what _segments in src/rootdk/options.py finds where the numbers are known before the call.
  void number_segments(attention_problem& p, const int64_t* offset) {
    std::vector<int64_t>& keys = kept_integers_.emplace_back();
    std::vector<int64_t>& queries = kept_integers_.emplace_back();
    std::unordered_map<int64_t, int64_t> seen, visible;
    for (int64_t b = 0; b < p.batch; ++b) {
      seen.clear(), visible.clear();
      const int64_t length = p.key_length ? p.key_length[b] : p.n_key;
      for (int64_t j = 0; j < p.n_key; ++j) {
        const int64_t segment = p.key_segment[b * p.n_key + j];
        keys.push_back(seen[segment]++);
        if (j < length) ++visible[segment];
      }
      seen.clear();
      if (p.query_position) continue;
      const int64_t* segments = p.query_segment + b * p.n_query;
      for (int64_t i = 0; i < p.n_query; ++i) queries.push_back(seen[segments[i]]++);
      for (int64_t i = 0; i < p.n_query; ++i) {
        const auto found = visible.find(segments[i]);
        const int64_t last = (found == visible.end() ? 0 : found->second) - seen[segments[i]];
        queries[size_t(b * p.n_query + i)] += offset ? offset[b] : last;
      }
    }
    p.key_position = keys.data();
    if (!p.query_position) p.query_position = queries.data();
  }

  void* row_block(std::string_view name, int64_t fields, const attention_problem& p, std::vector<char>& part) {
    const operand* block = find(name);
    if (!block) return nullptr;
    require(block->count() == fields * calls_ * own_ * p.heads * p.n_query && block->type == real_of(p.type),
            "rootdk: row_state or reading has another shape or type");
    if (batch_ == calls_ * own_) return block->data;
    part.resize(size_t(fields * p.rows() * size_of(block->type)));
    return part.data();
  }

  void copy_block(std::string_view name, int64_t fields, const attention_problem& p, std::vector<char>& part, bool in) {
    if (part.empty()) return;
    const operand& block = get(name);
    const int64_t row = p.heads * p.n_query * size_of(block.type), piece = batch_ * row;
    for (int64_t field = 0; field < fields; ++field) {
      char* whole = block.data + field * calls_ * own_ * row + first_ * row;
      char* here = part.data() + field * piece;
      std::memcpy(in ? here : whole, in ? whole : here, size_t(piece));
    }
  }

  static void write_keys(const operand& keys, const std::vector<int64_t>& counts, int64_t at) {
    if (keys.type == ffi::DataType::S64) {
      std::memcpy(keys.data + at * 8, counts.data(), counts.size() * 8);
      return;
    }
    require(keys.type == ffi::DataType::S32, "rootdk: keys must be int32 or int64");
    int32_t* narrow = reinterpret_cast<int32_t*>(keys.data) + at;
    for (size_t i = 0; i < counts.size(); ++i) narrow[i] = int32_t(counts[i]);
  }

  const ffi::Dictionary& attributes_;
  std::vector<std::pair<std::string_view, operand>> operands_;
  bool rows_first_ = false;
  size_t vmapped_ = 0;  // how many of the leading axes vmap added
  std::vector<int64_t> leading_;  // their sizes
  int64_t calls_ = 1, own_ = 1;  // vmapped calls, and batch entries of each
  int64_t first_ = 0, batch_ = 0;  // the entries that the kernel is at
  std::deque<std::vector<int64_t>> kept_offsets_, kept_integers_;
  std::deque<std::vector<double>> kept_reals_;
};

template <pass kernel>
ffi::Error handle(ffi::RemainingArgs args, ffi::RemainingRets rets, ffi::Dictionary attributes) {
  try {
    call(args, rets, attributes).run(kernel);
  } catch (const std::exception& error) {
    return ffi::Error(ffi::ErrorCode::kInvalidArgument, error.what());
  }
  return ffi::Error::Success();
}

#define ROOTDK_XLA_PASSES(each) each(forward) each(read) each(backward) each(tangent) each(weights)
#define ROOTDK_HANDLER(name)                                           \
  XLA_FFI_DEFINE_HANDLER(xla_##name, handle<rootdk::attention_##name>, \
                         ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());
ROOTDK_XLA_PASSES(ROOTDK_HANDLER)
#undef ROOTDK_HANDLER

}  // namespace

namespace rootdk {

std::vector<std::pair<const char*, void*>> xla_targets() {
#define ROOTDK_TARGET(name) {"rootdk_attention_" #name, reinterpret_cast<void*>(xla_##name)},
  return {ROOTDK_XLA_PASSES(ROOTDK_TARGET)};
#undef ROOTDK_TARGET
}

std::pair<int, int> xla_api() { return {XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR}; }

}  // namespace rootdk
