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
using Words = hn::RebindToUnsigned<Floats>;
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

// The upper half of each word: its float rounded to bf16, to nearest even.
HWY_INLINE hn::Vec<Words> round_to_bf16(Vector v) {
  const Words d;
  const auto bits = hn::BitCast(d, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d, 0x7fff)));
  // Adding could turn a NaN into something else.
  return hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(v)), hn::Or(bits, hn::Set(d, 0x400000)), rounded);
}
HWY_INLINE void store_bf16(Vector v, uint16_t* to) {
  const hn::Rebind<uint16_t, Floats> d16;
  const auto bits = hn::BitCast(hn::RebindToSigned<Floats>(), hn::ShiftRight<16>(round_to_bf16(v)));
  hn::StoreU(hn::DemoteTo(d16, bits), d16, to);
}

// What a lane's 32-bit word holds, and how two words are multiplied: a float, or a pair of bf16.
struct F32Products {
  static constexpr int64_t kPerWord = 1;
  static HWY_INLINE Vector multiply_add(Vector a, Vector b, Vector sum) { return hn::MulAdd(a, b, sum); }
};

// Slower than fp32 products: so that everything runs, and is tested, on any machine.
struct EmulatedBf16Products {
  static constexpr int64_t kPerWord = 2;
  static HWY_INLINE Vector multiply_add(Vector a, Vector b, Vector sum) {
    const Words d;
    const auto even = [&](Vector v) KDTREE_INLINE {
      return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::BitCast(d, v)));
    };
    const auto odd = [&](Vector v) KDTREE_INLINE {
      return hn::BitCast(Floats(), hn::And(hn::BitCast(d, v), hn::Set(d, 0xffff0000u)));
    };
    return hn::MulAdd(odd(a), odd(b), hn::MulAdd(even(a), even(b), sum));
  }
};

#if HWY_TARGET == HWY_AVX3
// AVX-512-BF16's VDPBF16PS: exact products of bf16 pairs, summed in fp32, subnormals as zero. In assembly
// because Highway 1.0 has no such operation, and its AVX3 target does not contain the extension.
struct Bf16Products {
  static constexpr int64_t kPerWord = 2;
  static HWY_INLINE Vector multiply_add(Vector a, Vector b, Vector sum) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
    return sum;
  }
};
#else
using Bf16Products = EmulatedBf16Products;
#endif

}  // namespace HWY_NAMESPACE
}  // namespace kdtree
HWY_AFTER_NAMESPACE();
#endif

#endif
