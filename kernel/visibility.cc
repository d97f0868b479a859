#include "visibility.h"

#include <cstring>
#include <map>
#include <utility>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace rootdk {
namespace {

// Bit i: byte i is not 0.
uint64_t bits_of(const char* bytes) {
  uint64_t bits = 0;
#if defined(__SSE2__)
  for (int part = 0; part < 4; ++part) {
    const __m128i numbers = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + 16 * part));
    const int zeros = _mm_movemask_epi8(_mm_cmpeq_epi8(numbers, _mm_setzero_si128()));
    bits |= uint64_t(uint16_t(~zeros)) << (16 * part);
  }
#else
  for (int part = 0; part < 64; ++part) bits |= uint64_t(bytes[part] != 0) << part;
#endif
  return bits;
}

struct block_bits {
  uint64_t low, high;
  bool none() const { return (low | high) == 0; }
  bool all() const { return (low & high) == ~uint64_t(0); }
  int64_t first() const { return low ? __builtin_ctzll(low) : 64 + __builtin_ctzll(high); }
  int64_t last() const { return high ? 128 - __builtin_clzll(high) : 64 - __builtin_clzll(low); }
  int64_t count() const { return __builtin_popcountll(low) + __builtin_popcountll(high); }
};
static_assert(key_block == 128, "a block's keys are the bits of two words");

template <typename bits>
void compare(const char* numbers, int64_t stride, int64_t count, bits minus_infinity, char* seen) {
  const bits* from = reinterpret_cast<const bits*>(numbers);
  if (stride == 1)
    for (int64_t key = 0; key < count; ++key) seen[key] = from[key] != minus_infinity;
  else
    for (int64_t key = 0; key < count; ++key) seen[key] = from[key * stride] != minus_infinity;
}

// Byte i is 0 where the i-th number of the bias is -inf.
void unhidden(element type, const char* numbers, int64_t stride, int64_t count, char* seen) {
  switch (type) {
    case element::float32: return compare<uint32_t>(numbers, stride, count, 0xff800000u, seen);
    case element::float64: return compare<uint64_t>(numbers, stride, count, 0xfff0000000000000u, seen);
    case element::float16: return compare<uint16_t>(numbers, stride, count, 0xfc00u, seen);
    case element::bfloat16: return compare<uint16_t>(numbers, stride, count, 0xff80u, seen);
  }
}

const char* bias_row(const attention_problem& problem, int64_t batch, int64_t head, int64_t query) {
  const pairs_view& bias = problem.bias;
  const int64_t at = bias.batch_offset[batch] + head * bias.head_stride + query * bias.query_stride;
  return bias.data + at * element_bytes(problem.bias_type);
}

// Whether there is -inf in one of every 32 rows: a bias that hides (a triangle, a window, padding) does it in all of them or
// nearly so. A bias in which none is found hides all the same, where its numbers are added.
bool bias_hides(const attention_problem& problem) {
  const pairs_view& bias = problem.bias;
  if (!bias.data) return false;
  constexpr int64_t distance = 32;
  const int64_t keys = bias.key_stride == 0 ? 1 : problem.n_key;
  char seen[key_block];
  for (int64_t batch = 0; batch < problem.batch; ++batch) {
    if (batch > 0 && bias.batch_offset[batch] == bias.batch_offset[batch - 1]) continue;
    for (int64_t head = 0; head < (bias.head_stride == 0 ? 1 : problem.heads); ++head)
      for (int64_t query = 0; query < (bias.query_stride == 0 ? 1 : problem.n_query); query += distance)
        for (int64_t key = 0; key < keys; key += key_block) {
          const int64_t count = keys - key < key_block ? keys - key : key_block;
          const char* from = bias_row(problem, batch, head, query) + key * bias.key_stride * element_bytes(problem.bias_type);
          unhidden(problem.bias_type, from, bias.key_stride, count, seen);
          if (std::memchr(seen, 0, size_t(count))) return true;
        }
  }
  return false;
}

}  // namespace

bool visibility::needed(const attention_problem& problem) {
  return problem.rows() > 0 && problem.n_key > 0 && (problem.mask.data || bias_hides(problem));
}

visibility::visibility(const attention_problem& problem)
    : problem_(problem),
      mask_(problem.mask),
      bias_(bias_hides(problem) ? problem.bias : pairs_view{}),
      head_step_(mask_.head_stride == 0 && bias_.head_stride == 0 ? 0 : 1),
      query_step_(mask_.query_stride == 0 && bias_.query_stride == 0 ? 0 : 1),
      rows_per_slice_(query_step_ ? problem.n_query : 1),
      blocks_((problem.n_key + key_block - 1) / key_block) {
  const int64_t slices_per_entry = head_step_ ? problem.heads : 1;
  std::map<std::pair<int64_t, int64_t>, int64_t> slice_at;
  slice_.reserve(size_t(problem.batch));
  for (int64_t batch = 0; batch < problem.batch; ++batch) {
    const std::pair offsets(mask_.data ? mask_.batch_offset[batch] : 0, bias_.data ? bias_.batch_offset[batch] : 0);
    const auto [place, fresh] = slice_at.try_emplace(offsets, int64_t(slice_batch_.size()) * slices_per_entry);
    if (fresh) slice_batch_.push_back(batch);
    slice_.push_back(place->second);
  }
  const size_t rows = slice_batch_.size() * size_t(slices_per_entry) * size_t(rows_per_slice_);
  rows_.resize(rows);
  runs_.reset(new run[rows * size_t(blocks_)]);
}

// About as many bytes as a near cache holds.
static int64_t rows_per_scan(int64_t n_key) { return n_key < 65536 ? 65536 / n_key : 1; }

int64_t visibility::scans() const {
  const int64_t rows = int64_t(rows_.size()), together = rows_per_scan(problem_.n_key);
  return (rows + together - 1) / together;
}

void visibility::scan(int64_t item) {
  const int64_t together = rows_per_scan(problem_.n_key), first = item * together;
  const int64_t last = first + together < int64_t(rows_.size()) ? first + together : int64_t(rows_.size());
  std::vector<run> runs(static_cast<size_t>(blocks_));
  for (int64_t row = first; row < last; ++row) scan_row(row / rows_per_slice_, row % rows_per_slice_, runs.data());
}

void visibility::scan_row(int64_t slice, int64_t query, run* runs) {
  const int64_t slices_per_entry = head_step_ ? problem_.heads : 1, n_key = problem_.n_key;
  const int64_t batch = slice_batch_[size_t(slice / slices_per_entry)], head = slice % slices_per_entry;
  const char *mask = nullptr, *bias = bias_.data ? bias_row(problem_, batch, head, query) : nullptr;
  if (mask_.data) mask = mask_.data + mask_.batch_offset[batch] + head * mask_.head_stride + query * mask_.query_stride;
  const int64_t index = slice * rows_per_slice_ + query;
  row& here = rows_[size_t(index)];
  here = {0, 0, false};
  if (!bias && mask_.key_stride == 0) {
    here.last = *mask ? n_key : 0;
    return;
  }
  int64_t seen = 0;
  for (int64_t block = 0; block < blocks_; ++block) {
    const int64_t start = block * key_block, keys = n_key - start < key_block ? n_key - start : key_block;
    char copy[key_block];
    std::memset(copy + keys, 0, size_t(key_block - keys));
    block_bits bits{~uint64_t(0), ~uint64_t(0)};
    if (mask) {
      const char* from = mask + start * mask_.key_stride;
      if (mask_.key_stride != 1 || keys < key_block) {
        for (int64_t key = 0; key < keys; ++key) copy[key] = from[key * mask_.key_stride];
        from = copy;
      }
      bits = {bits_of(from), bits_of(from + 64)};
    }
    if (bias && !bits.none()) {
      unhidden(problem_.bias_type, bias + start * bias_.key_stride * element_bytes(problem_.bias_type), bias_.key_stride, keys,
               copy);
      bits.low &= bits_of(copy), bits.high &= bits_of(copy + 64);
    }
    runs[block] = {127, 0};
    if (bits.none()) continue;
    const int64_t first = bits.all() ? 0 : bits.first(), last = bits.all() ? key_block : bits.last();
    const int64_t count = bits.all() ? key_block : bits.count();
    runs[block] = {uint8_t(first | (count < last - first ? holes_bit : 0)), uint8_t(last)};
    if (seen == 0) here.first = start + first;
    here.last = start + last;
    seen += count;
  }
  here.holes = seen < here.last - here.first;
  if (here.holes) std::memcpy(runs_.get() + index * blocks_, runs, size_t(blocks_) * sizeof(run));
}

}  // namespace rootdk
