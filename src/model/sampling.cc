#include "model/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

// Compiled once a SIMD target and chosen at run time (Highway).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/sampling.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kdtree {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// The maximum of each block of `block` logits, a multiple of 16; the last block may be shorter. Returns false
// if some logit is NaN or +inf; the maxima are then of no use.
bool block_maxima(const float* logits, size_t count, size_t block, float* maxima) {
  const hn::CappedTag<float, 16> d;
  const auto largest = hn::Set(d, std::numeric_limits<float>::max());
  auto finite = hn::Eq(largest, largest);
  const size_t whole = count / block;
  for (size_t b = 0; b < whole; ++b) {
    const float* row = logits + b * block;
    auto most = hn::LoadU(d, row);
    for (size_t i = 0; i < block; i += hn::Lanes(d)) {
      const auto v = hn::LoadU(d, row + i);
      finite = hn::And(finite, hn::Le(v, largest));  // a comparison with NaN is false
      most = hn::Max(most, v);
    }
    maxima[b] = hn::GetLane(hn::MaxOfLanes(d, most));
  }
  bool good = hn::AllTrue(d, finite);
  if (whole * block == count) return good;
  float most = -std::numeric_limits<float>::infinity();
  for (size_t i = whole * block; i < count; ++i) {
    good = good && logits[i] <= std::numeric_limits<float>::max();
    most = std::max(most, logits[i]);
  }
  maxima[whole] = most;
  return good;
}

// 1 / 13!, 1 / 12!, ..., 1 / 0!
constexpr int kTerms = 14;
constexpr double kInverseFactorials[kTerms] = {
    1 / 6227020800.0, 1 / 479001600.0, 1 / 39916800.0, 1 / 3628800.0, 1 / 362880.0, 1 / 40320.0, 1 / 5040.0,
    1 / 720.0,        1 / 120.0,       1 / 24.0,       1 / 6.0,       1 / 2.0,      1,           1};

// exp(x) for x <= 0, relative error under 1e-15; 0 below -708. The Taylor series after
// range reduction; multiplications and additions stay apart so that every target rounds alike.
template <class D>
hn::Vec<D> exp_nonpositive(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> di;
  const auto low = hn::Set(d, -708.0);
  const auto clamped = hn::Max(x, low);
  // Adding 1.5 * 2^52 rounds to an integer, which then stands in the low bits.
  const auto magic = hn::Set(d, 0x1.8p52);
  const auto shifted = hn::Add(hn::Mul(clamped, hn::Set(d, 1.4426950408889634)), magic);
  const auto n = hn::Sub(shifted, magic);
  // ln 2 in two parts (fdlibm's): n times the first is exact.
  auto r = hn::Sub(clamped, hn::Mul(n, hn::Set(d, 0x1.62e42feep-1)));
  r = hn::Sub(r, hn::Mul(n, hn::Set(d, 0x1.a39ef35793c76p-33)));
  // Odd and even powers apart: two short chains of additions instead of a long one.
  const auto square = hn::Mul(r, r);
  auto odd = hn::Set(d, kInverseFactorials[0]);
  auto even = hn::Set(d, kInverseFactorials[1]);
  for (int i = 2; i < kTerms; i += 2) {
    odd = hn::Add(hn::Mul(odd, square), hn::Set(d, kInverseFactorials[i]));
    even = hn::Add(hn::Mul(even, square), hn::Set(d, kInverseFactorials[i + 1]));
  }
  const auto y = hn::Add(hn::Mul(odd, r), even);
  const auto power = hn::ShiftLeft<52>(hn::Add(hn::BitCast(di, shifted), hn::Set(di, 1023)));
  return hn::IfThenElseZero(hn::Ge(x, low), hn::Mul(y, hn::BitCast(d, power)));
}

// values[i] = exp(values[i] / divisor); `count` is a multiple of 8.
void exp_of_quotients(double* values, size_t count, double divisor) {
  const hn::CappedTag<double, 8> d;
  const auto by = hn::Set(d, divisor);
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::StoreU(exp_nonpositive(d, hn::Div(hn::LoadU(d, values + i), by)), d, values + i);
  }
}

// The sum of exp((logit - most) / divisor) over each block of `block` logits, as block_maxima() takes them. A
// block's element i is in sum i % 8 whatever the vector length, so that the result does not depend on the
// target.
void block_sums(const float* logits, size_t count, size_t block, float most, double divisor, double* sums) {
  constexpr size_t kLanes = 8;
  const hn::CappedTag<double, kLanes> d;
  const hn::Rebind<float, decltype(d)> d32;
  const auto largest = hn::Set(d, double{most});
  const auto by = hn::Set(d, divisor);
  alignas(64) double lanes[kLanes];
  alignas(64) float tail[kLanes];
  const auto add = [&](const float* from) {
    for (size_t lane = 0; lane < kLanes; lane += hn::Lanes(d)) {
      const auto below = hn::Sub(hn::PromoteTo(d, hn::LoadU(d32, from + lane)), largest);
      const auto weight = exp_nonpositive(d, hn::Div(below, by));
      hn::Store(hn::Add(hn::Load(d, lanes + lane), weight), d, lanes + lane);
    }
  };
  for (size_t begin = 0; begin < count; begin += block) {
    const size_t end = std::min(count, begin + block);
    std::fill_n(lanes, kLanes, 0.0);
    size_t i = begin;
    for (; i + kLanes <= end; i += kLanes)
      add(logits + i);
    if (i < end) {
      std::fill_n(tail, kLanes, -std::numeric_limits<float>::infinity());
      std::copy(logits + i, logits + end, tail);
      add(tail);
    }
    sums[begin / block] = std::accumulate(lanes, lanes + kLanes, 0.0);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kdtree
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kdtree {
namespace {

HWY_EXPORT(block_maxima);
HWY_EXPORT(exp_of_quotients);
HWY_EXPORT(block_sums);

constexpr float kLargest = std::numeric_limits<float>::max();
// Logits a block: where few tokens can be chosen, most blocks are passed over by their maximum.
constexpr size_t kBlock = 128;
constexpr size_t kExpMultiple = 8;  // of the counts that exp_of_quotients() takes
constexpr size_t kBuckets = 2048;

// Ascending ranks are descending logits: the bits of a negative number as they are, those of others inverted
// but for the sign. Adding 0 makes -0 equal to +0. No branch: signs are as good as random.
uint32_t rank_of(float logit) {
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);
  return bits ^ (((bits >> 31) - 1) & 0x7fffffffu);
}

// The tokens of a row that are still in the draw, in ascending order, each with its weight: its probability
// over the largest one. Expects the block maxima of the scratch; `most` is the largest of them.
class Candidates {
 public:
  Candidates(std::span<const float> logits, float most, double temperature, SamplingScratch& scratch)
      : logits_(logits), most_(most), temperature_(temperature), scratch_(scratch) {}

  // The sum of the weights of all tokens of the row.
  double mass_of_all();
  // Adds those tokens of the blocks from `first` to `last` - 1 whose logit is at least `floor`, a finite
  // number.
  void gather(float floor, size_t first, size_t last);
  double mass() const;

  void keep_top_k(int32_t k);
  // Keeps the best, the fewest that have `mass`; all if they have less.
  void keep_top_mass(double mass);
  void keep_min_p(double p);

  // The token at which the sum of weights goes beyond `target`.
  int32_t draw(double target) const;
  // A draw from all tokens without looking at all of them twice. Calls gather().
  int32_t draw_from_all(double uniform);

 private:
  uint32_t rank(size_t i) const { return rank_of(logits_[static_cast<size_t>(scratch_.tokens[i])]); }
  // Keeps the best, the fewest whose measures sum to at least `target` > 0; all if they sum to less.
  template <class Measure>
  void keep_best(double target, const Measure& measure);
  template <class Predicate>
  void keep_if(const Predicate& predicate);

  std::span<const float> logits_;
  float most_;
  double temperature_;
  SamplingScratch& scratch_;
  size_t count_ = 0;  // of the scratch's tokens and weights
};

double Candidates::mass_of_all() {
  auto& sums = scratch_.block_sums;
  sums.resize(scratch_.block_max.size());
  HWY_DYNAMIC_DISPATCH(block_sums)(logits_.data(), logits_.size(), kBlock, most_, temperature_, sums.data());
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

void Candidates::gather(float floor, size_t first, size_t last) {
  // Each candidate is written before it is known whether it stays: there must be room for one more than all.
  const size_t room = logits_.size() + kExpMultiple;
  if (scratch_.tokens.size() < room) scratch_.tokens.resize(room);
  if (scratch_.weights.size() < room) scratch_.weights.resize(room);
  int32_t* tokens = scratch_.tokens.data();
  double* weights = scratch_.weights.data();
  for (size_t block = first; block < last; ++block) {
    if (scratch_.block_max[block] < floor) continue;
    const size_t end = std::min(logits_.size(), (block + 1) * kBlock);
    for (size_t i = block * kBlock; i < end; ++i) {
      tokens[count_] = static_cast<int32_t>(i);
      weights[count_] = static_cast<double>(logits_[i]) - most_;
      count_ += logits_[i] >= floor ? 1 : 0;
    }
  }
  const size_t padded = (count_ + kExpMultiple - 1) / kExpMultiple * kExpMultiple;
  std::fill(weights + count_, weights + padded, 0.0);
  HWY_DYNAMIC_DISPATCH(exp_of_quotients)(weights, padded, temperature_);
}

double Candidates::mass() const {
  return std::accumulate(scratch_.weights.begin(), scratch_.weights.begin() + static_cast<ptrdiff_t>(count_),
                         0.0);
}

template <class Predicate>
void Candidates::keep_if(const Predicate& predicate) {
  size_t kept = 0;
  for (size_t i = 0; i < count_; ++i) {
    if (!predicate(i)) continue;
    scratch_.tokens[kept] = scratch_.tokens[i];
    scratch_.weights[kept] = scratch_.weights[i];
    ++kept;
  }
  count_ = kept;
}

// Finds the rank of the last one to keep, 11, 11 and 10 bits at a time: a radix sort that follows only the
// bucket in which the sum reaches the target. So the time is linear whatever the logits.
template <class Measure>
void Candidates::keep_best(double target, const Measure& measure) {
  auto& histogram = scratch_.histogram;
  uint32_t last = 0;  // the bits found so far
  double before = 0;  // sum of the measures of those that are better
  for (const auto& [shift, bits] : {std::pair{21, 11}, std::pair{10, 11}, std::pair{0, 10}}) {
    histogram.assign(kBuckets, 0.0);
    for (size_t i = 0; i < count_; ++i) {
      const uint64_t above = rank(i) - uint64_t{last};  // wraps to a large number for rank(i) < last
      if (above >> (shift + bits) == 0) histogram[above >> shift] += measure(i);
    }
    uint32_t bucket = 0;
    double sum = before;
    for (uint32_t b = 0; b < kBuckets && sum < target; ++b) {
      if (histogram[b] == 0) continue;
      bucket = b;
      before = sum;
      sum += histogram[b];
    }
    last |= bucket << shift;
  }
  keep_if([&](size_t i) {
    const uint32_t own = rank(i);
    if (own != last) return own < last;
    if (before >= target) return false;
    before += measure(i);
    return true;
  });
}

void Candidates::keep_top_k(int32_t k) {
  if (count_ > static_cast<size_t>(k)) keep_best(k, [](size_t) { return 1.0; });
}

void Candidates::keep_top_mass(double mass) {
  keep_best(mass, [this](size_t i) { return scratch_.weights[i]; });
}

void Candidates::keep_min_p(double p) {
  keep_if([this, p](size_t i) { return scratch_.weights[i] >= p; });
}

int32_t Candidates::draw(double target) const {
  size_t last = 0;  // with a weight; the answer where rounding keeps the sum from going beyond the target
  double sum = 0;
  for (size_t i = 0; i < count_; ++i) {
    if (scratch_.weights[i] == 0) continue;
    last = i;
    sum += scratch_.weights[i];
    if (sum > target) break;
  }
  return scratch_.tokens[last];
}

// The product is below the sum for every uniform < 1, so that one of the blocks goes beyond it.
int32_t Candidates::draw_from_all(double uniform) {
  const double target = uniform * mass_of_all();
  size_t block = 0;
  double before = 0;
  while (before + scratch_.block_sums[block] <= target)
    before += scratch_.block_sums[block++];
  gather(-kLargest, block, block + 1);
  return draw(target - before);
}

// A logit below which no token is kept, so that the others need not be looked at. `mass` is that of all
// tokens if top_p is to be applied to all. Logarithms are lowered a little, against rounding.
float lowest_kept(const SamplingParams& params, float most, double mass, SamplingScratch& scratch) {
  float floor = -kLargest;
  const auto raise = [&](double log_weight) {
    const double bound = double{most} + params.temperature * (log_weight - 0.01);
    floor = std::max(floor, static_cast<float>(std::max(bound, -double{kLargest})));
  };
  // top_k: k blocks have a token of at least the k-th largest maximum.
  const auto& maxima = scratch.block_max;
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) <= maxima.size()) {
    scratch.selection.assign(maxima.begin(), maxima.end());
    const auto kth = scratch.selection.begin() + (params.top_k - 1);
    std::nth_element(scratch.selection.begin(), kth, scratch.selection.end(), std::greater<>());
    floor = std::max(floor, *kth);
  }
  // top_p: all tokens below this bound together have less than 1 - top_p.
  if (mass > 0)
    raise(std::log((1 - params.top_p) * mass / static_cast<double>(scratch.block_max.size() * kBlock)));
  // min_p: unless top_p first sums up what top_k left.
  if (params.min_p > 0 && (mass > 0 || params.top_p == 1)) raise(std::log(params.min_p));
  return floor;
}

int32_t draw_filtered(Candidates& candidates, const SamplingParams& params, float most, double uniform,
                      SamplingScratch& scratch) {
  const bool by_k = params.top_k > 0;
  const bool by_p = params.top_p < 1;
  const double mass_of_all = by_p && !by_k ? candidates.mass_of_all() : 0;
  candidates.gather(lowest_kept(params, most, mass_of_all, scratch), 0, scratch.block_max.size());
  if (by_k) candidates.keep_top_k(params.top_k);
  if (by_p) candidates.keep_top_mass(params.top_p * (by_k ? candidates.mass() : mass_of_all));
  if (params.min_p > 0) candidates.keep_min_p(params.min_p);
  return candidates.draw(uniform * candidates.mass());
}

int32_t first_largest(std::span<const float> logits, const std::vector<float>& block_max) {
  const auto best = std::max_element(block_max.begin(), block_max.end());
  auto token = static_cast<size_t>(best - block_max.begin()) * kBlock;
  while (logits[token] != *best)
    ++token;
  return static_cast<int32_t>(token);
}

tl::unexpected<Error> not_a_number(std::span<const float> logits) {
  size_t token = 0;
  while (logits[token] <= kLargest)
    ++token;
  return fail(KDTREE_NOT_A_NUMBER, "logits: token {} is {}, expected a number or -inf", token, logits[token]);
}

}  // namespace

Status validate(const SamplingParams& params) {
  if (!(params.temperature >= 0 && std::isfinite(params.temperature))) {
    return fail(KDTREE_INVALID_ARGUMENT, "temperature is {}, expected a number of at least 0",
                params.temperature);
  }
  if (!(params.top_p > 0 && params.top_p <= 1)) {
    return fail(KDTREE_INVALID_ARGUMENT, "top_p is {}, expected a number above 0 and at most 1",
                params.top_p);
  }
  if (params.top_k < 0) {
    return fail(KDTREE_INVALID_ARGUMENT, "top_k is {}, expected at least 0 (0 = all)", params.top_k);
  }
  if (!(params.min_p >= 0 && params.min_p <= 1)) {
    return fail(KDTREE_INVALID_ARGUMENT, "min_p is {}, expected a number from 0 to 1", params.min_p);
  }
  return {};
}

Result<int32_t> sample_token(std::span<const float> logits, const SamplingParams& params, uint64_t request,
                             uint64_t position, SamplingScratch& scratch) {
  KDTREE_RETURN_IF_ERROR(validate(params));
  if (logits.empty() || logits.size() > size_t{std::numeric_limits<int32_t>::max()}) {
    return fail(KDTREE_INVALID_ARGUMENT, "logits has {} tokens, expected 1 to 2^31 - 1", logits.size());
  }
  scratch.block_max.resize((logits.size() + kBlock - 1) / kBlock);
  if (!HWY_DYNAMIC_DISPATCH(block_maxima)(logits.data(), logits.size(), kBlock, scratch.block_max.data())) {
    return not_a_number(logits);
  }
  const int32_t best = first_largest(logits, scratch.block_max);
  const float most = logits[static_cast<size_t>(best)];
  if (most < -kLargest) {
    return fail(KDTREE_NOT_A_NUMBER, "logits: all {} are -inf, expected at least one number", logits.size());
  }
  if (params.temperature == 0) return best;

  const double uniform = sampling_uniform(params.seed, request, position);
  Candidates candidates(logits, most, params.temperature, scratch);
  if (params.top_k == 0 && params.top_p == 1 && params.min_p == 0) return candidates.draw_from_all(uniform);
  return draw_filtered(candidates, params, most, uniform, scratch);
}

double sampling_uniform(uint64_t seed, uint64_t request, uint64_t position) {
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
  const auto words =
      philox4x32({low(position), high(position), low(request), high(request)}, {low(seed), high(seed)});
  const uint64_t bits = uint64_t{words[1]} << 32 | words[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t first = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t second = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(second),
               static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(first)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

}  // namespace kdtree
#endif  // HWY_ONCE
