#include "model/dflash.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/parallel.h"

namespace kdtree {
namespace {

constexpr int64_t kMostSize = int64_t{1} << 24;
// Committed tokens whose features wait for the next proposal, so that several rounds share one pass.
constexpr int64_t kMostPending = 256;

// What this drafter computes in one way only.
Status check_supported(const JsonObject& config, const JsonObject& dflash) {
  const auto architectures = config.texts("architectures");
  KDTREE_RETURN_IF_ERROR(architectures);
  if (std::find(architectures->begin(), architectures->end(), "DFlashDraftModel") == architectures->end()) {
    return config.unsupported("architectures", "DFlashDraftModel");
  }
  const auto activation = config.text("hidden_act", "silu");
  KDTREE_RETURN_IF_ERROR(activation);
  if (*activation != "silu") return config.unsupported("hidden_act", "\"silu\"");
  for (const char* key : {"attention_bias", "use_gemma_norm", "is_causal", "attention_sink_bias"}) {
    const auto value = config.boolean(key, false);
    KDTREE_RETURN_IF_ERROR(value);
    if (*value) return config.unsupported(key, "false");
  }
  for (const char* key : {"conv_kernel_size", "selector_rank", "projector_type", "attention_sink_bias",
                          "attention_value_scale", "output_multiplier", "final_logit_softcapping"}) {
    if (dflash.has(key)) return dflash.unsupported(key, "no such key");
  }
  if (config.has("quantization_config")) {
    return config.unsupported("quantization_config", "none: weights in bf16, fp16 or fp32");
  }
  const auto types = config.has("layer_types") ? config.texts("layer_types") : std::vector<std::string>();
  KDTREE_RETURN_IF_ERROR(types);
  for (const std::string& type : *types) {
    if (type != "full_attention") return config.unsupported("layer_types", "full_attention alone");
  }
  const auto part = config.number("partial_rotary_factor", 0.0, 1.0, 1.0);
  KDTREE_RETURN_IF_ERROR(part);
  if (*part != 1.0) return config.unsupported("partial_rotary_factor", "1");
  const auto neox = config.boolean("rope_is_neox_style", true);
  KDTREE_RETURN_IF_ERROR(neox);
  if (!*neox) return config.unsupported("rope_is_neox_style", "true");
  return {};
}

// `key` of dflash_config, or of the configuration itself.
const JsonObject& holder_of(const char* key, const JsonObject& dflash, const JsonObject& config) {
  return dflash.has(key) ? dflash : config;
}

Status check_target(const JsonObject& config, const JsonObject& dflash, const ModelConfig& target) {
  const struct {
    const char* key;
    int64_t expected;
  } sizes[] = {{"vocab_size", target.vocab_size}, {"hidden_size", target.hidden_size}};
  for (const auto& [key, expected] : sizes) {
    const auto value = config.integer(key, 1, kMostSize);
    KDTREE_RETURN_IF_ERROR(value);
    if (*value != expected) return config.invalid(key, fmt::format("the target's {}", expected));
  }
  const JsonObject& holder = holder_of("num_target_layers", dflash, config);
  const auto layers = holder.integer("num_target_layers", 1, kMostSize, target.layers);
  KDTREE_RETURN_IF_ERROR(layers);
  if (*layers != target.layers) {
    return holder.invalid("num_target_layers", fmt::format("the target's {}", target.layers));
  }
  return {};
}

}  // namespace

Result<DFlashConfig> read_dflash_config(const std::string& folder, const ModelConfig& target) {
  const auto config = JsonObject::read(folder + "/config.json");
  KDTREE_RETURN_IF_ERROR(config);
  const auto dflash = config->object("dflash_config");
  KDTREE_RETURN_IF_ERROR(dflash);
  KDTREE_RETURN_IF_ERROR(check_supported(*config, *dflash));
  KDTREE_RETURN_IF_ERROR(check_target(*config, *dflash, target));

  DFlashConfig c;
  c.hidden_size = target.hidden_size;
  int64_t mask_token = 0;
  const struct {
    const JsonObject& holder;
    const char* key;
    int64_t* to;
    int64_t least;
    int64_t most;
  } sizes[] = {
      {*config, "intermediate_size", &c.intermediate_size, 1, kMostSize},
      {*config, "num_hidden_layers", &c.layers, 1, 4096},
      {*config, "num_attention_heads", &c.heads, 1, 4096},
      {holder_of("block_size", *dflash, *config), "block_size", &c.block_size, 2, 1024},
      {holder_of("mask_token_id", *dflash, *config), "mask_token_id", &mask_token, 0, target.vocab_size - 1},
  };
  for (const auto& [holder, key, to, least, most] : sizes) {
    const auto value = holder.integer(key, least, most);
    KDTREE_RETURN_IF_ERROR(value);
    *to = *value;
  }
  c.mask_token = static_cast<int32_t>(mask_token);
  const auto kv_heads = config->integer("num_key_value_heads", 1, c.heads, c.heads);
  KDTREE_RETURN_IF_ERROR(kv_heads);
  c.kv_heads = *kv_heads;
  if (c.heads % c.kv_heads != 0) {
    return config->invalid("num_key_value_heads",
                           fmt::format("a divisor of num_attention_heads {}", c.heads));
  }
  const auto head_dim =
      config->integer("head_dim", 2, kMostSize, std::max<int64_t>(2, c.hidden_size / c.heads));
  KDTREE_RETURN_IF_ERROR(head_dim);
  c.head_dim = *head_dim;
  if (c.head_dim % 2 != 0) return config->invalid("head_dim", "an even number");
  const auto eps = config->number("rms_norm_eps", 0.0, 1.0, 1e-6);
  KDTREE_RETURN_IF_ERROR(eps);
  c.norm_eps = static_cast<float>(*eps);
  const JsonObject& holder = holder_of("target_layer_ids", *dflash, *config);
  // SGLang captures features in the order of the layers, and not the last one's.
  const auto layers = holder.integers("target_layer_ids", 0, std::max<int64_t>(0, target.layers - 2));
  KDTREE_RETURN_IF_ERROR(layers);
  if (layers->empty() ||
      std::adjacent_find(layers->begin(), layers->end(), std::greater_equal<>()) != layers->end()) {
    return holder.invalid("target_layer_ids", "a list of the target's layers, ascending");
  }
  c.target_layers = *layers;
  auto rope = read_rope(*config, c.head_dim, RopePairs::halves);
  KDTREE_RETURN_IF_ERROR(rope);
  c.rope = *std::move(rope);
  return c;
}

// Keys and values of one request: committed positions, and behind them those of the block at work.
class DFlashDrafter::Cache : public DraftState {
 public:
  explicit Cache(const DFlashConfig& config)
      : layers_(config.layers), heads_(config.kv_heads), dim_(config.head_dim) {}

  std::vector<float> pending;  // features of committed tokens that are not among the keys yet
  int64_t pending_rows = 0;
  int64_t length = 0;  // committed positions

  // Makes room for `positions`.
  void reserve(int64_t positions) {
    if (positions <= capacity_) return;
    const int64_t capacity = std::max(positions, 2 * capacity_);
    for (std::vector<float>* rows : {&keys_, &values_}) {
      std::vector<float> grown(static_cast<size_t>(layers_ * heads_ * capacity * dim_));
      for (int64_t i = 0; i < layers_ * heads_; ++i)
        std::copy_n(rows->data() + i * capacity_ * dim_, length * dim_, grown.data() + i * capacity * dim_);
      *rows = std::move(grown);
    }
    capacity_ = capacity;
  }

  // [positions, dim] both.
  Matrix keys(int64_t layer, int64_t head, int64_t positions) const {
    return {keys_.data() + at(layer, head, 0), DType::f32, positions, dim_, dim_};
  }
  Matrix values(int64_t layer, int64_t head, int64_t positions) const {
    return {values_.data() + at(layer, head, 0), DType::f32, positions, dim_, dim_};
  }

  // k and v: [heads, dim] of one position.
  void write(int64_t layer, int64_t position, const float* k, const float* v) {
    for (int64_t h = 0; h < heads_; ++h) {
      std::copy_n(k + h * dim_, dim_, keys_.data() + at(layer, h, position));
      std::copy_n(v + h * dim_, dim_, values_.data() + at(layer, h, position));
    }
  }

 private:
  int64_t at(int64_t layer, int64_t head, int64_t position) const {
    return ((layer * heads_ + head) * capacity_ + position) * dim_;
  }

  int64_t layers_;
  int64_t heads_;
  int64_t dim_;
  int64_t capacity_ = 0;
  std::vector<float> keys_, values_;  // [layers, heads, capacity, dim]
};

Result<std::unique_ptr<DFlashDrafter>> DFlashDrafter::load(const std::string& folder,
                                                           const TargetModel& target) {
  auto config = read_dflash_config(folder, target.config());
  KDTREE_RETURN_IF_ERROR(config);
  auto weights = Weights::open(folder);
  KDTREE_RETURN_IF_ERROR(weights);
  std::unique_ptr<DFlashDrafter> drafter(new DFlashDrafter(target));
  drafter->config_ = *std::move(config);
  drafter->weights_ = *std::move(weights);
  const DFlashConfig& c = drafter->config_;
  const std::string prefix = drafter->weight_prefix();
  const auto fc = drafter->weights_.matrix(prefix + "fc.weight", c.hidden_size,
                                           c.hidden_size * static_cast<int64_t>(c.target_layers.size()));
  KDTREE_RETURN_IF_ERROR(fc);
  drafter->fc_ = *fc;
  auto hidden_norm = drafter->weights_.vector(prefix + "hidden_norm.weight", c.hidden_size);
  KDTREE_RETURN_IF_ERROR(hidden_norm);
  drafter->hidden_norm_ = *std::move(hidden_norm);
  auto norm = drafter->weights_.vector(prefix + "norm.weight", c.hidden_size);
  KDTREE_RETURN_IF_ERROR(norm);
  drafter->norm_ = *std::move(norm);
  drafter->layers_.resize(static_cast<size_t>(c.layers));
  for (int64_t i = 0; i < c.layers; ++i)
    KDTREE_RETURN_IF_ERROR(drafter->load_layer(i));
  return drafter;
}

std::string DFlashDrafter::weight_prefix() const {
  return weights_.has("model.fc.weight") ? "model." : "";
}

Status DFlashDrafter::load_layer(int64_t index) {
  const DFlashConfig& c = config_;
  Layer& layer = layers_[static_cast<size_t>(index)];
  const std::string prefix = fmt::format("{}layers.{}.", weight_prefix(), index);
  const struct {
    const char* name;
    Matrix* to;
    int64_t rows;
    int64_t columns;
  } matrices[] = {{"self_attn.q_proj", &layer.q, c.heads * c.head_dim, c.hidden_size},
                  {"self_attn.k_proj", &layer.k, c.kv_heads * c.head_dim, c.hidden_size},
                  {"self_attn.v_proj", &layer.v, c.kv_heads * c.head_dim, c.hidden_size},
                  {"self_attn.o_proj", &layer.o, c.hidden_size, c.heads * c.head_dim},
                  {"mlp.gate_proj", &layer.mlp.gate, c.intermediate_size, c.hidden_size},
                  {"mlp.up_proj", &layer.mlp.up, c.intermediate_size, c.hidden_size},
                  {"mlp.down_proj", &layer.mlp.down, c.hidden_size, c.intermediate_size}};
  for (const auto& [name, to, rows, columns] : matrices) {
    const auto matrix = weights_.matrix(fmt::format("{}{}.weight", prefix, name), rows, columns);
    KDTREE_RETURN_IF_ERROR(matrix);
    *to = *matrix;
  }
  const struct {
    const char* name;
    std::vector<float>* to;
    int64_t size;
  } norms[] = {{"input_layernorm", &layer.attention_norm, c.hidden_size},
               {"self_attn.q_norm", &layer.q_norm, c.head_dim},
               {"self_attn.k_norm", &layer.k_norm, c.head_dim},
               {"post_attention_layernorm", &layer.mlp_norm, c.hidden_size}};
  for (const auto& [name, to, size] : norms) {
    auto vector = weights_.vector(fmt::format("{}{}.weight", prefix, name), size);
    KDTREE_RETURN_IF_ERROR(vector);
    *to = *std::move(vector);
  }
  return {};
}

std::unique_ptr<DraftState> DFlashDrafter::start() const {
  return std::make_unique<Cache>(config_);
}

std::unique_ptr<DraftState> DFlashDrafter::fork(DraftState& state, int64_t length) {
  auto& cache = static_cast<Cache&>(state);
  compute_pending(cache);
  auto copy = std::make_unique<Cache>(cache);
  copy->length = length;
  return copy;
}

void DFlashDrafter::extend(DraftState& state, std::span<const int32_t> tokens,
                           std::span<const float> features) {
  auto& cache = static_cast<Cache&>(state);
  cache.pending.insert(cache.pending.end(), features.begin(), features.end());
  cache.pending_rows += static_cast<int64_t>(tokens.size());
  if (cache.pending_rows > kMostPending) compute_pending(cache);
}

// The keys and values of committed tokens, from the target's features.
void DFlashDrafter::compute_pending(Cache& cache) {
  const DFlashConfig& c = config_;
  const int64_t rows = cache.pending_rows;
  const int64_t width = c.kv_heads * c.head_dim;
  if (rows == 0) return;
  cache.reserve(cache.length + rows + c.block_size);
  context_.resize(static_cast<size_t>(rows * c.hidden_size));
  k_.resize(static_cast<size_t>(rows * width));
  v_.resize(k_.size());
  const LinearTask project[] = {
      {cache.pending.data(), fc_.columns, rows, fc_, context_.data(), c.hidden_size}};
  linear(project);
  for (int64_t r = 0; r < rows; ++r) {
    float* row = context_.data() + r * c.hidden_size;
    best_ops_target().rms_norm(row, hidden_norm_.data(), c.norm_eps, c.hidden_size, row);
  }
  for (int64_t i = 0; i < c.layers; ++i) {
    const Layer& layer = layers_[static_cast<size_t>(i)];
    const LinearTask tasks[] = {{context_.data(), c.hidden_size, rows, layer.k, k_.data(), width},
                                {context_.data(), c.hidden_size, rows, layer.v, v_.data(), width}};
    linear(tasks);
    for (int64_t r = 0; r < rows; ++r) {
      norm_and_rotate(layer.k_norm, c.kv_heads, cache.length + r, k_.data() + r * width);
      cache.write(i, cache.length + r, k_.data() + r * width, v_.data() + r * width);
    }
  }
  cache.length += rows;
  cache.pending_rows = 0;
  cache.pending.clear();
}

void DFlashDrafter::norm_and_rotate(const std::vector<float>& norm, int64_t heads, int64_t position,
                                    float* x) const {
  const auto half = static_cast<size_t>(config_.head_dim / 2);
  std::vector<float> cosine(half), sine(half);
  config_.rope.angles(position, cosine.data(), sine.data());
  for (int64_t h = 0; h < heads; ++h) {
    float* head = x + h * config_.head_dim;
    best_ops_target().rms_norm(head, norm.data(), config_.norm_eps, config_.head_dim, head);
    config_.rope.rotate(head, cosine.data(), sine.data());
  }
}

std::span<const float> DFlashDrafter::propose(std::span<const DraftQuery> queries) {
  const DFlashConfig& c = config_;
  const int64_t rows = static_cast<int64_t>(queries.size()) * c.block_size;
  std::vector<Block> blocks;
  std::vector<int32_t> tokens;
  for (const DraftQuery& query : queries) {
    auto& cache = static_cast<Cache&>(*query.state);
    compute_pending(cache);
    cache.reserve(cache.length + c.block_size);
    blocks.push_back({&cache, static_cast<int64_t>(tokens.size())});
    tokens.push_back(query.root_token);
    tokens.resize(tokens.size() + static_cast<size_t>(c.block_size) - 1, c.mask_token);
  }
  for (std::vector<float>* memory : {&hidden_, &normed_, &update_})
    memory->resize(static_cast<size_t>(rows * c.hidden_size));
  target_.embed(tokens, hidden_.data());
  for (int64_t i = 0; i < c.layers; ++i) {
    const Layer& layer = layers_[static_cast<size_t>(i)];
    attention(i, blocks);
    for (int64_t r = 0; r < rows; ++r) {
      best_ops_target().rms_norm(hidden_.data() + r * c.hidden_size, layer.mlp_norm.data(), c.norm_eps,
                                 c.hidden_size, normed_.data() + r * c.hidden_size);
    }
    mlp_forward(layer.mlp, normed_, rows, update_.data(), mlp_);
    std::transform(hidden_.begin(), hidden_.end(), update_.begin(), hidden_.begin(), std::plus<>());
  }
  // The first row of each block is the last token's own: it proposes nothing.
  int64_t proposed = 0;
  for (int64_t r = 0; r < rows; ++r) {
    if (r % c.block_size == 0) continue;
    best_ops_target().rms_norm(hidden_.data() + r * c.hidden_size, norm_.data(), c.norm_eps, c.hidden_size,
                               normed_.data() + proposed * c.hidden_size);
    ++proposed;
  }
  logits_.resize(static_cast<size_t>(proposed * target_.config().vocab_size));
  target_.head(normed_, proposed, logits_.data());
  return logits_;
}

void DFlashDrafter::attention(int64_t index, std::span<const Block> blocks) {
  const DFlashConfig& c = config_;
  const Layer& layer = layers_[static_cast<size_t>(index)];
  const int64_t rows = static_cast<int64_t>(blocks.size()) * c.block_size;
  const int64_t q_width = c.heads * c.head_dim;
  const int64_t kv_width = c.kv_heads * c.head_dim;
  for (int64_t r = 0; r < rows; ++r) {
    best_ops_target().rms_norm(hidden_.data() + r * c.hidden_size, layer.attention_norm.data(), c.norm_eps,
                               c.hidden_size, normed_.data() + r * c.hidden_size);
  }
  q_.resize(static_cast<size_t>(rows * q_width));
  attended_.resize(q_.size());
  k_.resize(static_cast<size_t>(rows * kv_width));
  v_.resize(k_.size());
  const LinearTask in[] = {{normed_.data(), c.hidden_size, rows, layer.q, q_.data(), q_width},
                           {normed_.data(), c.hidden_size, rows, layer.k, k_.data(), kv_width},
                           {normed_.data(), c.hidden_size, rows, layer.v, v_.data(), kv_width}};
  linear(in);
  for (const Block& block : blocks) {
    for (int64_t i = 0; i < c.block_size; ++i) {
      const int64_t r = block.row + i;
      const int64_t position = block.cache->length + i;
      norm_and_rotate(layer.q_norm, c.heads, position, q_.data() + r * q_width);
      norm_and_rotate(layer.k_norm, c.kv_heads, position, k_.data() + r * kv_width);
      block.cache->write(index, position, k_.data() + r * kv_width, v_.data() + r * kv_width);
    }
  }
  attend(index, blocks);
  const LinearTask out[] = {{attended_.data(), q_width, rows, layer.o, update_.data(), c.hidden_size}};
  linear(out);
  std::transform(hidden_.begin(), hidden_.end(), update_.begin(), hidden_.begin(), std::plus<>());
}

// softmax(q k^T / sqrt(dim)) v, every position of a block over all committed ones and the block.
void DFlashDrafter::attend(int64_t index, std::span<const Block> blocks) {
  const DFlashConfig& c = config_;
  const int64_t q_width = c.heads * c.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  std::vector<int64_t> first;  // scores of each block
  int64_t size = 0;
  for (const Block& block : blocks) {
    first.push_back(size);
    size += c.heads * c.block_size * (block.cache->length + c.block_size);
  }
  scores_.resize(static_cast<size_t>(size));
  // task(block, head, key head, scores, positions) for every head of every block.
  const auto run = [&](const auto& task) {
    tasks_.clear();
    for (size_t b = 0; b < blocks.size(); ++b) {
      const int64_t positions = blocks[b].cache->length + c.block_size;
      for (int64_t h = 0; h < c.heads; ++h) {
        float* scores = scores_.data() + first[b] + h * c.block_size * positions;
        tasks_.push_back(task(blocks[b], h, h / (c.heads / c.kv_heads), scores, positions));
      }
    }
    linear(tasks_);
  };
  run([&](const Block& block, int64_t head, int64_t kv_head, float* scores, int64_t positions) {
    return LinearTask{q_.data() + block.row * q_width + head * c.head_dim, q_width, c.block_size,
                      block.cache->keys(index, kv_head, positions),        scores,  positions};
  });
  for (size_t b = 0; b < blocks.size(); ++b) {
    const int64_t positions = blocks[b].cache->length + c.block_size;
    parallel_rows(c.heads * c.block_size, positions, [&](int64_t row) {
      float* scores = scores_.data() + first[b] + row * positions;
      for (int64_t i = 0; i < positions; ++i)
        scores[i] *= scale;
      best_ops_target().softmax(scores, positions);
    });
  }
  run([&](const Block& block, int64_t head, int64_t kv_head, float* scores, int64_t positions) {
    return LinearTask{scores,
                      positions,
                      c.block_size,
                      block.cache->values(index, kv_head, positions),
                      attended_.data() + block.row * q_width + head * c.head_dim,
                      q_width,
                      /*turned=*/true};
  });
}

}  // namespace kdtree
