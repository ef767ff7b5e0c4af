// Random numbers that are the same on every platform: std::mt19937_64 and exact arithmetic only.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace kdtree {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  // 0 .. bound - 1; the modulo's bias is below 2^-32 for the bounds used here.
  int64_t below(int64_t bound) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(bound)); }
  // [0, 1), 53 bits.
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  // Mean 0, variance 1: the sum of twelve uniforms (no libm, whose last bits differ between systems).
  double normal() {
    double sum = -6.0;
    for (int i = 0; i < 12; ++i)
      sum += uniform();
    return sum;
  }
  template <class T>
  void shuffle(std::span<T> values) {
    for (size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1], values[static_cast<size_t>(below(static_cast<int64_t>(i)))]);
    }
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace kdtree
