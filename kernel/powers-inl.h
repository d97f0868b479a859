// Powers of two, logarithm and tanh, a vector at a time.

namespace rootdk::ROOTDK_TARGET {

// 2^f with the least relative error and exactly 1 at f = 0; made by exp2_coefficients.py. The errors: 2.6e-9 on [-1/2, 1/2] in
// float, 5.7e-20 in double, and 8.2e-8 (two thirds of an ulp) on [0, 1] for the short one.
constexpr float exp2_f32[] = {
    1.0f, 0.69314721497f, 0.24022652783f, 0.05550310551f, 0.0096176929752f, 0.0013406643901f, 0.00015594677425f};
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

// y = 2^x for x <= 0 (up to rounding a little above), 0 well below exp2_floor, NaN for NaN. One function serves forward and
// backward, so that both see the same weights. All of them are computed together, step by step: a single one is a chain of nine
// operations of four cycles and more, and a processor that must look ahead past it to the next has fewer places left for other
// work (half as many when a neighbour shares the core).
template <int count>
ROOTDK_INLINE void exp2(const vec<float>* x, vec<float>* y) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
  // reduce gives x - floor(x), scalef multiplies by 2^floor(x): no clamp, no integer arithmetic, and 2^-inf = 0.
  vec<float> f[count];
  for (int i = 0; i < count; ++i) f[i] = (vec<float>)_mm512_reduce_ps((__m512)x[i], _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
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

}  // namespace rootdk::ROOTDK_TARGET
