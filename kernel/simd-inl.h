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

namespace rootdk::ROOTDK_TARGET {

// What the way through the code is laid out for.
ROOTDK_INLINE bool often(bool condition) { return __builtin_expect(condition, true); }
ROOTDK_INLINE bool rarely(bool condition) { return __builtin_expect(condition, false); }

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

// Where a vector is a whole line of the cache: to memory past the caches. An ordinary store first fetches the line, from
// another core if that one wrote it last, to overwrite all of it. `to` must be aligned to the vector; fence_streams() comes
// before anyone else may read.
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

// Whether some lane is not `bound` or more; NaN is not. On AVX-512 a comparison is a mask at once, of which any_lane knows nothing.
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
// step costs no more than without the condition, if it is written so: of comparison and selection the compiler makes more.
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

// At least `floor`, NaN kept: the constant stands first, so that an unordered comparison yields x.
template <typename real>
ROOTDK_INLINE vec<real> at_least(vec<real> x, real floor) {
  return maximum(broadcast<real>(floor), x);
}

// 2^f with the least relative error and exactly 1 at f = 0; made by exp2_coefficients.py. What they leave: 2.6e-9 on
// [-1/2, 1/2] in float, 5.7e-20 in double, and 8.2e-8 (two thirds of an ulp) on [0, 1] for the short one.
constexpr float exp2_f32[] = {1.0f,
                              0.69314721497f,
                              0.24022652783f,
                              0.05550310551f,
                              0.0096176929752f,
                              0.0013406643901f,
                              0.00015594677425f};
constexpr float exp2_unit_f32[] = {1.0f, 0.6931513118f, 0.24016445016f, 0.055799913107f, 0.0090170303159f, 0.0018671300734f};
constexpr double exp2_f64[] = {1.0,
                               0.69314718055994530797,
                               0.2402265069591007114,
                               0.055504108664821733751,
                               0.0096181291076285612435,
                               0.0013333558146381738071,
                               0.00015403530393171833651,
                               0.000015252733864845181188,
                               1.3215487003408540572e-6,
                               1.0178047531145651564e-7,
                               7.0548148364195446064e-9,
                               4.4572393191069582003e-10,
                               2.5855238927593728085e-11};

// (2^f - 1) / f: the same polynomial without its constant term, so nothing cancels near zero.
ROOTDK_INLINE vec<float> exp2m1_over(vec<float> f) {
  vec<float> y = broadcast(exp2_f32[6]);
  for (int power = 5; power >= 1; --power) y = y * f + exp2_f32[power];
  return y;
}
ROOTDK_INLINE vec<double> exp2m1_over(vec<double> f) {
  vec<double> y = broadcast(exp2_f64[12]);
  for (int power = 11; power >= 1; --power) y = y * f + exp2_f64[power];
  return y;
}
template <typename real>
ROOTDK_INLINE vec<real> exp2_polynomial(vec<real> f) {
  return exp2m1_over(f) * f + real(1);
}

// How many exponentials of a row go step by step together: as many as the registers hold.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int in_step = 4;
#else
constexpr int in_step = 2;
#endif

// y = 2^x for x <= 0 (up to rounding a little above), 0 well below exp2_floor, NaN for NaN. One function serves forward
// and backward, so that both see the same weights. Step by step for all of them: a single one is a chain of nine operations
// of four cycles and more, and a processor that must look past it for the next one's has less room for anything else (half
// the room when a neighbour shares the core).
template <int count>
ROOTDK_INLINE void exp2(const vec<float>* x, vec<float>* y) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
  // reduce gives x - floor(x), scalef multiplies by 2^floor(x): no clamp, no integer arithmetic, and 2^-inf = 0.
  vec<float> f[count];
  for (int i = 0; i < count; ++i)
    f[i] = (vec<float>)_mm512_reduce_ps((__m512)x[i], _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  for (int i = 0; i < count; ++i) y[i] = f[i] * exp2_unit_f32[5] + exp2_unit_f32[4];
  for (int power = 3; power >= 0; --power)
    for (int i = 0; i < count; ++i) y[i] = y[i] * f[i] + exp2_unit_f32[power];
  for (int i = 0; i < count; ++i) y[i] = (vec<float>)_mm512_scalef_ps((__m512)y[i], (__m512)x[i]);
#else
  for (int i = 0; i < count; ++i) {
    const vec<float> clamped = at_least<float>(x[i], simd<float>::exp2_floor - 1);
    // Adding 1.5 * 2^23 leaves the nearest whole number in the low bits of the sum. With 127 more they are the exponent
    // field of 2^whole; at whole = -127 it is 0, and so is the product.
    const vec<float> magic = broadcast(12582912.0f + 127);
    const vec<float> shifted = clamped + magic;
    const ivec<float> exponent = (ivec<float>)shifted << 23;
    y[i] = exp2_polynomial<float>(clamped - (shifted - magic)) * (vec<float>)exponent;
  }
#endif
}
template <int count>
ROOTDK_INLINE void exp2(const vec<double>* x, vec<double>* y) {
  for (int i = 0; i < count; ++i) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    const __m512d f = _mm512_reduce_pd((__m512d)x[i], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512d whole = _mm512_sub_pd((__m512d)x[i], f);
    y[i] = (vec<double>)_mm512_scalef_pd((__m512d)exp2_polynomial<double>((vec<double>)f), whole);
#else
    const vec<double> clamped = at_least<double>(x[i], simd<double>::exp2_floor - 1);
    const vec<double> magic = broadcast(6755399441055744.0 + 1023);  // 1.5 * 2^52
    const vec<double> shifted = clamped + magic;
    const ivec<double> exponent = (ivec<double>)shifted << 52;
    y[i] = exp2_polynomial<double>(clamped - (shifted - magic)) * (vec<double>)exponent;
#endif
  }
}
ROOTDK_INLINE vec<float> exp2(vec<float> x) {
  vec<float> y;
  exp2<1>(&x, &y);
  return y;
}
ROOTDK_INLINE vec<double> exp2(vec<double> x) {
  vec<double> y;
  exp2<1>(&x, &y);
  return y;
}

template <typename real>
ROOTDK_INLINE real sum_lanes(vec<real> x) {
#if defined(__AVX512F__)
  if constexpr (sizeof(real) == 4) return _mm512_reduce_add_ps((__m512)x);
  else return _mm512_reduce_add_pd((__m512d)x);
#else
  // Halves onto halves: the same tree on every target without a reduction of its own.
  alignas(64) real lane[simd<real>::width];
  store<real>(lane, x);
  for (int half = simd<real>::width / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
#endif
}

// Natural logarithm of finite x > 0, for the end of a row. x = 2^k m with m around 1, and
// log m = 2 artanh(t) with t = (m - 1)/(m + 1), |t| < 0.172: no cancellation near x = 1.
template <typename real>
ROOTDK_INLINE vec<real> log(vec<real> x) {
  typedef lane_int<real> integer;
  constexpr bool single = sizeof(real) == 4;
  constexpr int mantissa_bits = single ? 23 : 52;
  constexpr integer root_half = single ? integer(0x3F3504F3) : integer(0x3FE6A09E667F3BCDLL);  // sqrt(1/2) as bits
  const ivec<real> above = (ivec<real>)x - root_half;
  const ivec<real> k = above >> mantissa_bits;
  const vec<real> m = (vec<real>)((ivec<real>)x - (k << mantissa_bits));
  const vec<real> t = (m - real(1)) / (m + real(1)), square = t * t;
  constexpr int last = single ? 11 : 25;
  vec<real> series = broadcast(real(1) / last);
  for (int odd = last - 2; odd >= 1; odd -= 2) series = series * square + real(1) / odd;
  return __builtin_convertvector(k, vec<real>) * real(0.69314718055994530942) + t * series * real(2);
}

// tanh for the softcap: -m/(2 + m) with m = exp(-2|x|) - 1. Where |x| is small m comes from the polynomial without its
// constant, so a small logit under a large cap keeps all its digits.
template <typename real>
ROOTDK_INLINE vec<real> tanh(vec<real> x) {
  const vec<real> magnitude = maximum(x, -x);
  const vec<real> exponent = magnitude * real(-2.8853900817779268);  // -2 log2(e)
  const vec<real> near_zero = exponent * exp2m1_over(exponent);
  const vec<real> far = exp2(exponent) - real(1);
  const vec<real> m = exponent > broadcast(real(-0.5)) ? near_zero : far;
  const vec<real> result = -m / (m + real(2));
  // maximum() drops a NaN: it comes back through x + x.
  return x != x ? x + x : (x < vec<real>{} ? -result : result);
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
  for (int row = 0; row < width; ++row)
    if (!(row & half)) swap_parts<real, half>(rows[row], rows[row + half], std::make_integer_sequence<int, width>{});
  if constexpr (half > 1) transpose_round<real, half / 2>(rows);
}
template <typename real>
ROOTDK_INLINE void transpose(vec<real>* rows) {
  transpose_round<real, simd<real>::width / 2>(rows);
}

// Lane i becomes the sum over the lanes of rows[i]: the rounds of a transpose, adding as they go.
template <typename real, int half = simd<real>::width / 2>
ROOTDK_INLINE vec<real> sum_rows(vec<real>* rows) {
  for (int row = 0; row < half; ++row) {
    swap_parts<real, half>(rows[row], rows[row + half], std::make_integer_sequence<int, simd<real>::width>{});
    rows[row] += rows[row + half];
  }
  if constexpr (half > 1) return sum_rows<real, half / 2>(rows);
  return rows[0];
}

}  // namespace rootdk::ROOTDK_TARGET
