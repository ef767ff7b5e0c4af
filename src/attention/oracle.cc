#include "attention/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/host_rows.h"

namespace kdtree {
namespace {

struct Buffers {
  TreeBuffers tree;
  std::span<double> query;    // [H, D]
  std::span<double> key;      // [D]
  std::span<double> weights;  // [H, keys] scores, then softmax numerators
  std::span<double> output;   // [H, latent]
  int64_t keys;

  Buffers(const VerifyProblem& p, Scratch& scratch)
      : tree(p, scratch),
        query(scratch.take<double>(p.heads * row_width(p))),
        key(scratch.take<double>(row_width(p))),
        weights(scratch.take<double>(saturating_mul(p.heads, max_keys(p)))),
        output(scratch.take<double>(int64_t{p.heads} * p.latent_dim)),
        keys(max_keys(p)) {}
};

class Oracle {
 public:
  Oracle(const VerifyProblem& p, const Buffers& b) : p_(p), b_(b), width_(row_width(p)) {}

  void row(int64_t t, const VisibleKeys& keys) const {
    load_query(t);
    const int64_t count = keys.count();
    for (int64_t n = 0; n < count; ++n) {
      load_key(keys.row(n));
      for (int64_t h = 0; h < p_.heads; ++h)
        weight(h, n) = score(h);
    }
    for (int64_t h = 0; h < p_.heads; ++h) {
      double most = -std::numeric_limits<double>::infinity();
      for (int64_t n = 0; n < count; ++n)
        most = std::max(most, weight(h, n));
      double sum = 0.0;
      for (int64_t n = 0; n < count; ++n)
        sum += weight(h, n) = std::exp(weight(h, n) - most);
      for (int64_t n = 0; n < count; ++n)
        weight(h, n) /= sum;
      store_lse(t, h, count > 0 ? most + std::log(sum) : -std::numeric_limits<double>::infinity());
    }
    std::fill(b_.output.begin(), b_.output.end(), 0.0);
    for (int64_t n = 0; n < count; ++n) {
      load_key(keys.row(n));
      for (int64_t h = 0; h < p_.heads; ++h) {
        double* out = &b_.output[static_cast<size_t>(h * p_.latent_dim)];
        for (int32_t c = 0; c < p_.latent_dim; ++c)
          out[c] += weight(h, n) * b_.key[static_cast<size_t>(c)];
      }
    }
    store_output(t);
  }

 private:
  double& weight(int64_t head, int64_t n) const {
    return b_.weights[static_cast<size_t>(head * b_.keys + n)];
  }

  void load_query(int64_t t) const {
    for (int64_t h = 0; h < p_.heads; ++h) {
      const int64_t from = t * q_token_stride(p_) + h * q_head_stride(p_);
      for (int64_t c = 0; c < width_; ++c) {
        b_.query[static_cast<size_t>(h * width_ + c)] =
            load_element(p_.q, static_cast<DType>(p_.q_dtype), from + c);
      }
    }
  }

  void load_key(const std::byte* row) const {
    for (int64_t c = 0; c < width_; ++c) {
      b_.key[static_cast<size_t>(c)] =
          load_element(row, static_cast<DType>(p_.kv_dtype), c) * double{kv_scale(p_)};
    }
  }

  double score(int64_t head) const {
    const double* query = &b_.query[static_cast<size_t>(head * width_)];
    double dot = 0.0;
    for (int64_t c = 0; c < width_; ++c)
      dot += query[c] * b_.key[static_cast<size_t>(c)];
    const double scaled = double{p_.scale} * dot;
    const double cap = p_.logit_cap;
    return cap > 0.0 ? cap * std::tanh(scaled / cap) : scaled;
  }

  void store_lse(int64_t t, int64_t head, double lse) const {
    if (p_.lse == nullptr) return;
    store_element(p_.lse, lse_dtype(p_), t * lse_token_stride(p_) + head * lse_head_stride(p_), lse);
  }

  void store_output(int64_t t) const {
    for (int64_t h = 0; h < p_.heads; ++h) {
      const int64_t to = t * out_token_stride(p_) + h * out_head_stride(p_);
      for (int32_t c = 0; c < p_.latent_dim; ++c) {
        store_element(p_.out, static_cast<DType>(p_.out_dtype), to + c,
                      b_.output[static_cast<size_t>(h * p_.latent_dim + c)]);
      }
    }
  }

  const VerifyProblem& p_;
  const Buffers& b_;
  int64_t width_;
};

}  // namespace

void oracle_scratch(const VerifyProblem& problem, Scratch& scratch) {
  (void)Buffers(problem, scratch);
}

Status run_oracle(const VerifyProblem& problem, Scratch& scratch, const Progress& progress) {
  const Buffers buffers(problem, scratch);
  KDTREE_RETURN_IF_ERROR(scratch.check());
  const Oracle oracle(problem, buffers);
  return for_each_row(problem, buffers.tree, progress,
                      [&](int64_t t, const VisibleKeys& keys) { oracle.row(t, keys); });
}

}  // namespace kdtree
