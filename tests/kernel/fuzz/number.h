// The four stored types as plain arithmetic says them: written from the formats' definitions with ldexp and ilogb, and
// sharing nothing with the kernel's conversions.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "attention.h"

namespace fuzz {

using rootdk::element;
typedef long double exact;  // what the definition is computed in: its rounding is far below float64's where it has 64 bits

constexpr exact nan_value = std::numeric_limits<exact>::quiet_NaN();
constexpr exact infinity = std::numeric_limits<exact>::infinity();

// unit: largest relative error of rounding to nearest; floor: largest error of a result that is too small for that
// (float32 and float64 may be flushed to zero below the normal numbers); largest: the largest finite number.
struct precision {
  exact unit, floor, largest;
};

inline precision stored_precision(element type) {
  switch (type) {
    case element::float32: return {std::ldexp(exact(1), -24), FLT_MIN, FLT_MAX};
    case element::float64: return {std::ldexp(exact(1), -53), DBL_MIN, DBL_MAX};
    case element::float16: return {std::ldexp(exact(1), -11), std::ldexp(exact(1), -25), 65504};
    default: return {std::ldexp(exact(1), -8), FLT_MIN, std::ldexp(exact(255), 120)};
  }
}

inline precision compute_precision(element type) {
  return stored_precision(type == element::float64 ? element::float64 : element::float32);
}

// A small binary format: a sign, `exponent_bits`, `fraction_bits`, subnormals, infinities, NaN.
struct small_format {
  int exponent_bits, fraction_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int special() const { return (1 << exponent_bits) - 1; }

  exact decode(uint16_t bits) const {
    const int exponent = (bits >> fraction_bits) & special(), fraction = bits & ((1 << fraction_bits) - 1);
    const exact sign = bits & 0x8000 ? -1 : 1;
    if (exponent == special()) return fraction ? nan_value : sign * infinity;
    if (exponent == 0) return sign * std::ldexp(exact(fraction), 1 - bias() - fraction_bits);
    return sign * std::ldexp(exact((1 << fraction_bits) + fraction), exponent - bias() - fraction_bits);
  }

  uint16_t encode(exact x) const {
    const int sign = std::signbit(x) ? 0x8000 : 0, top = special() << fraction_bits, one = 1 << fraction_bits;
    if (std::isnan(x)) return uint16_t(sign | top | (one >> 1));
    const exact magnitude = std::fabs(x);
    if (std::isinf(x)) return uint16_t(sign | top);
    int exponent = magnitude > 0 ? std::ilogb(magnitude) : 1 - bias();
    if (exponent < 1 - bias()) exponent = 1 - bias();
    if (exponent > bias()) return uint16_t(sign | top);
    // Whole steps of the last place, ties to even. One too many carries into the exponent field by itself.
    const int steps = int(std::nearbyint(std::ldexp(magnitude, fraction_bits - exponent)));
    const int field = steps < one ? steps : ((exponent + bias()) << fraction_bits) + (steps - one);
    return uint16_t(sign | (field < top ? field : top));
  }
};
constexpr small_format float16_format{5, 10}, bfloat16_format{8, 7};

inline exact read_number(element type, const char* from) {
  if (type == element::float64) {
    double x;
    std::memcpy(&x, from, sizeof x);
    return x;
  }
  if (type == element::float32) {
    float x;
    std::memcpy(&x, from, sizeof x);
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return (type == element::float16 ? float16_format : bfloat16_format).decode(bits);
}

inline void write_number(element type, exact x, char* to) {
  if (type == element::float64) {
    const double y = double(x);
    std::memcpy(to, &y, sizeof y);
  } else if (type == element::float32) {
    const float y = float(x);
    std::memcpy(to, &y, sizeof y);
  } else {
    const uint16_t bits = (type == element::float16 ? float16_format : bfloat16_format).encode(x);
    std::memcpy(to, &bits, sizeof bits);
  }
}

inline const char* element_name(element type) {
  const char* const names[] = {"float32", "float64", "float16", "bfloat16"};
  return names[int(type)];
}

}  // namespace fuzz
