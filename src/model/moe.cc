#include "model/moe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/parallel.h"

namespace kdtree {
namespace {

float* grown(std::vector<float>& memory, int64_t size) {
  if (memory.size() < static_cast<size_t>(size)) memory.resize(static_cast<size_t>(size));
  return memory.data();
}

// Several MLPs side by side, each over its own rows of x and out.
struct MlpPart {
  const Mlp* mlp;
  int64_t row;
  int64_t rows;
};

void mlps_forward(std::span<const MlpPart> parts, int64_t hidden, int64_t intermediate, const float* x,
                  float* out, MlpScratch& scratch) {
  const int64_t rows = parts.empty() ? 0 : parts.back().row + parts.back().rows;
  float* gate = grown(scratch.gate, rows * intermediate);
  float* up = grown(scratch.up, rows * intermediate);
  std::vector<LinearTask> tasks;
  for (const MlpPart& part : parts) {
    const float* from = x + part.row * hidden;
    const int64_t at = part.row * intermediate;
    tasks.push_back({from, hidden, part.rows, part.mlp->gate.panels(), gate + at, intermediate});
    tasks.push_back({from, hidden, part.rows, part.mlp->up.panels(), up + at, intermediate});
  }
  linear(tasks);
  parallel_rows(rows, intermediate, [&](int64_t r) {
    best_ops_target().swiglu(gate + r * intermediate, up + r * intermediate, intermediate,
                             gate + r * intermediate);
  });
  tasks.clear();
  for (const MlpPart& part : parts) {
    tasks.push_back({gate + part.row * intermediate, intermediate, part.rows, part.mlp->down.panels(),
                     out + part.row * hidden, hidden});
  }
  linear(tasks);
}

}  // namespace

void mlp_forward(const Mlp& mlp, std::span<const float> x, int64_t rows, float* out, MlpScratch& scratch) {
  const MlpPart parts[] = {{&mlp, 0, rows}};
  mlps_forward(parts, mlp.gate.panels().inputs, mlp.gate.panels().outputs, x.data(), out, scratch);
}

void route(std::span<const float> scores, std::span<const float> bias, const MoeConfig& config,
           std::span<int32_t> experts, std::span<float> weights) {
  const auto count = static_cast<size_t>(config.experts);
  const auto per_group = count / static_cast<size_t>(config.groups);
  std::vector<float> probability(count), choice(count);
  for (size_t e = 0; e < count; ++e) {
    probability[e] = 1.0f / (1.0f + std::exp(-scores[e]));
    choice[e] = probability[e] + bias[e];
  }
  // The best groups by the sum of their two best experts.
  std::vector<float> group_score(static_cast<size_t>(config.groups));
  std::vector<size_t> groups(group_score.size());
  std::iota(groups.begin(), groups.end(), size_t{0});
  for (const size_t g : groups) {
    float best = -std::numeric_limits<float>::infinity();
    float second = best;
    for (size_t e = g * per_group; e < (g + 1) * per_group; ++e) {
      second = std::max(second, std::min(best, choice[e]));
      best = std::max(best, choice[e]);
    }
    group_score[g] = best + second;
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [&](size_t a, size_t b) { return group_score[a] > group_score[b]; });
  groups.resize(static_cast<size_t>(config.groups_per_token));
  std::sort(groups.begin(), groups.end());

  std::vector<int32_t> candidates;
  for (const size_t g : groups) {
    for (size_t e = g * per_group; e < (g + 1) * per_group; ++e)
      candidates.push_back(static_cast<int32_t>(e));
  }
  std::stable_sort(candidates.begin(), candidates.end(), [&](int32_t a, int32_t b) {
    return choice[static_cast<size_t>(a)] > choice[static_cast<size_t>(b)];
  });
  float total = 0.0f;
  for (size_t i = 0; i < experts.size(); ++i) {
    experts[i] = candidates[i];
    weights[i] = probability[static_cast<size_t>(candidates[i])];
    total += weights[i];
  }
  const float divisor = config.normalize ? total + 1e-20f : 1.0f;
  for (float& weight : weights)
    weight = weight / divisor * config.scaling;
}

void moe_forward(const Moe& moe, const MoeConfig& config, std::span<const float> x, int64_t rows, float* out,
                 MlpScratch& scratch) {
  const int64_t hidden = moe.router.panels().inputs;
  const auto per_token = static_cast<size_t>(config.experts_per_token);
  const LinearTask router[] = {{x.data(), hidden, rows, moe.router.panels(),
                                grown(scratch.scores, rows * config.experts), config.experts}};
  linear(router);
  scratch.chosen.resize(static_cast<size_t>(rows) * per_token);
  grown(scratch.weights, rows * config.experts_per_token);
  for (int64_t r = 0; r < rows; ++r) {
    const auto at = static_cast<size_t>(r) * per_token;
    route(std::span(scratch.scores)
              .subspan(static_cast<size_t>(r * config.experts), static_cast<size_t>(config.experts)),
          moe.bias, config, std::span(scratch.chosen).subspan(at, per_token),
          std::span(scratch.weights).subspan(at, per_token));
  }

  // Rows sorted by expert; entry i of `rows` is row i / per_token's choice i % per_token.
  scratch.rows.resize(scratch.chosen.size());
  std::iota(scratch.rows.begin(), scratch.rows.end(), int64_t{0});
  std::stable_sort(scratch.rows.begin(), scratch.rows.end(), [&](int64_t a, int64_t b) {
    return scratch.chosen[static_cast<size_t>(a)] < scratch.chosen[static_cast<size_t>(b)];
  });
  const auto entries = static_cast<int64_t>(scratch.rows.size());
  float* inputs = grown(scratch.inputs, entries * hidden);
  float* outputs = grown(scratch.outputs, entries * hidden);
  std::vector<MlpPart> parts;
  for (int64_t i = 0; i < entries; ++i) {
    const int64_t choice = scratch.rows[static_cast<size_t>(i)];
    const Mlp* mlp = &moe.experts[static_cast<size_t>(scratch.chosen[static_cast<size_t>(choice)])];
    std::copy_n(x.data() + choice / config.experts_per_token * hidden, hidden, inputs + i * hidden);
    if (parts.empty() || parts.back().mlp != mlp) parts.push_back({mlp, i, 0});
    parts.back().rows += 1;
  }
  mlps_forward(parts, hidden, config.intermediate_size, inputs, outputs, scratch);

  std::fill_n(out, rows * hidden, 0.0f);
  for (int64_t i = 0; i < entries; ++i) {
    const int64_t choice = scratch.rows[static_cast<size_t>(i)];
    const float weight = scratch.weights[static_cast<size_t>(choice)];
    float* to = out + choice / config.experts_per_token * hidden;
    for (int64_t c = 0; c < hidden; ++c)
      to[c] += weight * outputs[i * hidden + c];
  }
  if (moe.shared.gate.empty()) return;
  mlp_forward(moe.shared, x, rows, outputs, scratch);
  for (int64_t i = 0; i < rows * hidden; ++i)
    out[i] += outputs[i];
}

}  // namespace kdtree
