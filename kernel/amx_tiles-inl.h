// Products of bfloat16 matrices by the tile registers of AMX: C[row][lane] += sum over pairs of A[row][pair] * B[pair][lane],
// 16 x 16 sums of 32 products each in one instruction. A number of A and B is a pair of bfloat16 that are multiplied and
// added in float32, so half a type's numbers lie side by side in 32 bits:
//
//   scores      A = K as it lies     row = key, pair = d / 2        B = Q transposed, pairs of d
//   output      A = V transposed     row = d,   pair = key / 2      B = weights, pairs of keys
//
// What bfloat16 cannot hold is split into parts that it can. A float16 is exactly the sum of two; a weight, a float32, is
// rounded to the 16 bits that two hold, an error of 2^-16 of it: far below what the result is rounded to.
#include <immintrin.h>

namespace rootdk::ROOTDK_TARGET {

constexpr int64_t tile_side = 16, tile_pairs = 16;  // rows and columns of C; pairs along the sum
constexpr int64_t tile_lanes = panel_vectors * tile_side;

typedef uint32_t bf16_pair;

inline int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

// While it lives, this thread's eight tiles are 16 rows of 64 bytes. Once released, they cost nothing in a context switch.
class whole_tiles {
 public:
  whole_tiles() { configure(); }
  static void configure() {
    alignas(64) uint8_t palette[64] = {1};
    for (int tile = 0; tile < 8; ++tile) palette[16 + 2 * tile] = 64, palette[48 + tile] = 16;
    asm volatile("" : : "r"(palette) : "memory");  // GCC before 14 assumes that only 8 bytes of it are read
    _tile_loadconfig(palette);
  }
  ~whole_tiles() { _tile_release(); }
  whole_tiles(const whole_tiles&) = delete;
  whole_tiles& operator=(const whole_tiles&) = delete;
};

// One term of a product whose factors are split: a part of A and a part of B.
struct tile_term {
  const void* a;
  const bf16_pair* b;
};

// Two by two tiles of C (`c[row tile]`, lane groups side by side), the sum of `terms` products. `a_bytes` from row to row of
// A, `b_stride` pairs from row to row of B. steps[group]: tiles along the sum for that group of lanes, 0: none wanted.
template <int terms>
inline __attribute__((noinline)) void tile_products(const tile_term (&term)[terms], int64_t a_bytes, bool two_rows,
                                                    int64_t b_stride, const int64_t* steps, float* c, int64_t c_stride) {
  const int64_t b_bytes = b_stride * int64_t(sizeof(bf16_pair)), c_bytes = c_stride * int64_t(sizeof(float));
  const int64_t most = steps[0] > steps[1] ? steps[0] : steps[1];
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t step = 0; step < most; ++step)
    for (int i = 0; i < terms; ++i) {
      const char* a = static_cast<const char*>(term[i].a) + step * tile_pairs * int64_t(sizeof(bf16_pair));
      const bf16_pair* b = term[i].b + step * tile_pairs * b_stride;
      _tile_loadd(4, a, a_bytes);
      if (two_rows) _tile_loadd(5, a + tile_side * a_bytes, a_bytes);
      if (step < steps[0]) {
        _tile_loadd(6, b, b_bytes);
        _tile_dpbf16ps(0, 4, 6);
        if (two_rows) _tile_dpbf16ps(1, 5, 6);
      }
      if (step < steps[1]) {
        _tile_loadd(7, b + tile_side, b_bytes);
        _tile_dpbf16ps(2, 4, 7);
        if (two_rows) _tile_dpbf16ps(3, 5, 7);
      }
    }
  if (steps[0] > 0) {
    _tile_stored(0, c, c_bytes);
    if (two_rows) _tile_stored(1, c + tile_side * c_stride, c_bytes);
  }
  if (steps[1] > 0) {
    _tile_stored(2, c + tile_side, c_bytes);
    if (two_rows) _tile_stored(3, c + tile_side * c_stride + tile_side, c_bytes);
  }
}

// How many bfloat16 a stored number is the exact sum of.
template <typename stored>
constexpr int stored_parts = std::is_same<stored, bfloat_bits>::value ? 1 : 2;

// The first 16 bits of each float, and what they leave: exact, because it needs no more bits than the float has. An infinity
// or NaN leaves nothing; it must not become NaN by subtraction.
ROOTDK_INLINE __m512i leading_bits(__m512i x) { return _mm512_and_si512(x, _mm512_set1_epi32(int(0xffff0000u))); }
ROOTDK_INLINE __m512i left_over(__m512i x) {
  const __m512i leading = leading_bits(x);
  const __mmask16 finite =
      _mm512_cmpneq_epi32_mask(_mm512_and_si512(x, _mm512_set1_epi32(0x7f800000)), _mm512_set1_epi32(0x7f800000));
  return _mm512_castps_si512(_mm512_maskz_sub_ps(finite, _mm512_castsi512_ps(x), _mm512_castsi512_ps(leading)));
}
// Numbers of two vectors of floats, cut to 16 bits, side by side: `low` in the low half.
ROOTDK_INLINE __m512i side_by_side(__m512i low, __m512i high) {
  return _mm512_or_si512(_mm512_srli_epi32(low, 16), leading_bits(high));
}

// 16 stored numbers, or `count` of them and zeros, as floats.
template <typename stored>
ROOTDK_INLINE __m512i load_some(const stored* from, int64_t count) {
  const __mmask16 some = count >= 16 ? __mmask16(0xffff) : __mmask16((1u << (count > 0 ? count : 0)) - 1);
  const __m256i bits = _mm256_maskz_loadu_epi16(some, from);
  if constexpr (std::is_same<stored, half_bits>::value) return _mm512_castps_si512(_mm512_cvtph_ps(bits));
  return _mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16);
}

ROOTDK_INLINE void transpose_pairs(__m512i* block) { transpose<float>(reinterpret_cast<vec<float>*>(block)); }

// Pairs of a row side by side, as the row lies in memory: to[part][d / 2] for `length` numbers, then zeros up to `padded` (a
// multiple of 32). The permutation restores the order within a register.
template <typename stored>
ROOTDK_INLINE void split_row(const stored* from, int64_t length, int64_t padded, int64_t part_stride, bf16_pair* to) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  for (int64_t d = 0; d < padded; d += 32) {
    const __m512i first = load_some(from + d, length - d), second = load_some(from + d + 16, length - d - 16);
    __m512i low = _mm512_permutex2var_epi32(first, even, second), high = _mm512_permutex2var_epi32(first, odd, second);
    for (int part = 0; part < stored_parts<stored>; ++part) {
      _mm512_storeu_si512(to + part * part_stride + d / 2, side_by_side(low, high));
      if (part + 1 < stored_parts<stored>) low = left_over(low), high = left_over(high);
    }
  }
}

// Q as B: to[part][d / 2][lane]. Lanes out of use become zero.
template <typename stored>
inline void pack_queries(const stored* const* from, int live, int64_t d_k, int64_t part_stride, bf16_pair* to) {
  constexpr int64_t lanes = tile_lanes;
  for (int64_t group = 0; group < lanes; group += tile_side)
    for (int64_t d = 0; d < d_k; d += 32) {
      __m512i block[stored_parts<stored>][16];
      for (int64_t lane = 0; lane < tile_side; ++lane) {
        alignas(64) bf16_pair row[stored_parts<stored>][16] = {};
        if (group + lane < live) split_row(from[group + lane] + d, d_k - d, 32, 16, row[0]);
        for (int part = 0; part < stored_parts<stored>; ++part) block[part][lane] = _mm512_load_si512(row[part]);
      }
      for (int part = 0; part < stored_parts<stored>; ++part) {
        transpose_pairs(block[part]);
        for (int64_t i = 0; i < tile_pairs; ++i)
          _mm512_storeu_si512(to + part * part_stride + (d / 2 + i) * lanes + group, block[part][i]);
      }
    }
}

// V as A: to[part][d][key / 2] for `pairs` pairs; keys from `count` on and d from d_v on are zero. With `finite_only` so are
// numbers that are not finite.
template <typename stored>
inline void pack_values(const stored* from, int64_t row_stride, int64_t count, int64_t d_v, bool finite_only, int64_t pairs,
                        int64_t pair_stride, int64_t part_stride, bf16_pair* to) {
  const auto number = [&](int64_t key, int64_t d) __attribute__((always_inline)) {
    if (key >= count) return _mm512_setzero_si512();
    const __m512i x = load_some(from + key * row_stride + d, d_v - d);
    if (!finite_only) return x;
    const __m512i exponent = _mm512_set1_epi32(0x7f800000);
    return _mm512_maskz_mov_epi32(_mm512_cmpneq_epi32_mask(_mm512_and_si512(x, exponent), exponent), x);
  };
  for (int64_t d = 0; d < d_v; d += tile_side)
    for (int64_t pair = 0; pair < pairs; pair += tile_pairs) {
      __m512i block[stored_parts<stored>][16];
      for (int64_t i = 0; i < tile_pairs; ++i) {
        __m512i low = number(2 * (pair + i), d), high = number(2 * (pair + i) + 1, d);
        for (int part = 0; part < stored_parts<stored>; ++part) {
          block[part][i] = side_by_side(low, high);
          if (part + 1 < stored_parts<stored>) low = left_over(low), high = left_over(high);
        }
      }
      for (int part = 0; part < stored_parts<stored>; ++part) {
        transpose_pairs(block[part]);
        for (int64_t i = 0; i < tile_side; ++i)
          _mm512_storeu_si512(to + part * part_stride + (d + i) * pair_stride + pair, block[part][i]);
      }
    }
}

// Weights as B, in the place of the scores that they were: the leading parts of keys 2i and 2i + 1 in row 2i, the rest in
// row 2i + 1.
ROOTDK_INLINE void store_split(float* column, int64_t key, __m512i low, __m512i high) {
  const __m512i low_rest = _mm512_castps_si512(_mm512_castsi512_ps(low) - _mm512_castsi512_ps(leading_bits(low)));
  const __m512i high_rest = _mm512_castps_si512(_mm512_castsi512_ps(high) - _mm512_castsi512_ps(leading_bits(high)));
  _mm512_storeu_si512(column + key * tile_lanes, side_by_side(low, high));
  const __m512i half_unit = _mm512_set1_epi32(0x8000);  // rounds what is cut off
  _mm512_storeu_si512(column + (key + 1) * tile_lanes,
                      side_by_side(_mm512_add_epi32(low_rest, half_unit), _mm512_add_epi32(high_rest, half_unit)));
}

// The same for a whole column of weights.
inline void split_weights(float* column, int64_t stop) {
  int64_t key = 0;
  for (; key + 1 < stop; key += 2)
    store_split(column, key, _mm512_loadu_si512(column + key * tile_lanes),
                _mm512_loadu_si512(column + (key + 1) * tile_lanes));
  if (key < stop) store_split(column, key, _mm512_loadu_si512(column + key * tile_lanes), _mm512_setzero_si512());
}

// Keys from `stop` on are zero, up to a whole tile; the pair of an odd one is split already.
inline void clear_rest(float* column, int64_t stop) {
  for (int64_t key = round_up(stop, 2); key < round_up(stop, 2 * tile_pairs); ++key)
    store(column + key * tile_lanes, vec<float>{});
}

// A column of products as they come from the tiles; the logits are these times a factor in (0, 1], which cannot overflow, and
// the weights are stored as the next product needs them.
struct products_to_split_weights {
  const float* factor;
  ROOTDK_INLINE vec<float> scale(int v) const { return load(factor + v * tile_side); }
  ROOTDK_INLINE vec<float> logit(vec<float> product, int v) const { return product * scale(v); }
  ROOTDK_INLINE vec<float> distance(vec<float> product, vec<float> base, int v) const {
    vec<float> score = product * scale(v);
    asm("" : "+v"(score));  // rounded, not fused with the subtraction: backward has the logit itself
    return score - base;
  }
  ROOTDK_INLINE void keep(float* column, int64_t key, vec<float> a) const { keep(column, key, a, vec<float>{}); }
  ROOTDK_INLINE void keep(float* column, int64_t key, vec<float> a, vec<float> b) const {
    store_split(column, key, (__m512i)a, (__m512i)b);
  }
};

}  // namespace rootdk::ROOTDK_TARGET
