// Dropout as a function of (seed, row, key) alone: any block, any thread, forward and backward drop the same pairs. The float64
// reference has the same arithmetic.

namespace rootdk::ROOTDK_TARGET {

ROOTDK_INLINE uint64_t mix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

// factors[key][lane]: 0 where the pair is dropped, 1/(1 - p) where it is kept.
template <typename real>
inline void dropout_factors(const attention_problem& problem, const panel<real>& p, int64_t start, int64_t keys,
                            real* factors) {
  constexpr int lanes = panel_lanes<real>;
  uint32_t low[lanes] = {}, high[lanes] = {};
  const uint64_t stream = mix64(problem.seed);
  for (int lane = 0; lane < p.live; ++lane) {
    const uint64_t z = mix64(stream + uint64_t(p.flat + lane + 1) * 0x9E3779B97F4A7C15ULL);
    low[lane] = uint32_t(z), high[lane] = uint32_t(z >> 32);
  }
  const double edge = problem.dropout * 4294967296.0 + 0.5;
  const uint32_t threshold = edge >= 4294967295.0 ? 0xffffffffu : uint32_t(edge);
  const real kept = real(1.0 / (1.0 - problem.dropout));
  for (int64_t key = 0; key < keys; ++key) {
    const uint32_t spread = uint32_t(start + key) * 0x9E3779B1u;
    for (int lane = 0; lane < lanes; ++lane) {
      uint32_t x = spread ^ low[lane];
      x = (x ^ (x >> 16)) * 0x7feb352du;
      x = (x ^ (x >> 15)) + high[lane];
      x *= 0x846ca68bu;
      x ^= x >> 16;
      factors[key * lanes + lane] = x < threshold ? real(0) : kept;
    }
  }
}

}  // namespace rootdk::ROOTDK_TARGET
