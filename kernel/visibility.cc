#include "visibility.h"

#include <cstring>
#include <unordered_map>

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

}  // namespace

visibility::visibility(const attention_problem& problem)
    : problem_(problem),
      head_step_(problem.mask.head_stride == 0 ? 0 : 1),
      query_step_(problem.mask.query_stride == 0 ? 0 : 1),
      rows_per_slice_(query_step_ ? problem.n_query : 1),
      blocks_((problem.n_key + key_block - 1) / key_block) {
  const int64_t slices_per_entry = head_step_ ? problem.heads : 1;
  std::unordered_map<int64_t, int64_t> slice_at;
  slice_.reserve(size_t(problem.batch));
  for (int64_t batch = 0; batch < problem.batch; ++batch) {
    const auto [place, fresh] =
        slice_at.try_emplace(problem.mask.batch_offset[batch], int64_t(slice_batch_.size()) * slices_per_entry);
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
  const pairs_view& mask = problem_.mask;
  const int64_t slices_per_entry = head_step_ ? problem_.heads : 1, n_key = problem_.n_key, stride = mask.key_stride;
  const char* bytes = mask.data + mask.batch_offset[slice_batch_[size_t(slice / slices_per_entry)]] +
                      slice % slices_per_entry * mask.head_stride + query * mask.query_stride;
  const int64_t index = slice * rows_per_slice_ + query;
  row& here = rows_[size_t(index)];
  here = {0, 0, false};
  if (stride == 0) {
    here.last = *bytes ? n_key : 0;
    return;
  }
  int64_t seen = 0;
  for (int64_t block = 0; block < blocks_; ++block) {
    const int64_t start = block * key_block, keys = n_key - start < key_block ? n_key - start : key_block;
    const char* from = bytes + start * stride;
    char copy[key_block];
    if (stride != 1 || keys < key_block) {
      for (int64_t key = 0; key < key_block; ++key) copy[key] = key < keys ? from[key * stride] : 0;
      from = copy;
    }
    const block_bits bits{bits_of(from), bits_of(from + 64)};
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
