// The configuration of a target model: Hugging Face's DeepseekV3ForCausalLM, which Kimi K2 uses too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "model/rope.h"

namespace kdtree {

struct MoeConfig {
  int64_t experts = 0;  // routed ones; 0 = every layer is dense
  int64_t experts_per_token = 0;
  int64_t shared_experts = 0;
  int64_t intermediate_size = 0;  // of one expert
  int64_t groups = 1;
  int64_t groups_per_token = 1;
  int64_t first_layer = 0;  // layers before it are dense
  bool normalize = true;    // norm_topk_prob
  float scaling = 1.0f;     // routed_scaling_factor
};

struct ModelConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t q_lora_rank = 0;  // 0: the query is projected in one step
  int64_t latent_dim = 0;   // kv_lora_rank
  int64_t rope_dim = 0;     // qk_rope_head_dim
  int64_t nope_dim = 0;     // qk_nope_head_dim
  int64_t value_dim = 0;    // v_head_dim
  int64_t max_positions = 0;
  float norm_eps = 0.0f;
  float attention_scale = 0.0f;  // (nope_dim + rope_dim)^-1/2, times YaRN's factor
  bool tied_head = false;
  MoeConfig moe;
  Rope rope;
  std::vector<int32_t> eos_tokens;
  std::string weight_prefix;  // before "model." and "lm_head.": empty, or "language_model."

  int64_t kv_width() const { return latent_dim + rope_dim; }
};

// Reads FOLDER/config.json; a wrapper's `text_config` (Kimi K2.5, K2.6) is taken instead of the wrapper. The
// end-of-sequence tokens come from generation_config.json when that names some, as in Hugging Face.
// Errors: KDTREE_IO_ERROR, KDTREE_INVALID_FILE and KDTREE_UNSUPPORTED, naming the key.
Result<ModelConfig> read_model_config(const std::string& folder);

}  // namespace kdtree
