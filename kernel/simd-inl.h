// Vectors of the present target. GCC and Clang vector types carry the arithmetic; only what they cannot express well
// (maximum, powers of two, half floats) is written per instruction set.
//
// No include guard for the namespace's content: each target includes this once, inside its own translation unit.
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define ROOTDK_INLINE inline __attribute__((always_inline))
// Clang keeps an array of vectors in registers only if every loop over it is unrolled; GCC does that by itself.
#if defined(__clang__)
#define ROOTDK_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ROOTDK_UNROLL
#endif

namespace rootdk::ROOTDK_TARGET {

// The usual case, for which the compiler arranges the code.
ROOTDK_INLINE bool likely(bool condition) { return __builtin_expect(condition, true); }
ROOTDK_INLINE bool unlikely(bool condition) { return __builtin_expect(condition, false); }

#if defined(__AVX512F__)
constexpr int vector_bytes = 64;
#elif defined(__AVX2__)
constexpr int vector_bytes = 32;
#else
constexpr int vector_bytes = 16;
#endif

template <typename real>
struct simd;

template <>
struct simd<float> {
  static constexpr int width = vector_bytes / 4;
  // aligned(4), may_alias: loads and stores through these types are allowed anywhere.
  typedef float vec __attribute__((vector_size(vector_bytes)));
  typedef float vec_unaligned __attribute__((vector_size(vector_bytes), aligned(4), may_alias));
  typedef int32_t integer;
  typedef uint32_t bits;
  typedef int32_t ivec __attribute__((vector_size(vector_bytes)));
  typedef int32_t ivec_unaligned __attribute__((vector_size(vector_bytes), aligned(4), may_alias));
  // exp2(x) is zero below this: the smallest normal number, so that no weight is ever subnormal (and slow).
  static constexpr float exp2_floor = -126.0f;
};

template <>
struct simd<double> {
  static constexpr int width = vector_bytes / 8;
  typedef double vec __attribute__((vector_size(vector_bytes)));
  typedef double vec_unaligned __attribute__((vector_size(vector_bytes), aligned(8), may_alias));
  typedef int64_t integer;
  typedef uint64_t bits;
  typedef int64_t ivec __attribute__((vector_size(vector_bytes)));
  typedef int64_t ivec_unaligned __attribute__((vector_size(vector_bytes), aligned(8), may_alias));
  static constexpr double exp2_floor = -1022.0;
};

template <typename real>
using vec = typename simd<real>::vec;
template <typename real>
using ivec = typename simd<real>::ivec;
template <typename real>
using lane_int = typename simd<real>::integer;

template <typename real>
ROOTDK_INLINE vec<real> load(const real* from) {
  return *reinterpret_cast<const typename simd<real>::vec_unaligned*>(from);
}
template <typename real>
ROOTDK_INLINE void store(real* to, vec<real> x) {
  *reinterpret_cast<typename simd<real>::vec_unaligned*>(to) = x;
}
template <typename real>
ROOTDK_INLINE ivec<real> load_int(const lane_int<real>* from) {
  return *reinterpret_cast<const typename simd<real>::ivec_unaligned*>(from);
}
template <typename real>
ROOTDK_INLINE vec<real> broadcast(real x) {
  return x - vec<real>{};  // minus zero vector: keeps NaN, infinities and the sign of zero
}
template <typename real>
ROOTDK_INLINE vec<real> select(ivec<real> condition, vec<real> yes, vec<real> no) {
  return condition ? yes : no;
}

// Where a vector is a whole cache line: stores to memory, past the caches. An ordinary store first fetches the line, from
// another core if that one wrote it last, only to overwrite all of it. `to` must be aligned to the vector; fence_streams() must
// come before other threads read.
#if defined(__AVX512F__)
constexpr bool can_stream = true;
ROOTDK_INLINE void stream(float* to, vec<float> x) { _mm512_stream_ps(to, (__m512)x); }
ROOTDK_INLINE void stream(double* to, vec<double> x) { _mm512_stream_pd(to, (__m512d)x); }
ROOTDK_INLINE void stream(int64_t* to, ivec<double> x) { _mm512_stream_si512((__m512i*)to, (__m512i)x); }
ROOTDK_INLINE void fence_streams() { _mm_sfence(); }
#else
constexpr bool can_stream = false;
template <typename number, typename vector>
ROOTDK_INLINE void stream(number*, vector) {}
ROOTDK_INLINE void fence_streams() {}
#endif

template <typename real>
ROOTDK_INLINE bool any_lane(ivec<real> condition) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
  if constexpr (sizeof(real) == 4) return _mm512_movepi32_mask((__m512i)condition) != 0;
  return _mm512_movepi64_mask((__m512i)condition) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_epi8((__m256i)condition) != 0;
#else
  lane_int<real> any = 0;
  for (int lane = 0; lane < simd<real>::width; ++lane) any |= condition[lane];
  return any != 0;
#endif
}

// maximum(candidate, running): where the candidate is NaN the running value stays, as x86's maxps does it. The NaN is
// not lost: it reaches the sum of the row's weights, and from there every result of the row.
ROOTDK_INLINE vec<float> maximum(vec<float> candidate, vec<float> running) {
#if defined(__AVX512F__)
  return (vec<float>)_mm512_max_ps((__m512)candidate, (__m512)running);
#elif defined(__AVX2__)
  return (vec<float>)_mm256_max_ps((__m256)candidate, (__m256)running);
#elif defined(__SSE2__)
  return (vec<float>)_mm_max_ps((__m128)candidate, (__m128)running);
#else
  return candidate > running ? candidate : running;
#endif
}
ROOTDK_INLINE vec<double> maximum(vec<double> candidate, vec<double> running) {
#if defined(__AVX512F__)
  return (vec<double>)_mm512_max_pd((__m512d)candidate, (__m512d)running);
#elif defined(__AVX2__)
  return (vec<double>)_mm256_max_pd((__m256d)candidate, (__m256d)running);
#elif defined(__SSE2__)
  return (vec<double>)_mm_max_pd((__m128d)candidate, (__m128d)running);
#else
  return candidate > running ? candidate : running;
#endif
}
ROOTDK_INLINE vec<float> minimum(vec<float> candidate, vec<float> running) {
#if defined(__AVX512F__)
  return (vec<float>)_mm512_min_ps((__m512)candidate, (__m512)running);
#elif defined(__AVX2__)
  return (vec<float>)_mm256_min_ps((__m256)candidate, (__m256)running);
#elif defined(__SSE2__)
  return (vec<float>)_mm_min_ps((__m128)candidate, (__m128)running);
#else
  return candidate < running ? candidate : running;
#endif
}
ROOTDK_INLINE vec<double> minimum(vec<double> candidate, vec<double> running) {
#if defined(__AVX512F__)
  return (vec<double>)_mm512_min_pd((__m512d)candidate, (__m512d)running);
#elif defined(__AVX2__)
  return (vec<double>)_mm256_min_pd((__m256d)candidate, (__m256d)running);
#elif defined(__SSE2__)
  return (vec<double>)_mm_min_pd((__m128d)candidate, (__m128d)running);
#else
  return candidate < running ? candidate : running;
#endif
}

// Whether some lane is not `bound` or more; NaN is not. On AVX-512 a comparison gives a mask at once, which any_lane does not
// take.
#if defined(__AVX512F__)
ROOTDK_INLINE bool any_below(vec<float> x, float bound) {
  return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(bound), _CMP_NGE_UQ) != 0;
}
ROOTDK_INLINE bool any_below(vec<double> x, double bound) {
  return _mm512_cmp_pd_mask((__m512d)x, _mm512_set1_pd(bound), _CMP_NGE_UQ) != 0;
}
#else
ROOTDK_INLINE bool any_below(vec<float> x, float bound) { return any_lane<float>(~(x >= broadcast(bound))); }
ROOTDK_INLINE bool any_below(vec<double> x, double bound) { return any_lane<double>(~(x >= broadcast(bound))); }
#endif

// Which lanes of `score` are seen, not -inf (NaN is seen), and steps that leave the other lanes as they are. On AVX-512 such a
// step costs no more than without the condition, if it is written like this: comparison and selection compile to slower code.
#if defined(__AVX512F__)
ROOTDK_INLINE __mmask16 seen_lanes(vec<float> score) {
  return _mm512_cmp_ps_mask((__m512)score, _mm512_set1_ps(-std::numeric_limits<float>::infinity()), _CMP_NEQ_UQ);
}
ROOTDK_INLINE __mmask8 seen_lanes(vec<double> score) {
  return _mm512_cmp_pd_mask((__m512d)score, _mm512_set1_pd(-std::numeric_limits<double>::infinity()), _CMP_NEQ_UQ);
}
ROOTDK_INLINE vec<float> minimum_if(__mmask16 seen, vec<float> candidate, vec<float> running) {
  return (vec<float>)_mm512_mask_min_ps((__m512)running, seen, (__m512)candidate, (__m512)running);
}
ROOTDK_INLINE vec<double> minimum_if(__mmask8 seen, vec<double> candidate, vec<double> running) {
  return (vec<double>)_mm512_mask_min_pd((__m512d)running, seen, (__m512d)candidate, (__m512d)running);
}
ROOTDK_INLINE vec<float> add_if(__mmask16 seen, vec<float> sum, vec<float> x) {
  return (vec<float>)_mm512_mask_add_ps((__m512)sum, seen, (__m512)sum, (__m512)x);
}
ROOTDK_INLINE vec<double> add_if(__mmask8 seen, vec<double> sum, vec<double> x) {
  return (vec<double>)_mm512_mask_add_pd((__m512d)sum, seen, (__m512d)sum, (__m512d)x);
}
ROOTDK_INLINE vec<float> add_product_if(__mmask16 seen, vec<float> sum, vec<float> x, vec<float> y) {
  return (vec<float>)_mm512_mask3_fmadd_ps((__m512)x, (__m512)y, (__m512)sum, seen);
}
ROOTDK_INLINE vec<double> add_product_if(__mmask8 seen, vec<double> sum, vec<double> x, vec<double> y) {
  return (vec<double>)_mm512_mask3_fmadd_pd((__m512d)x, (__m512d)y, (__m512d)sum, seen);
}
#else
template <typename vector>
ROOTDK_INLINE auto seen_lanes(vector score) {
  typedef std::remove_reference_t<decltype(score[0])> real;
  return score != broadcast<real>(-std::numeric_limits<real>::infinity());
}
template <typename mask, typename vector>
ROOTDK_INLINE vector minimum_if(mask seen, vector candidate, vector running) {
  return seen ? minimum(candidate, running) : running;
}
template <typename mask, typename vector>
ROOTDK_INLINE vector add_if(mask seen, vector sum, vector x) {
  return seen ? sum + x : sum;
}
template <typename mask, typename vector>
ROOTDK_INLINE vector add_product_if(mask seen, vector sum, vector x, vector y) {
  return seen ? sum + x * y : sum;
}
#endif

// x * y + sum, rounded once on every target that can. Where a plain `x * y + sum` stands, the compiler decides loop by loop
// whether to fuse the two; passes that must agree bit by bit on large numbers use this.
#if defined(__AVX512F__)
ROOTDK_INLINE vec<float> multiply_add(vec<float> x, vec<float> y, vec<float> sum) {
  return (vec<float>)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)sum);
}
ROOTDK_INLINE vec<double> multiply_add(vec<double> x, vec<double> y, vec<double> sum) {
  return (vec<double>)_mm512_fmadd_pd((__m512d)x, (__m512d)y, (__m512d)sum);
}
#elif defined(__AVX2__)
ROOTDK_INLINE vec<float> multiply_add(vec<float> x, vec<float> y, vec<float> sum) {
  return (vec<float>)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)sum);
}
ROOTDK_INLINE vec<double> multiply_add(vec<double> x, vec<double> y, vec<double> sum) {
  return (vec<double>)_mm256_fmadd_pd((__m256d)x, (__m256d)y, (__m256d)sum);
}
#elif defined(__aarch64__)
ROOTDK_INLINE vec<float> multiply_add(vec<float> x, vec<float> y, vec<float> sum) {
  return (vec<float>)vfmaq_f32((float32x4_t)sum, (float32x4_t)x, (float32x4_t)y);
}
ROOTDK_INLINE vec<double> multiply_add(vec<double> x, vec<double> y, vec<double> sum) {
  return (vec<double>)vfmaq_f64((float64x2_t)sum, (float64x2_t)x, (float64x2_t)y);
}
#else
template <typename vector>
ROOTDK_INLINE vector multiply_add(vector x, vector y, vector sum) {
  return x * y + sum;
}
#endif

// At least `floor`, NaN kept: the constant stands first, so that an unordered comparison yields x.
template <typename real>
ROOTDK_INLINE vec<real> at_least(vec<real> x, real floor) {
  return maximum(broadcast<real>(floor), x);
}

template <typename real>
ROOTDK_INLINE real sum_lanes(vec<real> x) {
#if defined(__AVX512F__)
  if constexpr (sizeof(real) == 4)
    return _mm512_reduce_add_ps((__m512)x);
  else
    return _mm512_reduce_add_pd((__m512d)x);
#else
  // Halves are added to halves: the same tree on every target without a reduction of its own.
  alignas(64) real lane[simd<real>::width];
  store<real>(lane, x);
  for (int half = simd<real>::width / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
#endif
}

// Two rows of a block that is being transposed swap their off-diagonal parts: columns whose number has the bit `half`
// of the first row against those without it of the second.
template <typename real, int half, int... lane>
ROOTDK_INLINE void swap_parts(vec<real>& a, vec<real>& b, std::integer_sequence<int, lane...>) {
  constexpr int width = simd<real>::width;
  const vec<real> a_before = a;
#if defined(__clang__)
  a = __builtin_shufflevector(a_before, b, ((lane & half) ? width + lane - half : lane)...);
  b = __builtin_shufflevector(a_before, b, ((lane & half) ? width + lane : lane + half)...);
#else
  a = __builtin_shuffle(a_before, b, ivec<real>{((lane & half) ? width + lane - half : lane)...});
  b = __builtin_shuffle(a_before, b, ivec<real>{((lane & half) ? width + lane : lane + half)...});
#endif
}

// In-place transpose of a width x width block by swapping halves, quarters, ... : log2(width) rounds.
template <typename real, int half>
ROOTDK_INLINE void transpose_round(vec<real>* rows) {
  constexpr int width = simd<real>::width;
  ROOTDK_UNROLL
  for (int row = 0; row < width; ++row)
    if (!(row & half)) swap_parts<real, half>(rows[row], rows[row + half], std::make_integer_sequence<int, width>{});
  if constexpr (half > 1) transpose_round<real, half / 2>(rows);
}
template <typename real>
ROOTDK_INLINE void transpose(vec<real>* rows) {
  constexpr int width = simd<real>::width;
  vec<real> held[width];  // the caller may index its rows in a loop, these stay in registers
  ROOTDK_UNROLL
  for (int row = 0; row < width; ++row) held[row] = rows[row];
  transpose_round<real, width / 2>(held);
  ROOTDK_UNROLL
  for (int row = 0; row < width; ++row) rows[row] = held[row];
}

// Lane i becomes the sum over the lanes of rows[i]: the rounds of a transpose, adding as they go.
template <typename real, int half = simd<real>::width / 2>
ROOTDK_INLINE vec<real> sum_rows(vec<real>* rows) {
  ROOTDK_UNROLL
  for (int row = 0; row < half; ++row) {
    swap_parts<real, half>(rows[row], rows[row + half], std::make_integer_sequence<int, simd<real>::width>{});
    rows[row] += rows[row + half];
  }
  if constexpr (half > 1) return sum_rows<real, half / 2>(rows);
  return rows[0];
}

}  // namespace rootdk::ROOTDK_TARGET
