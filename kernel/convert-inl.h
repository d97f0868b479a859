// Stored elements <-> the numbers that are computed with. float32 and float64 are themselves; the half types become
// float32 on the way in and are rounded to nearest even on the way out.

namespace rootdk::ROOTDK_TARGET {

struct half_bits {
  uint16_t bits;
};
struct bfloat_bits {
  uint16_t bits;
};

// The type in which a stored type is computed.
template <typename stored>
struct compute_type {
  typedef float type;
};
template <>
struct compute_type<double> {
  typedef double type;
};
template <typename stored>
using compute = typename compute_type<stored>::type;

ROOTDK_INLINE float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
ROOTDK_INLINE uint32_t to_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

ROOTDK_INLINE float widen(float x) { return x; }
ROOTDK_INLINE double widen(double x) { return x; }
ROOTDK_INLINE float widen(bfloat_bits x) { return from_bits(uint32_t(x.bits) << 16); }
ROOTDK_INLINE float widen(half_bits x) {
#if defined(__F16C__)
  return _cvtsh_ss(x.bits);
#elif defined(__aarch64__)
  // In hardware: the arithmetic below would lose subnormal halves while subnormals are flushed.
  __fp16 half;
  std::memcpy(&half, &x.bits, sizeof half);
  return float(half);
#else
  const uint32_t sign = uint32_t(x.bits & 0x8000u) << 16, magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return from_bits(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  // Shifted into place the number is too small by 2^112; the product is exact, subnormal halves included.
  const float x_abs = from_bits(magnitude << 13) * from_bits(0x77800000u);
  return from_bits(to_bits(x_abs) | sign);
#endif
}

ROOTDK_INLINE void narrow(float x, float* to) { *to = x; }
ROOTDK_INLINE void narrow(double x, double* to) { *to = x; }
ROOTDK_INLINE void narrow(float x, bfloat_bits* to) {
  const uint32_t bits = to_bits(x);
  if (x != x) {
    to->bits = uint16_t((bits >> 16) | 0x40u);  // rounding could carry a NaN's payload into infinity
    return;
  }
  to->bits = uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
ROOTDK_INLINE void narrow(float x, half_bits* to) {
#if defined(__F16C__)
  to->bits = uint16_t(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
  const __fp16 half = static_cast<__fp16>(x);
  std::memcpy(&to->bits, &half, sizeof half);
#else
  const uint32_t bits = to_bits(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    to->bits = uint16_t(sign | 0x7e00u);
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    to->bits = uint16_t(sign | 0x7c00u);
  } else if (magnitude < 0x38800000u) {  // below 2^-14: add 0.5 so that the last bit kept is the half's last bit
    to->bits = uint16_t(sign | (to_bits(from_bits(magnitude) + 0.5f) - to_bits(0.5f)));
  } else {
    to->bits = uint16_t(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
  }
#endif
}

// As many stored numbers as a register holds computed ones.
template <typename stored>
ROOTDK_INLINE vec<compute<stored>> load_wide(const stored* from) {
  if constexpr (std::is_same<stored, compute<stored>>::value) {
    return load(from);
  } else {
#if defined(__AVX512F__)
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    if constexpr (std::is_same<stored, half_bits>::value) return (vec<float>)_mm512_cvtph_ps(bits);
    return (vec<float>)_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16);
#elif defined(__AVX2__)
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    if constexpr (std::is_same<stored, half_bits>::value) return (vec<float>)_mm256_cvtph_ps(bits);
    return (vec<float>)_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16);
#else
    alignas(64) float wide[simd<float>::width];
    for (int i = 0; i < simd<float>::width; ++i) wide[i] = widen(from[i]);
    return load(wide);
#endif
  }
}

template <typename stored>
ROOTDK_INLINE void widen_row(const stored* from, int64_t count, compute<stored>* to) {
  constexpr int width = simd<compute<stored>>::width;
  int64_t i = 0;
  for (; i + width <= count; i += width) store(to + i, load_wide(from + i));
  for (; i < count; ++i) to[i] = widen(from[i]);
}

template <typename stored>
ROOTDK_INLINE void narrow_row(const compute<stored>* from, int64_t count, stored* to) {
  for (int64_t i = 0; i < count; ++i) narrow(from[i], to + i);
}

// Rows as the tiles need them: the stored rows themselves where no conversion is needed, else a converted copy.
template <typename real>
struct row_block {
  const real* data;
  int64_t stride;
};
template <typename stored>
ROOTDK_INLINE row_block<compute<stored>> widen_rows(const stored* from, int64_t stride, int64_t rows, int64_t length,
                                                    compute<stored>* copy) {
  if constexpr (std::is_same<stored, compute<stored>>::value) {
    return {from, stride};
  } else {
    for (int64_t row = 0; row < rows; ++row) widen_row(from + row * stride, length, copy + row * length);
    return {copy, length};
  }
}

}  // namespace rootdk::ROOTDK_TARGET
