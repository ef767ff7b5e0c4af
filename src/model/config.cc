#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace kdtree {
namespace {

constexpr int64_t kMostSize = int64_t{1} << 24;
constexpr int64_t kMostLayers = 4096;

struct IntegerKey {
  const char* key;
  int64_t* to;
  int64_t least;
  int64_t most = kMostSize;
  std::optional<int64_t> fallback = std::nullopt;
};

Status read_integers(const JsonObject& config, std::initializer_list<IntegerKey> keys) {
  for (const IntegerKey& k : keys) {
    const auto value = config.integer(k.key, k.least, k.most, k.fallback);
    KDTREE_RETURN_IF_ERROR(value);
    *k.to = *value;
  }
  return {};
}

// What this runtime computes in one way only.
Status check_supported(const JsonObject& config) {
  const auto architectures = config.texts("architectures");
  KDTREE_RETURN_IF_ERROR(architectures);
  const auto type = config.text("model_type", "");
  KDTREE_RETURN_IF_ERROR(type);
  const bool known_type = *type == "deepseek_v3" || *type == "kimi_k2";
  const bool known_architecture = std::find(architectures->begin(), architectures->end(),
                                            "DeepseekV3ForCausalLM") != architectures->end();
  if (!architectures->empty() && !known_architecture) {
    return config.unsupported("architectures", "DeepseekV3ForCausalLM");
  }
  if (!known_type && !(type->empty() && known_architecture)) {
    return config.unsupported("model_type", "\"deepseek_v3\" or \"kimi_k2\"");
  }
  if (config.has("quantization_config")) {
    return config.unsupported("quantization_config", "none: weights in bf16, fp16 or fp32");
  }
  const struct {
    const char* key;
    const char* only;
  } texts[] = {{"hidden_act", "silu"}, {"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"}};
  for (const auto& [key, only] : texts) {
    const auto value = config.text(key, only);
    KDTREE_RETURN_IF_ERROR(value);
    if (*value != only) return config.unsupported(key, fmt::format("\"{}\"", only));
  }
  const auto bias = config.boolean("attention_bias", false);
  KDTREE_RETURN_IF_ERROR(bias);
  if (*bias) return config.unsupported("attention_bias", "false");
  const auto frequency = config.integer("moe_layer_freq", 1, kMostLayers, 1);
  KDTREE_RETURN_IF_ERROR(frequency);
  if (*frequency != 1) return config.unsupported("moe_layer_freq", "1");
  return {};
}

Status read_moe(const JsonObject& config, MoeConfig& moe) {
  KDTREE_RETURN_IF_ERROR(read_integers(config, {{"n_routed_experts", &moe.experts, 0, kMostSize, 0}}));
  if (moe.experts == 0) return {};
  KDTREE_RETURN_IF_ERROR(
      read_integers(config, {{"num_experts_per_tok", &moe.experts_per_token, 1, moe.experts},
                             {"n_shared_experts", &moe.shared_experts, 0, kMostSize, 0},
                             {"moe_intermediate_size", &moe.intermediate_size, 1},
                             {"n_group", &moe.groups, 1, moe.experts, 1},
                             {"first_k_dense_replace", &moe.first_layer, 0, kMostLayers, 0}}));
  KDTREE_RETURN_IF_ERROR(read_integers(config, {{"topk_group", &moe.groups_per_token, 1, moe.groups, 1}}));
  if (moe.experts % moe.groups != 0) {
    return config.invalid("n_group", fmt::format("a divisor of n_routed_experts {}", moe.experts));
  }
  const int64_t per_group = moe.experts / moe.groups;
  // A group's score is the sum of its two best experts.
  if (per_group < 2) {
    return config.unsupported("n_group",
                              fmt::format("at most {}: 2 experts a group or more", moe.experts / 2));
  }
  if (moe.experts_per_token > per_group * moe.groups_per_token) {
    return config.invalid("num_experts_per_tok", fmt::format("at most the {} experts of topk_group groups",
                                                             per_group * moe.groups_per_token));
  }
  const auto normalize = config.boolean("norm_topk_prob", true);
  KDTREE_RETURN_IF_ERROR(normalize);
  moe.normalize = *normalize;
  const auto scaling = config.number("routed_scaling_factor", -1e6, 1e6, 1.0);
  KDTREE_RETURN_IF_ERROR(scaling);
  moe.scaling = static_cast<float>(*scaling);
  return {};
}

Status read_text_config(const JsonObject& config, ModelConfig& model) {
  KDTREE_RETURN_IF_ERROR(check_supported(config));
  KDTREE_RETURN_IF_ERROR(
      read_integers(config, {{"vocab_size", &model.vocab_size, 1},
                             {"hidden_size", &model.hidden_size, 1},
                             {"intermediate_size", &model.intermediate_size, 1},
                             {"num_hidden_layers", &model.layers, 1, kMostLayers},
                             {"num_attention_heads", &model.heads, 1, 1024},
                             {"q_lora_rank", &model.q_lora_rank, 1, kMostSize, 0},
                             {"kv_lora_rank", &model.latent_dim, 16, 4096},
                             {"qk_rope_head_dim", &model.rope_dim, 16, 4096},
                             {"qk_nope_head_dim", &model.nope_dim, 1},
                             {"v_head_dim", &model.value_dim, 1},
                             {"max_position_embeddings", &model.max_positions, 1, int64_t{1} << 40}}));
  for (const char* key : {"kv_lora_rank", "qk_rope_head_dim"}) {
    const auto value = config.integer(key, 16, 4096);
    if (*value % 16 != 0) return config.unsupported(key, "a multiple of 16");
  }
  const auto eps = config.number("rms_norm_eps", 0.0, 1.0, 1e-6);
  KDTREE_RETURN_IF_ERROR(eps);
  model.norm_eps = static_cast<float>(*eps);
  const auto tied = config.boolean("tie_word_embeddings", false);
  KDTREE_RETURN_IF_ERROR(tied);
  model.tied_head = *tied;
  KDTREE_RETURN_IF_ERROR(read_moe(config, model.moe));
  const auto interleaved = config.boolean("rope_interleave", true);
  KDTREE_RETURN_IF_ERROR(interleaved);
  auto rope = read_rope(config, model.rope_dim, *interleaved ? RopePairs::neighbours : RopePairs::halves);
  KDTREE_RETURN_IF_ERROR(rope);
  model.rope = *std::move(rope);
  model.attention_scale = static_cast<float>(model.rope.score_factor /
                                             std::sqrt(static_cast<double>(model.nope_dim + model.rope_dim)));
  return {};
}

Status read_eos(const JsonObject& config, ModelConfig& model) {
  const auto tokens = config.integers("eos_token_id", 0, model.vocab_size - 1);
  KDTREE_RETURN_IF_ERROR(tokens);
  if (!tokens->empty()) model.eos_tokens.assign(tokens->begin(), tokens->end());
  return {};
}

}  // namespace

Result<ModelConfig> read_model_config(const std::string& folder) {
  const auto file = JsonObject::read(folder + "/config.json");
  KDTREE_RETURN_IF_ERROR(file);
  ModelConfig model;
  const bool wrapped = file->has("text_config");
  if (wrapped) model.weight_prefix = "language_model.";
  const auto config = wrapped ? file->object("text_config") : file;
  KDTREE_RETURN_IF_ERROR(config);
  if (wrapped && file->has("quantization_config")) {
    return file->unsupported("quantization_config", "none: weights in bf16, fp16 or fp32");
  }
  KDTREE_RETURN_IF_ERROR(read_text_config(*config, model));
  KDTREE_RETURN_IF_ERROR(read_eos(*config, model));
  const std::string generation = folder + "/generation_config.json";
  if (std::error_code ignored; std::filesystem::exists(generation, ignored)) {
    const auto settings = JsonObject::read(generation);
    KDTREE_RETURN_IF_ERROR(settings);
    KDTREE_RETURN_IF_ERROR(read_eos(*settings, model));
  }
  return model;
}

}  // namespace kdtree
