// The one matrix product of the kernel: C[row][lane] (+)= sum over step of A(row, step) * B[step][lane].
//
// A is read one number at a time and broadcast, B and C are rows of whole vectors. Keys and values serve as A exactly as they
// lie in memory, in both orders, so nothing of size n is ever packed:
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

// How a finished tile is combined with what C already holds.
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
// C = C * before + sum * block, factors per lane: the online softmax's rescaling, at no extra cost.
template <typename real>
struct rescale_add {
  vec<real> before[panel_vectors], block[panel_vectors];
  ROOTDK_INLINE void operator()(real* c, int vector, vec<real> sum) const {
    store(c, load(c) * before[vector] + sum * block[vector]);
  }
};
// C = C + sum * block: the rest of a block whose first part has rescaled C already.
template <typename real>
struct scaled_add {
  vec<real> block;
  ROOTDK_INLINE void operator()(real* c, int /*vector*/, vec<real> sum) const { store(c, load(c) + sum * block); }
};

// A product that skips hidden pairs. 0 * NaN is NaN, so where a hidden key or value is not finite a weight of 0 does not help.
// `marks` has the shape of the scores, [key][lane], and is negative where a pair is hidden: it lies beside B where B are
// weights (A_columns), beside A where A are weights (A_rows). Same sums in the same order as the plain product, so that rows
// which see no such key keep their bits.
template <typename real>
struct skip_hidden {
  const real* marks;
};
struct skip_nothing {};

template <typename real, a_layout layout, int rows, int vectors, typename skip_t, typename finish_t>
ROOTDK_INLINE void tile(const real* __restrict a, int64_t a_stride, const real* __restrict b, int64_t b_stride, int64_t steps,
                        real* __restrict c, int64_t c_stride, const skip_t& skip, const finish_t& finish) {
  constexpr int width = simd<real>::width;
  constexpr bool slow_path = !std::is_same<skip_t, skip_nothing>::value;
  vec<real> sum[rows][vectors];
  for (int row = 0; row < rows; ++row)
    for (int v = 0; v < vectors; ++v) sum[row][v] = vec<real>{};
  for (int64_t step = 0; step < steps; ++step) {
    vec<real> b_vec[vectors];
    for (int v = 0; v < vectors; ++v) b_vec[v] = load(b + step * b_stride + v * width);
    for (int row = 0; row < rows; ++row) {
      if constexpr (slow_path && layout == a_rows)
        if (skip.marks[row * a_stride + step] < 0) continue;
      const vec<real> x = broadcast(layout == a_rows ? a[row * a_stride + step] : a[step * a_stride + row]);
      for (int v = 0; v < vectors; ++v) {
        if constexpr (slow_path && layout == a_columns) {
          const ivec<real> hidden = load(skip.marks + step * b_stride + v * width) < vec<real>{};
          sum[row][v] = select<real>(hidden, sum[row][v], sum[row][v] + x * b_vec[v]);
        } else {
          sum[row][v] += x * b_vec[v];
        }
      }
    }
  }
  for (int row = 0; row < rows; ++row)
    for (int v = 0; v < vectors; ++v) finish(c + row * c_stride + v * width, v, sum[row][v]);
}

// All rows: whole tiles, then one of every smaller size that is needed.
template <typename real, a_layout layout, int vectors, typename finish_t, typename skip_t = skip_nothing>
inline __attribute__((noinline)) void product(const real* a, int64_t a_stride, const real* b, int64_t b_stride, int64_t steps,
                                              real* c, int64_t c_stride, int64_t rows, const finish_t& finish,
                                              const skip_t& skip = {}) {
  int64_t row = 0;
  const auto tile_of = [&](auto size) __attribute__((always_inline)) {
    skip_t here = skip;
    if constexpr (!std::is_same<skip_t, skip_nothing>::value && layout == a_rows) here.marks += row * a_stride;
    tile<real, layout, size.value, vectors>(a + row * (layout == a_rows ? a_stride : 1), a_stride, b, b_stride, steps,
                                            c + row * c_stride, c_stride, here, finish);
    row += size.value;
  };
  // Two rows are too few sums to keep the ports busy, so eight that are left are four and four, not six and two.
  while (row + tile_rows <= rows && !(tile_rows == 6 && row + 8 == rows)) tile_of(std::integral_constant<int, tile_rows>{});
  while (row + 4 <= rows) tile_of(std::integral_constant<int, 4>{});
  if (row + 2 <= rows) tile_of(std::integral_constant<int, 2>{});
  if (row < rows) tile_of(std::integral_constant<int, 1>{});
}

}  // namespace rootdk::ROOTDK_TARGET
