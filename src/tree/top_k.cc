#include "tree/top_k.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

// Compiled once a SIMD target and chosen at run time (Highway).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tree/top_k.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kdtree {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// bf16 logits are handled as their bit patterns.
template <class D>
hn::Vec<D> load(D d, const float* from) {
  return hn::LoadU(d, from);
}
template <class D>
hn::Vec<D> load(D d, const uint16_t* from) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, from))));
}
inline float to_float(float x) {
  return x;
}
inline float to_float(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

// Ascending keys are best first: larger logit, then smaller token. Adding 0 makes -0 equal to +0.
inline uint64_t make_key(float logit, int32_t token) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);
  const uint32_t ascending = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return (uint64_t{~ascending} << 32) | static_cast<uint32_t>(token);
}
inline float key_logit(uint64_t key) {
  const uint32_t ascending = ~static_cast<uint32_t>(key >> 32);
  return std::bit_cast<float>((ascending >> 31) != 0 ? ascending & 0x7fffffffu : ~ascending);
}

// Keeps the best k keys of a stream of candidates.
class Selection {
 public:
  Selection(std::span<uint64_t> keys, int32_t k) : keys_(keys), k_(static_cast<size_t>(k)) {}

  float threshold() const { return threshold_; }
  // `logit` > threshold(). Tokens come in ascending order, so a later equal never beats an earlier one.
  void push(float logit, int32_t token) {
    keys_[count_++] = make_key(logit, token);
    if (count_ == keys_.size()) shrink();
  }
  // Sorts and returns the best, at most k.
  std::span<uint64_t> finish() {
    if (count_ > k_) shrink();
    std::sort(keys_.begin(), keys_.begin() + static_cast<ptrdiff_t>(count_));
    return keys_.first(count_);
  }

 private:
  void shrink() {
    const auto kth = keys_.begin() + static_cast<ptrdiff_t>(k_) - 1;
    std::nth_element(keys_.begin(), kth, keys_.begin() + static_cast<ptrdiff_t>(count_));
    count_ = k_;
    threshold_ = key_logit(*kth);
  }

  std::span<uint64_t> keys_;
  size_t k_;
  size_t count_ = 0;
  float threshold_ = -std::numeric_limits<float>::infinity();  // strictly greater: -inf is never chosen
};

// One pass: collects the candidates and returns false if some logit is NaN or +inf.
template <class T>
bool select_row(const T* logits, int32_t vocab, Selection& selection) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const auto largest = hn::Set(d, std::numeric_limits<float>::max());
  auto finite = hn::Eq(largest, largest);
  auto threshold = hn::Set(d, selection.threshold());
  const auto push_vector = [&](int32_t from) {
    for (int32_t i = from; i < from + lanes; ++i) {
      const float logit = to_float(logits[i]);
      if (logit > selection.threshold()) selection.push(logit, i);
    }
  };
  constexpr int32_t kUnroll = 4;
  int32_t i = 0;
  for (; i <= vocab - kUnroll * lanes; i += kUnroll * lanes) {
    const auto v0 = load(d, logits + i);
    const auto v1 = load(d, logits + i + lanes);
    const auto v2 = load(d, logits + i + 2 * lanes);
    const auto v3 = load(d, logits + i + 3 * lanes);
    // A comparison with NaN is false.
    finite = hn::And(hn::And(finite, hn::And(hn::Le(v0, largest), hn::Le(v1, largest))),
                     hn::And(hn::Le(v2, largest), hn::Le(v3, largest)));
    const auto above = hn::Or(hn::Or(hn::Gt(v0, threshold), hn::Gt(v1, threshold)),
                              hn::Or(hn::Gt(v2, threshold), hn::Gt(v3, threshold)));
    if (HWY_LIKELY(hn::AllFalse(d, above))) continue;
    if (!hn::AllFalse(d, hn::Gt(v0, threshold))) push_vector(i);
    if (!hn::AllFalse(d, hn::Gt(v1, threshold))) push_vector(i + lanes);
    if (!hn::AllFalse(d, hn::Gt(v2, threshold))) push_vector(i + 2 * lanes);
    if (!hn::AllFalse(d, hn::Gt(v3, threshold))) push_vector(i + 3 * lanes);
    threshold = hn::Set(d, selection.threshold());
  }
  bool good = hn::AllTrue(d, finite);
  for (; i < vocab; ++i) {
    const float logit = to_float(logits[i]);
    good = good && logit <= std::numeric_limits<float>::max();
    if (logit > selection.threshold()) selection.push(logit, i);
  }
  return good;
}

// exp(x) for x <= 0, relative error under 2e-7; 0 below -87. Cephes' expf coefficients; multiplications and
// additions stay apart so that every target rounds alike.
template <class D>
hn::Vec<D> exp_nonpositive(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> di;
  const auto low = hn::Set(d, -87.0f);
  const auto clamped = hn::Max(x, low);
  const auto n = hn::Round(hn::Mul(clamped, hn::Set(d, 1.44269504088896341f)));
  auto r = hn::Sub(clamped, hn::Mul(n, hn::Set(d, 0.693359375f)));
  r = hn::Sub(r, hn::Mul(n, hn::Set(d, -2.12194440e-4f)));
  auto y = hn::Set(d, 1.9875691500e-4f);
  for (const float c :
       {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
    y = hn::Add(hn::Mul(y, r), hn::Set(d, c));
  }
  y = hn::Add(hn::Add(hn::Mul(hn::Mul(y, r), r), r), hn::Set(d, 1.0f));
  const auto power = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  return hn::IfThenElseZero(hn::Ge(x, low), hn::Mul(y, hn::BitCast(d, power)));
}

// ln sum exp(logits - most), with `most` their maximum. Sixteen double sums, element i in sum i % 16 whatever
// the vector length, so that the result does not depend on the target.
template <class T>
double log_sum_exp_below(const T* logits, int32_t vocab, float most) {
  constexpr int32_t kLanes = 16;
  const hn::CappedTag<float, kLanes> d32;
  const hn::CappedTag<double, kLanes / 2> d64;
  const hn::Rebind<float, decltype(d64)> d32_of_64;
  const auto floats = static_cast<int32_t>(hn::Lanes(d32));
  const auto doubles = static_cast<int32_t>(hn::Lanes(d64));
  alignas(64) double sums[kLanes] = {};
  alignas(64) float terms[kLanes];
  alignas(64) T tail[kLanes];
  const auto maximum = hn::Set(d32, most);
  const auto add_block = [&](const T* block) {
    for (int32_t lane = 0; lane < kLanes; lane += floats) {
      hn::Store(exp_nonpositive(d32, hn::Sub(load(d32, block + lane), maximum)), d32, terms + lane);
    }
    for (int32_t lane = 0; lane < kLanes; lane += doubles) {
      const auto wide = hn::PromoteTo(d64, hn::Load(d32_of_64, terms + lane));
      hn::Store(hn::Add(hn::Load(d64, sums + lane), wide), d64, sums + lane);
    }
  };
  int32_t i = 0;
  for (; i <= vocab - kLanes; i += kLanes)
    add_block(logits + i);
  if (i < vocab) {
    const T minus_infinity =
        sizeof(T) == 2 ? static_cast<T>(0xff80u) : static_cast<T>(-std::numeric_limits<float>::infinity());
    std::fill_n(tail, kLanes, minus_infinity);
    std::copy(logits + i, logits + vocab, tail);
    add_block(tail);
  }
  double total = 0.0;
  for (const double sum : sums)
    total += sum;
  return std::log(total);
}

// Returns the number of tokens chosen, or -1 where a logit is NaN or +inf.
template <class T>
int32_t top_k_of(const T* logits, int32_t vocab, int32_t k, std::span<uint64_t> keys, int32_t* tokens,
                 float* log_probs) {
  Selection selection(keys, k);
  if (!select_row(logits, vocab, selection)) return -1;
  const auto best = selection.finish();
  for (size_t i = 0; i < best.size(); ++i)
    tokens[i] = static_cast<int32_t>(best[i] & 0xffffffffu);
  if (log_probs == nullptr || best.empty()) return static_cast<int32_t>(best.size());
  // The maximum first: subtracting it is exact where the two are close, and the sum of both may not be.
  const float most = key_logit(best.front());
  const double log_sum = log_sum_exp_below(logits, vocab, most);
  for (size_t i = 0; i < best.size(); ++i) {
    log_probs[i] = static_cast<float>(double{key_logit(best[i])} - double{most} - log_sum);
  }
  return static_cast<int32_t>(best.size());
}

int32_t top_k_f32(const float* logits, int32_t vocab, int32_t k, std::span<uint64_t> keys, int32_t* tokens,
                  float* log_probs) {
  return top_k_of(logits, vocab, k, keys, tokens, log_probs);
}
int32_t top_k_bf16(const uint16_t* logits, int32_t vocab, int32_t k, std::span<uint64_t> keys,
                   int32_t* tokens, float* log_probs) {
  return top_k_of(logits, vocab, k, keys, tokens, log_probs);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kdtree
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kdtree {
namespace {

HWY_EXPORT(top_k_f32);
HWY_EXPORT(top_k_bf16);

// Room for the k best and as many newcomers before the next cut.
int64_t selection_capacity(int32_t k) {
  return 2 * int64_t{k} + 64;
}

}  // namespace

void top_k_scratch(int32_t k, Scratch& scratch) {
  (void)scratch.take<uint64_t>(selection_capacity(k));
}

Status top_k_row(const void* logits, DType dtype, int32_t vocab, std::span<int32_t> tokens,
                 std::span<float> log_probs, Scratch& scratch) {
  const auto k = static_cast<int32_t>(tokens.size());
  const auto keys = scratch.take<uint64_t>(selection_capacity(k));
  KDTREE_RETURN_IF_ERROR(scratch.check());
  const int32_t chosen = dtype == DType::bf16
                             ? HWY_DYNAMIC_DISPATCH(top_k_bf16)(static_cast<const uint16_t*>(logits), vocab,
                                                                k, keys, tokens.data(), log_probs.data())
                             : HWY_DYNAMIC_DISPATCH(top_k_f32)(static_cast<const float*>(logits), vocab, k,
                                                               keys, tokens.data(), log_probs.data());
  if (chosen < 0) {
    int32_t token = 0;
    while (load_element(logits, dtype, token) <= std::numeric_limits<float>::max())
      ++token;
    return fail(KDTREE_NOT_A_NUMBER, "logits: token {} is {}, expected a number or -inf", token,
                load_element(logits, dtype, token));
  }
  std::fill(tokens.begin() + chosen, tokens.end(), -1);
  if (!log_probs.empty()) {
    std::fill(log_probs.begin() + chosen, log_probs.end(), -std::numeric_limits<float>::infinity());
  }
  return {};
}

}  // namespace kdtree
#endif  // HWY_ONCE
