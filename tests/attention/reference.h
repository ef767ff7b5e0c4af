// An fp64 derivation of verify attention that shares nothing with the library but the problem's layout: a
// dense mask from the trees' ancestor sets, no absorption, no position order.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "cases/verify_case.h"

namespace kdtree::testing {

struct Reference {
  std::vector<double> out;  // [T, H, latent]
  std::vector<double> lse;  // [T, H]
};

// dense[r][i][j]: node i of request r sees column j of [prefix | nodes].
inline std::vector<std::vector<std::vector<bool>>> dense_masks(const VerifyCase& c) {
  std::vector<std::vector<std::vector<bool>>> masks;
  for (size_t r = 0; r < c.spec.requests.size(); ++r) {
    const RequestSpec& request = c.spec.requests[r];
    const DraftTree& tree = c.trees[r];
    const auto prefix = static_cast<size_t>(request.prefix_length);
    const auto nodes = static_cast<size_t>(request.nodes);
    std::vector<std::vector<bool>> mask(nodes, std::vector<bool>(prefix + nodes, false));
    for (size_t i = 0; i < static_cast<size_t>(tree.size()); ++i) {
      for (size_t j = 0; j < prefix; ++j)
        mask[i][j] = true;
      for (int32_t n = static_cast<int32_t>(i); n >= 0; n = tree.parent[static_cast<size_t>(n)]) {
        mask[i][prefix + static_cast<size_t>(n)] = true;
      }
    }
    masks.push_back(std::move(mask));
  }
  return masks;
}

inline int64_t index_at(const Tensor& tensor, int64_t i) {
  return tensor.dtype == DType::i64 ? tensor.as<int64_t>()[static_cast<size_t>(i)]
                                    : tensor.as<int32_t>()[static_cast<size_t>(i)];
}

inline Reference reference_attention(const VerifyCase& c) {
  const OwnedProblem& problem = c.problem;
  const VerifyProblem& p = problem.scalars;
  const int64_t width = p.latent_dim + p.rope_dim;
  const double stored = p.kv_scale != 0.0f ? p.kv_scale : 1.0;
  const auto masks = dense_masks(c);
  Reference result;
  int64_t row = 0;
  int64_t prefix_begin = 0;
  for (size_t r = 0; r < masks.size(); ++r) {
    const int64_t prefix = c.spec.requests[r].prefix_length;
    const int64_t first_row = row;
    for (size_t i = 0; i < masks[r].size(); ++i, ++row) {
      for (int32_t h = 0; h < p.heads; ++h) {
        std::vector<double> scores;
        std::vector<std::vector<double>> values;
        for (size_t j = 0; j < masks[r][i].size(); ++j) {
          if (!masks[r][i][j]) continue;
          const auto column = static_cast<int64_t>(j);
          const bool in_prefix = column < prefix;
          const int64_t t = first_row + column - prefix;
          const bool separate = !in_prefix && p.draft_location == KDTREE_DRAFT_SEPARATE;
          const Tensor& rows = separate ? problem.draft_kv : problem.kv;
          const int64_t slot = separate    ? t
                               : !in_prefix  ? index_at(problem.draft_slots, t)
                               : c.spec.contiguous
                                   ? prefix_begin + column
                                   : index_at(problem.kv_indices, prefix_begin + column);
          const int64_t base = slot * rows.shape[1];
          double dot = 0.0;
          std::vector<double> value(static_cast<size_t>(p.latent_dim));
          for (int64_t k = width; k-- > 0;) {
            const double x = rows.value(base + k) * stored;
            const int64_t at = row * q_token_stride(p) + h * q_head_stride(p) + k;
            dot += problem.q.value(at) * x;
            if (k < p.latent_dim) value[static_cast<size_t>(k)] = x;
          }
          double score = dot * p.scale;
          if (p.logit_cap > 0) score = p.logit_cap * std::tanh(score / p.logit_cap);
          scores.push_back(score);
          values.push_back(std::move(value));
        }
        double most = -std::numeric_limits<double>::infinity();
        for (const double s : scores)
          most = std::max(most, s);
        double sum = 0.0;
        std::vector<double> out(static_cast<size_t>(p.latent_dim), 0.0);
        for (size_t n = scores.size(); n-- > 0;) {
          const double weight = std::exp(scores[n] - most);
          sum += weight;
          for (size_t k = 0; k < out.size(); ++k)
            out[k] += weight * values[n][k];
        }
        for (double& x : out)
          x = scores.empty() ? 0.0 : x / sum;
        result.out.insert(result.out.end(), out.begin(), out.end());
        result.lse.push_back(scores.empty() ? -std::numeric_limits<double>::infinity()
                                            : most + std::log(sum));
      }
    }
    prefix_begin += prefix;
  }
  return result;
}

}  // namespace kdtree::testing
