// An fp64 derivation of verify attention that shares nothing with the library but the problem's layout: a
// dense mask from the trees' ancestor sets, no absorption, no position order.
#pragma once

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>
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

// Rows on all threads of the host.
inline Reference reference_attention(const VerifyCase& c) {
  const OwnedProblem& problem = c.problem;
  const VerifyProblem& p = problem.scalars;
  const int64_t width = p.latent_dim + p.rope_dim;
  const double stored = p.kv_scale != 0.0f ? p.kv_scale : 1.0;
  const auto masks = dense_masks(c);
  struct Row {
    size_t request;
    size_t node;
    int64_t first_row;
    int64_t prefix_begin;
  };
  std::vector<Row> rows;
  int64_t prefix_begin = 0;
  for (size_t r = 0; r < masks.size(); ++r) {
    const auto first_row = static_cast<int64_t>(rows.size());
    for (size_t i = 0; i < masks[r].size(); ++i)
      rows.push_back({r, i, first_row, prefix_begin});
    prefix_begin += c.spec.requests[r].prefix_length;
  }
  const auto latent = static_cast<size_t>(p.latent_dim);
  const auto heads = static_cast<size_t>(p.heads);
  Reference result{std::vector<double>(rows.size() * heads * latent),
                   std::vector<double>(rows.size() * heads)};

  const auto attend = [&](size_t at, size_t head) {
    const Row& row = rows[at];
    const std::vector<bool>& mask = masks[row.request][row.node];
    const int64_t prefix = c.spec.requests[row.request].prefix_length;
    const int64_t query =
        static_cast<int64_t>(at) * q_token_stride(p) + static_cast<int64_t>(head) * q_head_stride(p);
    std::vector<double> scores;
    std::vector<std::vector<double>> values;
    for (size_t j = 0; j < mask.size(); ++j) {
      if (!mask[j]) continue;
      const auto column = static_cast<int64_t>(j);
      const bool in_prefix = column < prefix;
      const int64_t t = row.first_row + column - prefix;
      const bool separate = !in_prefix && p.draft_location == KDTREE_DRAFT_SEPARATE;
      const Tensor& keys = separate ? problem.draft_kv : problem.kv;
      const int64_t slot = separate            ? t
                           : !in_prefix        ? index_at(problem.draft_slots, t)
                           : c.spec.contiguous ? row.prefix_begin + column
                                               : index_at(problem.kv_indices, row.prefix_begin + column);
      const int64_t base = slot * keys.shape[1];
      double dot = 0.0;
      std::vector<double> value(latent);
      for (int64_t k = width; k-- > 0;) {
        const double x = keys.value(base + k) * stored;
        dot += problem.q.value(query + k) * x;
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
    double* out = result.out.data() + (at * heads + head) * latent;
    for (size_t n = scores.size(); n-- > 0;) {
      const double weight = std::exp(scores[n] - most);
      sum += weight;
      for (size_t k = 0; k < latent; ++k)
        out[k] += weight * values[n][k];
    }
    for (size_t k = 0; k < latent; ++k)
      out[k] = scores.empty() ? 0.0 : out[k] / sum;
    result.lse[at * heads + head] =
        scores.empty() ? -std::numeric_limits<double>::infinity() : most + std::log(sum);
  };

  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < rows.size() * heads; i = next++)
      attend(i / heads, i % heads);
  };
  // Threads for more than they cost.
  const bool many = (prefix_begin + static_cast<int64_t>(rows.size())) * width > 10000;
  std::vector<std::jthread> threads(many ? std::thread::hardware_concurrency() : 0);
  for (std::jthread& thread : threads)
    thread = std::jthread(work);
  work();
  threads.clear();  // joins
  return result;
}

}  // namespace kdtree::testing
