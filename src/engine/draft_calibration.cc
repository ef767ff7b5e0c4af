#include "engine/draft_calibration.h"

#include <algorithm>
#include <cmath>

namespace kdtree {
namespace {

constexpr double kMemory = 100.0;      // children near a point
constexpr double kForgotten = 2000.0;  // rounds: what was bad once is tried again
constexpr double kTrust = 2.0;         // children as promised that a point begins with

double log_odds_of(double p) {
  return std::log(p / (1.0 - p));
}

double odds_to_chance(double log_odds) {
  return 1.0 / (1.0 + std::exp(-log_odds));
}

// The drafter's probability of a node, given its parent.
double probability(const DraftTree& tree, size_t node) {
  const double log_parent = tree.log_weight[static_cast<size_t>(tree.parent[node])];
  return std::clamp(std::exp(tree.log_weight[node] - log_parent), 1e-9, 1.0 - 1e-9);
}

// The kind of each node: on the path of each depth's likeliest token, a sibling of such a node, another one.
// A parent's first child is its likeliest.
std::vector<size_t> kinds(const DraftTree& tree) {
  std::vector<size_t> kinds(tree.parent.size(), 2);
  std::vector<bool> has_child(tree.parent.size());
  kinds[0] = 0;
  for (size_t node = 1; node < kinds.size(); ++node) {
    const auto parent = static_cast<size_t>(tree.parent[node]);
    if (kinds[parent] == 0) kinds[node] = has_child[parent] ? 1 : 0;
    has_child[parent] = true;
  }
  return kinds;
}

}  // namespace

template <class Use>
void DraftCalibration::near(double log_odds, const Use& use) {
  const double at = std::clamp(log_odds + kEvenOdds, 0.0, kPoints - 1.001);
  const auto below = static_cast<size_t>(at);
  const double part = at - static_cast<double>(below);
  use(below, 1.0 - part);
  use(below + 1, part);
}

std::array<double, DraftCalibration::kPoints> DraftCalibration::shifts(const Curve& curve) {
  std::array<double, kPoints> shifts;
  for (size_t i = 0; i < curve.size(); ++i) {
    const Point& point = curve[i];
    const double own = kTrust * odds_to_chance(static_cast<double>(i) - kEvenOdds);
    const double tried = kTrust + point.tried;
    shifts[i] = log_odds_of((own + point.accepted) / tried) - log_odds_of((own + point.promised) / tried);
  }
  return shifts;
}

std::vector<double> DraftCalibration::weights(const DraftTree& tree) const {
  const std::vector<size_t> kind = kinds(tree);
  const std::array shifts_of = {shifts(curves_[0]), shifts(curves_[1]), shifts(curves_[2])};
  std::vector<double> weights(tree.parent.size(), 1.0);
  for (size_t node = 1; node < weights.size(); ++node) {
    const double log_odds = log_odds_of(probability(tree, node));
    double shift = 0.0;
    near(log_odds, [&](size_t i, double weight) { shift += weight * shifts_of[kind[node]][i]; });
    weights[node] = weights[static_cast<size_t>(tree.parent[node])] * odds_to_chance(log_odds + shift);
  }
  return weights;
}

void DraftCalibration::observe(const DraftTree& tree, std::span<const int32_t> path) {
  for (Curve& curve : curves_) {
    for (Point& point : curve) {
      for (double* sum : {&point.tried, &point.promised, &point.accepted})
        *sum -= *sum / kForgotten;
    }
  }
  const std::vector<size_t> kind = kinds(tree);
  std::vector<bool> accepted(tree.parent.size());
  for (const int32_t node : path)
    accepted[static_cast<size_t>(node)] = true;
  for (size_t node = 1; node < accepted.size(); ++node) {
    if (!accepted[static_cast<size_t>(tree.parent[node])]) continue;
    const double p = probability(tree, node);
    near(log_odds_of(p), [&](size_t i, double weight) {
      Point& point = curves_[kind[node]][i];
      point.tried += weight * (1.0 - point.tried / kMemory);
      point.promised += weight * (p - point.promised / kMemory);
      point.accepted += weight * ((accepted[node] ? 1.0 : 0.0) - point.accepted / kMemory);
    });
  }
}

}  // namespace kdtree
