#include "attention/cpu/verify_attn_cpu.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/host_rows.h"

namespace kdtree {
namespace {

// Lanes of a dot product; every supported row width is a multiple.
constexpr int64_t kLanes = 16;
// Positions whose terms are summed apart before they join the total: the error of a sum over L keys then
// grows with kBlock + L / kBlock instead of L.
constexpr int64_t kBlock = 64;

struct Buffers {
  TreeBuffers tree;
  std::span<float> query;    // [H, D]
  std::span<float> key;      // [D]
  std::span<float> weights;  // [H, keys] scores, then softmax numerators
  std::span<float> block;    // [H, latent] sum over a block of positions
  std::span<float> total;    // [H, latent]
  int64_t keys;

  Buffers(const VerifyProblem& p, Scratch& scratch)
      : tree(p, scratch),
        query(scratch.take<float>(p.heads * row_width(p))),
        key(scratch.take<float>(row_width(p))),
        weights(scratch.take<float>(saturating_mul(p.heads, max_keys(p)))),
        block(scratch.take<float>(int64_t{p.heads} * p.latent_dim)),
        total(scratch.take<float>(int64_t{p.heads} * p.latent_dim)),
        keys(max_keys(p)) {}
};

void load_floats(const void* from, DType dtype, int64_t offset, std::span<float> to) {
  const auto count = static_cast<int64_t>(to.size());
  if (dtype == DType::bf16) {
    const auto* bits = static_cast<const uint16_t*>(from) + offset;
    for (int64_t c = 0; c < count; ++c)
      to[static_cast<size_t>(c)] = bf16_to_float(bits[c]);
  } else if (dtype == DType::f32) {
    std::copy_n(static_cast<const float*>(from) + offset, count, to.begin());
  } else {
    for (int64_t c = 0; c < count; ++c) {
      to[static_cast<size_t>(c)] = static_cast<float>(load_element(from, dtype, offset + c));
    }
  }
}

float dot(std::span<const float> a, std::span<const float> b) {
  float lanes[kLanes] = {};
  for (size_t c = 0; c < a.size(); c += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane)
      lanes[lane] += a[c + lane] * b[c + lane];
  }
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t lane = 0; lane < half; ++lane)
      lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

class Kernel {
 public:
  Kernel(const VerifyProblem& p, const Buffers& b)
      : p_(p), b_(b), width_(static_cast<size_t>(row_width(p))), latent_(static_cast<size_t>(p.latent_dim)) {}

  void row(int64_t t, const VisibleKeys& keys) const {
    const int64_t count = keys.count();
    score_keys(t, keys);
    for (int64_t h = 0; h < p_.heads; ++h)
      softmax(t, h, count);
    std::fill(b_.total.begin(), b_.total.end(), 0.0f);
    for (int64_t begin = 0; begin < count; begin += kBlock) {
      add_values(keys, begin, std::min(begin + kBlock, count));
    }
    store_output(t);
  }

 private:
  std::span<float> head_weights(int64_t head) const {
    return b_.weights.subspan(static_cast<size_t>(head * b_.keys), static_cast<size_t>(b_.keys));
  }

  void load_key(const std::byte* row) const {
    load_floats(row, static_cast<DType>(p_.kv_dtype), 0, b_.key);
    if (const float scale = kv_scale(p_); scale != 1.0f) {
      for (float& x : b_.key)
        x *= scale;
    }
  }

  void score_keys(int64_t t, const VisibleKeys& keys) const {
    for (int64_t h = 0; h < p_.heads; ++h) {
      load_floats(p_.q, static_cast<DType>(p_.q_dtype), t * q_token_stride(p_) + h * q_head_stride(p_),
                  b_.query.subspan(static_cast<size_t>(h) * width_, width_));
    }
    for (int64_t n = 0; n < keys.count(); ++n) {
      load_key(keys.row(n));
      for (int64_t h = 0; h < p_.heads; ++h) {
        const float s = p_.scale * dot(b_.query.subspan(static_cast<size_t>(h) * width_, width_), b_.key);
        head_weights(h)[static_cast<size_t>(n)] =
            p_.logit_cap > 0.0f ? p_.logit_cap * std::tanh(s / p_.logit_cap) : s;
      }
    }
  }

  // Scores to normalised weights; writes the row's LSE.
  void softmax(int64_t t, int64_t head, int64_t count) const {
    const auto weights = head_weights(head).first(static_cast<size_t>(count));
    float most = -std::numeric_limits<float>::infinity();
    for (const float w : weights)
      most = std::max(most, w);
    float sum = 0.0f;
    for (size_t begin = 0; begin < weights.size(); begin += kBlock) {
      float block = 0.0f;
      for (float& w : weights.subspan(begin, std::min<size_t>(kBlock, weights.size() - begin))) {
        w = std::exp(w - most);
        block += w;
      }
      sum += block;
    }
    for (float& w : weights)
      w /= sum;
    if (p_.lse == nullptr) return;
    store_element(p_.lse, lse_dtype(p_), t * lse_token_stride(p_) + head * lse_head_stride(p_),
                  count > 0 ? most + std::log(sum) : -std::numeric_limits<float>::infinity());
  }

  void add_values(const VisibleKeys& keys, int64_t begin, int64_t end) const {
    std::fill(b_.block.begin(), b_.block.end(), 0.0f);
    for (int64_t n = begin; n < end; ++n) {
      load_key(keys.row(n));
      for (int64_t h = 0; h < p_.heads; ++h) {
        const float weight = head_weights(h)[static_cast<size_t>(n)];
        float* out = &b_.block[static_cast<size_t>(h) * latent_];
        for (size_t c = 0; c < latent_; ++c)
          out[c] += weight * b_.key[c];
      }
    }
    for (size_t i = 0; i < b_.total.size(); ++i)
      b_.total[i] += b_.block[i];
  }

  void store_output(int64_t t) const {
    for (int64_t h = 0; h < p_.heads; ++h) {
      const int64_t to = t * out_token_stride(p_) + h * out_head_stride(p_);
      for (size_t c = 0; c < latent_; ++c) {
        store_element(p_.out, static_cast<DType>(p_.out_dtype), to + static_cast<int64_t>(c),
                      double{b_.total[static_cast<size_t>(h) * latent_ + c]});
      }
    }
  }

  const VerifyProblem& p_;
  const Buffers& b_;
  size_t width_;
  size_t latent_;
};

}  // namespace

Status cpu_supports(const VerifyProblem& p) {
  const struct {
    const char* field;
    int32_t dtype;
  } fields[] = {{"q_dtype", p.q_dtype},
                {"kv_dtype", p.kv_dtype},
                {"out_dtype", p.out_dtype},
                {"lse_dtype", p.lse_dtype}};
  for (const auto& [field, dtype] : fields) {
    if (dtype == KDTREE_DTYPE_F64) {
      return fail(KDTREE_UNSUPPORTED, "{} is f64, expected a type the cpu backend has (f64: oracle)", field);
    }
  }
  return {};
}

void cpu_scratch(const VerifyProblem& problem, Scratch& scratch) {
  (void)Buffers(problem, scratch);
}

Status run_cpu(const VerifyProblem& problem, Scratch& scratch, const Progress& progress) {
  const Buffers buffers(problem, scratch);
  KDTREE_RETURN_IF_ERROR(scratch.check());
  const Kernel kernel(problem, buffers);
  return for_each_row(problem, buffers.tree, progress,
                      [&](int64_t t, const VisibleKeys& keys) { kernel.row(t, keys); });
}

}  // namespace kdtree
