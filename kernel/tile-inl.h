// The one matrix product of the kernel: C[row][lane] (+)= sum over step of A(row, step) * B[step][lane].
//
// A is read one number at a time and broadcast, B and C are rows of whole vectors. Keys and values play A exactly as
// they lie in memory, in both orders, so nothing of size n is ever packed:
//
//   scores      A = K   row = key, step = d      B = Q transposed      (A_rows)
//   output      A = V   row = d,   step = key    B = weights           (A_columns)
//
// 8 x 2 vectors of sums fit the 32 registers of AVX-512 and NEON, 6 x 2 the 16 of AVX2: enough independent sums to keep
// two multiply-add ports busy through their latency, and fewer loads than multiply-adds.

namespace rootdk::ROOTDK_TARGET {

enum a_layout { a_rows, a_columns };

constexpr int panel_vectors = 2;
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int tile_rows = 8;
#else
constexpr int tile_rows = 6;
#endif

template <typename real>
constexpr int panel_lanes = panel_vectors * simd<real>::width;

// How a finished tile meets what C already holds.
struct overwrite {
  template <typename real>
  ROOTDK_INLINE void operator()(real* c, int /*vector*/, vec<real> sum) const {
    store(c, sum);
  }
};
struct add {
  template <typename real>
  ROOTDK_INLINE void operator()(real* c, int /*vector*/, vec<real> sum) const {
    store(c, load(c) + sum);
  }
};
// C = C * factor + sum, a factor per lane: the online softmax's rescaling, at the price of nothing.
template <typename real>
struct rescale_add {
  vec<real> factor[panel_vectors];
  ROOTDK_INLINE void operator()(real* c, int vector, vec<real> sum) const {
    store(c, load(c) * factor[vector] + sum);
  }
};

template <typename real, a_layout layout, int rows, int vectors, typename finish_t>
ROOTDK_INLINE void tile(const real* __restrict a, int64_t a_stride, const real* __restrict b, int64_t b_stride,
                        int64_t steps, real* __restrict c, int64_t c_stride, const finish_t& finish) {
  constexpr int width = simd<real>::width;
  vec<real> sum[rows][vectors];
  for (int row = 0; row < rows; ++row)
    for (int v = 0; v < vectors; ++v) sum[row][v] = vec<real>{};
  for (int64_t step = 0; step < steps; ++step) {
    vec<real> b_vec[vectors];
    for (int v = 0; v < vectors; ++v) b_vec[v] = load(b + step * b_stride + v * width);
    for (int row = 0; row < rows; ++row) {
      const vec<real> x = broadcast(layout == a_rows ? a[row * a_stride + step] : a[step * a_stride + row]);
      for (int v = 0; v < vectors; ++v) sum[row][v] += x * b_vec[v];
    }
  }
  for (int row = 0; row < rows; ++row)
    for (int v = 0; v < vectors; ++v) finish(c + row * c_stride + v * width, v, sum[row][v]);
}

// All rows: whole tiles, then one of every smaller size that is needed.
template <typename real, a_layout layout, int vectors, typename finish_t>
inline __attribute__((noinline)) void product(const real* a, int64_t a_stride, const real* b, int64_t b_stride,
                                              int64_t steps, real* c, int64_t c_stride, int64_t rows,
                                              const finish_t& finish) {
  const int64_t a_row = layout == a_rows ? a_stride : 1;
  int64_t row = 0;
  for (; row + tile_rows <= rows; row += tile_rows)
    tile<real, layout, tile_rows, vectors>(a + row * a_row, a_stride, b, b_stride, steps, c + row * c_stride, c_stride, finish);
  if (row + 4 <= rows) {
    tile<real, layout, 4, vectors>(a + row * a_row, a_stride, b, b_stride, steps, c + row * c_stride, c_stride, finish);
    row += 4;
  }
  if (row + 2 <= rows) {
    tile<real, layout, 2, vectors>(a + row * a_row, a_stride, b, b_stride, steps, c + row * c_stride, c_stride, finish);
    row += 2;
  }
  if (row < rows)
    tile<real, layout, 1, vectors>(a + row * a_row, a_stride, b, b_stride, steps, c + row * c_stride, c_stride, finish);
}

}  // namespace rootdk::ROOTDK_TARGET
