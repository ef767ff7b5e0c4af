// Rotary position embedding (RoFormer, arXiv 2104.09864), plain or with YaRN's frequencies (arXiv
// 2309.00071).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/status.h"
#include "model/json_object.h"

namespace kdtree {

// How the two elements of a rotated pair lie: neighbours (DeepSeek), or half a head apart (NeoX, Qwen).
enum class RopePairs { neighbours, halves };

struct Rope {
  std::vector<float> inverse_frequency;  // [dim / 2]
  float amplitude = 1.0f;                // of cosine and sine
  // What the scale of attention's scores is multiplied with: DeepSeek's mscale^2.
  double score_factor = 1.0;
  RopePairs pairs = RopePairs::neighbours;

  int64_t dim() const { return 2 * static_cast<int64_t>(inverse_frequency.size()); }

  // cosine and sine of each pair at `position`, times the amplitude: [dim / 2] each.
  void angles(int64_t position, float* cosine, float* sine) const;
  // Rotates x [dim] in place.
  void rotate(float* x, const float* cosine, const float* sine) const;
};

// From a configuration's rope_theta and rope_scaling, or Hugging Face's newer rope_parameters. `dim` is even.
// Errors: KDTREE_UNSUPPORTED for a type other than "default" and "yarn", and for keys on which
// implementations differ; KDTREE_INVALID_FILE.
Result<Rope> read_rope(const JsonObject& config, int64_t dim, RopePairs pairs);

}  // namespace kdtree
