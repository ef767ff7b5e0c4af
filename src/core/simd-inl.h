// Vectors of floats, on every SIMD target: loops over registers, sums of lanes in a fixed order, loads that
// widen. Included once a target (Highway's scheme for -inl headers).
#if defined(KDTREE_CORE_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDTREE_CORE_SIMD_INL_H_
#undef KDTREE_CORE_SIMD_INL_H_
#else
#define KDTREE_CORE_SIMD_INL_H_
#endif

#include <cstdint>
#include <utility>

#include <hwy/highway.h>

// Lambdas of the inner loops: compiled for the target, and never called.
#undef KDTREE_INLINE
#define KDTREE_INLINE HWY_ATTR __attribute__((always_inline))

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
HWY_BEFORE_NAMESPACE();
namespace kdtree {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;
using Quad = hn::Vec<hn::FixedTag<float, 4>>;

constexpr int64_t kLanes = HWY_MAX_BYTES / 4;
// Whether there are 32 vector registers, or 16.
constexpr bool kManyRegisters = HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM_A64;

template <class F, size_t... I>
HWY_INLINE void unroll(std::index_sequence<I...>, const F& f) {
  (f(std::integral_constant<size_t, I>{}), ...);
}
// f(0) ... f(kCount - 1), their arguments compile-time constants.
template <size_t kCount, class F>
HWY_INLINE void unroll(const F& f) {
  unroll(std::make_index_sequence<kCount>{}, f);
}

template <class V>
HWY_INLINE Quad fold_to_quad(V v) {
  if constexpr (sizeof(v) == 16) {
    return v;
  } else {
    const hn::DFromV<V> d;
    const hn::Half<decltype(d)> half;
    return fold_to_quad(hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// Lane i of the result: the sum of the lanes of v[i].
HWY_INLINE Quad sums_of_lanes(const Vector* v) {
  const hn::FixedTag<float, 4> d;
  const Quad a = fold_to_quad(v[0]);
  const Quad b = fold_to_quad(v[1]);
  const Quad c = fold_to_quad(v[2]);
  const Quad e = fold_to_quad(v[3]);
  const Quad ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));  // a02 b02 a13 b13
  const Quad ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  return hn::Add(hn::ConcatLowerLower(d, ce, ab), hn::ConcatUpperUpper(d, ce, ab));
}

HWY_INLINE Vector load_bf16(const uint16_t* from) {
  const hn::Rebind<uint16_t, Floats> d16;
  return hn::BitCast(Floats(),
                     hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<Floats>(), hn::LoadU(d16, from))));
}

}  // namespace HWY_NAMESPACE
}  // namespace kdtree
HWY_AFTER_NAMESPACE();
#endif

#endif
