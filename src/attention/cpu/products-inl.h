// The two inner loops on SIMD registers. Included once a SIMD target (Highway's scheme for -inl headers).
//
// Both see memory as 32-bit words: a float, or two bf16. An accumulator takes its words one after the other
// in a fixed order, and each pair of rows and keys, or of rows and columns, has its own. So no result depends
// on what is computed beside it.
#if defined(KDTREE_ATTENTION_CPU_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDTREE_ATTENTION_CPU_PRODUCTS_INL_H_
#undef KDTREE_ATTENTION_CPU_PRODUCTS_INL_H_
#else
#define KDTREE_ATTENTION_CPU_PRODUCTS_INL_H_
#endif

#include <cstdint>

#include <hwy/highway.h>

#include "core/simd-inl.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace kdtree {
namespace HWY_NAMESPACE {

// Register tiles: the accumulators and operands must fit the 16 or 32 vector registers there are, and the row
// pointers of dot_tile the 16 general ones (8 rows x 3 keys ran at half the speed of 4 x 6).
constexpr int64_t kDotRows = 4;
constexpr int64_t kDotKeys = kManyRegisters ? 6 : 3;
constexpr int64_t kSumRows = kManyRegisters ? 8 : 4;
constexpr int64_t kSumVectors = 3;

// to[k * to_stride + r] = dot(query row r, key k) for kDotRows rows and kDotKeys keys.
template <class Products>
HWY_INLINE void dot_tile(const float* const* query, const float* const* keys, int64_t words, float* to,
                         int64_t to_stride) {
  const Floats d;
  Vector sums[kDotKeys * kDotRows];
  unroll<kDotKeys * kDotRows>([&](auto i) KDTREE_INLINE { sums[i] = hn::Zero(d); });
  const auto step = [&](const auto& load) KDTREE_INLINE {
    Vector key[kDotKeys];
    unroll<kDotKeys>([&](auto k) KDTREE_INLINE { key[k] = load(keys[k]); });
    unroll<kDotRows>([&](auto r) KDTREE_INLINE {
      const Vector q = load(query[r]);
      unroll<kDotKeys>([&](auto k) KDTREE_INLINE {
        Vector& sum = sums[k * kDotRows + r];
        sum = Products::multiply_add(q, key[k], sum);
      });
    });
  };
  int64_t w = 0;
  for (; w + kLanes <= words; w += kLanes) {
    step([&](const float* row) KDTREE_INLINE { return hn::LoadU(d, row + w); });
  }
  if (w < words) {
    const auto mask = hn::FirstN(d, static_cast<size_t>(words - w));
    step([&](const float* row) KDTREE_INLINE { return hn::MaskedLoad(mask, d, row + w); });
  }
  const hn::FixedTag<float, 4> quad;
  unroll<kDotKeys>([&](auto k) KDTREE_INLINE {
    hn::StoreU(sums_of_lanes(&sums[k * kDotRows]), quad, to + static_cast<int64_t>(k) * to_stride);
  });
}

// out[r][c] = sum over i of weights[i * weight_stride + r] * values[i][c], in the order of i, for kSumRows
// rows and kVectors vectors of columns; or, kAdd, the same behind what is there.
template <class Products, size_t kVectors, bool kAdd>
HWY_INLINE void accumulate_tile(const float* weights, int64_t weight_stride, const float* const* values,
                                int64_t count, float* const* out, int64_t column) {
  const Floats d;
  Vector sums[kSumRows * kVectors];
  unroll<kSumRows>([&](auto r) KDTREE_INLINE {
    unroll<kVectors>([&](auto v) KDTREE_INLINE {
      sums[r * kVectors + v] =
          kAdd ? hn::LoadU(d, out[r] + column + static_cast<int64_t>(v) * kLanes) : hn::Zero(d);
    });
  });
  for (int64_t i = 0; i < count; ++i) {
    Vector value[kVectors];
    unroll<kVectors>([&](auto v) KDTREE_INLINE {
      value[v] = hn::LoadU(d, values[i] + column + static_cast<int64_t>(v) * kLanes);
    });
    unroll<kSumRows>([&](auto r) KDTREE_INLINE {
      const Vector weight = hn::Set(d, weights[i * weight_stride + static_cast<int64_t>(r)]);
      unroll<kVectors>([&](auto v) KDTREE_INLINE {
        Vector& sum = sums[r * kVectors + v];
        sum = Products::multiply_add(weight, value[v], sum);
      });
    });
  }
  unroll<kSumRows>([&](auto r) KDTREE_INLINE {
    unroll<kVectors>([&](auto v) KDTREE_INLINE {
      hn::StoreU(sums[r * kVectors + v], d, out[r] + column + static_cast<int64_t>(v) * kLanes);
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace kdtree
HWY_AFTER_NAMESPACE();
#endif

#endif
