#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace kdtree {
namespace {

constexpr double kMost = 1e12;

double magnitude_scale(double factor, double weight) {
  return factor <= 1.0 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

// The pair whose wavelength fits `rotations` times into the original context.
double correction_dim(double rotations, double dim, double theta, double original_context) {
  return dim * std::log(original_context / (rotations * 2.0 * std::numbers::pi)) / (2.0 * std::log(theta));
}

// Keys that one of transformers and SGLang reads and the other does not: only where that makes no difference.
Status check_disputed(const JsonObject& scaling, int64_t dim) {
  for (const char* key : {"attn_factor", "extrapolation_factor", "partial_rotary_factor"}) {
    const auto value = scaling.number(key, -kMost, kMost, 1.0);
    KDTREE_RETURN_IF_ERROR(value);
    if (*value != 1.0) return scaling.unsupported(key, "1");
  }
  const auto rotated = scaling.integer("rope_dim", 1, int64_t{1} << 40, dim);
  KDTREE_RETURN_IF_ERROR(rotated);
  if (*rotated != dim) return scaling.unsupported("rope_dim", fmt::format("{}", dim));
  return {};
}

// YaRN: fast pairs keep their frequency, slow ones are stretched by `factor`, a ramp between them.
Status apply_yarn(const JsonObject& config, const JsonObject& scaling, double theta, Rope& rope) {
  const auto max_position = config.integer("max_position_embeddings", 1, int64_t{1} << 40);
  KDTREE_RETURN_IF_ERROR(max_position);
  const auto original = scaling.integer("original_max_position_embeddings", 1, int64_t{1} << 40);
  KDTREE_RETURN_IF_ERROR(original);
  const double ratio = static_cast<double>(*max_position) / static_cast<double>(*original);
  const auto factor = scaling.number("factor", 1e-6, kMost, ratio);
  KDTREE_RETURN_IF_ERROR(factor);
  const auto beta_fast = scaling.number("beta_fast", 1e-6, kMost, 32.0);
  KDTREE_RETURN_IF_ERROR(beta_fast);
  const auto beta_slow = scaling.number("beta_slow", 1e-6, kMost, 1.0);
  KDTREE_RETURN_IF_ERROR(beta_slow);
  const auto mscale = scaling.number("mscale", 0.0, kMost, 0.0);
  KDTREE_RETURN_IF_ERROR(mscale);
  const auto mscale_all_dim = scaling.number("mscale_all_dim", 0.0, kMost, 0.0);
  KDTREE_RETURN_IF_ERROR(mscale_all_dim);
  const bool both = *mscale != 0.0 && *mscale_all_dim != 0.0;
  const double ratio_of_scales =
      both ? magnitude_scale(*factor, *mscale) / magnitude_scale(*factor, *mscale_all_dim)
           : magnitude_scale(*factor, 1.0);
  const auto attention_factor = scaling.number("attention_factor", 1e-6, kMost, ratio_of_scales);
  KDTREE_RETURN_IF_ERROR(attention_factor);
  const auto truncate = scaling.boolean("truncate", true);
  KDTREE_RETURN_IF_ERROR(truncate);

  const auto dim = static_cast<double>(rope.dim());
  double low = correction_dim(*beta_fast, dim, theta, static_cast<double>(*original));
  double high = correction_dim(*beta_slow, dim, theta, static_cast<double>(*original));
  if (*truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < rope.inverse_frequency.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / dim);
    rope.inverse_frequency[i] = static_cast<float>(frequency / *factor * ramp + frequency * (1.0 - ramp));
  }
  rope.amplitude = static_cast<float>(*attention_factor);
  if (*mscale_all_dim != 0.0) rope.score_factor = std::pow(magnitude_scale(*factor, *mscale_all_dim), 2);
  return {};
}

}  // namespace

void Rope::angles(int64_t position, float* cosine, float* sine) const {
  for (size_t i = 0; i < inverse_frequency.size(); ++i) {
    // The angle is rounded to fp32, as in the implementations that checkpoints are trained with.
    const float angle = static_cast<float>(position) * inverse_frequency[i];
    cosine[i] = std::cos(angle) * amplitude;
    sine[i] = std::sin(angle) * amplitude;
  }
}

void Rope::rotate(float* x, const float* cosine, const float* sine) const {
  const auto half = static_cast<int64_t>(inverse_frequency.size());
  const int64_t step = pairs == RopePairs::neighbours ? 2 : 1;
  const int64_t apart = pairs == RopePairs::neighbours ? 1 : half;
  for (int64_t i = 0; i < half; ++i) {
    float& a = x[i * step];
    float& b = x[i * step + apart];
    const float first = a * cosine[i] - b * sine[i];
    b = b * cosine[i] + a * sine[i];
    a = first;
  }
}

Result<Rope> read_rope(const JsonObject& config, int64_t dim, RopePairs pairs) {
  const char* key = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const auto scaling = config.object(key);
  KDTREE_RETURN_IF_ERROR(scaling);
  KDTREE_RETURN_IF_ERROR(check_disputed(*scaling, dim));
  const JsonObject& holder = scaling->has("rope_theta") ? *scaling : config;
  const auto theta = holder.number("rope_theta", 1.0 + 1e-6, kMost, 10000.0);
  KDTREE_RETURN_IF_ERROR(theta);
  const auto old_type = scaling->text("type", "default");
  KDTREE_RETURN_IF_ERROR(old_type);
  const auto type = scaling->text("rope_type", *old_type);
  KDTREE_RETURN_IF_ERROR(type);

  Rope rope;
  rope.pairs = pairs;
  rope.inverse_frequency.resize(static_cast<size_t>(dim / 2));
  for (size_t i = 0; i < rope.inverse_frequency.size(); ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(dim);
    rope.inverse_frequency[i] = static_cast<float>(std::pow(*theta, exponent));
  }
  if (*type == "yarn") {
    KDTREE_RETURN_IF_ERROR(apply_yarn(config, *scaling, *theta, rope));
  } else if (*type != "default") {
    return scaling->unsupported(scaling->has("rope_type") ? "rope_type" : "type", "\"default\" or \"yarn\"");
  }
  return rope;
}

}  // namespace kdtree
