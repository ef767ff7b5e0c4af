#include "model/dflash.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/checked.h"
#include "core/parallel.h"

namespace kdtree {
namespace {

constexpr int64_t kMostSize = int64_t{1} << 24;
// Features (floats of one request) that wait for the next proposal, so that many rounds share one pass; a
// request that ends in plain rounds never pays for it.
constexpr size_t kMostPending = size_t{1} << 21;

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
  const auto min_block =
      holder_of("min_block_size", *dflash, *config).integer("min_block_size", 2, c.block_size, c.block_size);
  KDTREE_RETURN_IF_ERROR(min_block);
  c.min_block_size = *min_block;
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
  Cache(const DFlashConfig& config, std::shared_ptr<Spare> spare)
      : spare_(std::move(spare)),
        layers_(config.layers),
        heads_(config.kv_heads),
        dim_(config.head_dim),
        value_stride_(ceil_div(dim_, kPanel) * kPanel) {
    if (spare_->empty()) return;
    pending = std::move(spare_->back());
    spare_->pop_back();
  }
  Cache(const Cache&) = default;
  Cache& operator=(const Cache&) = delete;
  ~Cache() override {
    pending.clear();
    if (spare_->size() < kMostSpare) spare_->push_back(std::move(pending));
  }

  std::vector<float> pending;  // features of committed tokens that are not among the keys yet
  int64_t pending_rows = 0;
  int64_t length = 0;  // committed positions

  // Makes room for `positions`.
  void reserve(int64_t positions) {
    if (positions <= capacity_) return;
    const int64_t capacity = ceil_div(std::max(positions, 2 * capacity_), kPanel) * kPanel;
    grow(keys_, heads_ * dim_, length, capacity_, capacity);
    grow(values_, heads_, length * value_stride_, capacity_ * value_stride_, capacity * value_stride_);
    capacity_ = capacity;
  }

  // As weights: of scores, [dim, positions], and of what is attended, [positions, dim].
  Panels keys(int64_t layer, int64_t head, int64_t positions) const {
    return Panels::of({keys_.data() + key_at(layer, head), DType::f32, dim_, positions, capacity_});
  }
  Panels values(int64_t layer, int64_t head, int64_t positions) const {
    return Panels::of({values_.data() + value_at(layer, head), DType::f32, positions, dim_, value_stride_});
  }

  // k and v: [heads, dim] of one position.
  void write(int64_t layer, int64_t position, const float* k, const float* v) {
    for (int64_t h = 0; h < heads_; ++h) {
      float* key = keys_.data() + key_at(layer, h) + position;
      for (int64_t d = 0; d < dim_; ++d)
        key[d * capacity_] = k[h * dim_ + d];
      std::copy_n(v + h * dim_, dim_, values_.data() + value_at(layer, h) + position * value_stride_);
    }
  }

 private:
  static constexpr size_t kMostSpare = 8;

  // Keeps the first `used` floats of each of layers * count rows.
  void grow(std::vector<float>& memory, int64_t count, int64_t used, int64_t from, int64_t to) const {
    std::vector<float> grown(static_cast<size_t>(layers_ * count * to));
    for (int64_t i = 0; i < layers_ * count; ++i)
      std::copy_n(memory.data() + i * from, used, grown.data() + i * to);
    memory = std::move(grown);
  }
  int64_t key_at(int64_t layer, int64_t head) const { return (layer * heads_ + head) * dim_ * capacity_; }
  int64_t value_at(int64_t layer, int64_t head) const {
    return (layer * heads_ + head) * capacity_ * value_stride_;
  }

  std::shared_ptr<Spare> spare_;
  int64_t layers_;
  int64_t heads_;
  int64_t dim_;
  int64_t value_stride_;
  int64_t capacity_ = 0;
  std::vector<float> keys_;    // [layers, heads, dim, capacity]
  std::vector<float> values_;  // [layers, heads, capacity, value stride]
};

Result<std::unique_ptr<DFlashDrafter>> DFlashDrafter::load(const std::string& folder,
                                                           const TargetModel& target, Products products) {
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
  drafter->fc_ = Packed(*fc, products);
  auto hidden_norm = drafter->weights_.vector(prefix + "hidden_norm.weight", c.hidden_size);
  KDTREE_RETURN_IF_ERROR(hidden_norm);
  drafter->hidden_norm_ = *std::move(hidden_norm);
  auto norm = drafter->weights_.vector(prefix + "norm.weight", c.hidden_size);
  KDTREE_RETURN_IF_ERROR(norm);
  drafter->norm_ = *std::move(norm);
  drafter->layers_.resize(static_cast<size_t>(c.layers));
  for (int64_t i = 0; i < c.layers; ++i)
    KDTREE_RETURN_IF_ERROR(drafter->load_layer(i, products));
  return drafter;
}

std::string DFlashDrafter::weight_prefix() const {
  return weights_.has("model.fc.weight") ? "model." : "";
}

Status DFlashDrafter::load_layer(int64_t index, Products products) {
  const DFlashConfig& c = config_;
  Layer& layer = layers_[static_cast<size_t>(index)];
  const std::string prefix = fmt::format("{}layers.{}.", weight_prefix(), index);
  const struct {
    const char* name;
    Packed* to;
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
    *to = Packed(*matrix, products);
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
  return std::make_unique<Cache>(config_, spare_);
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
  if (cache.pending.size() > kMostPending) with_team([&] { compute_pending(cache); });
}

// The keys and values of committed tokens, from the target's features.
void DFlashDrafter::compute_pending(Cache& cache) {
  const DFlashConfig& c = config_;
  const int64_t rows = cache.pending_rows;
  const int64_t width = c.kv_heads * c.head_dim;
  if (rows == 0) return;
  cache.reserve(cache.length + rows + c.block_size);
  context_.resize(static_cast<size_t>(rows * c.hidden_size));
  k_.resize(static_cast<size_t>(c.layers * rows * width));
  v_.resize(k_.size());
  const LinearTask project[] = {
      {cache.pending.data(), fc_.panels().inputs, rows, fc_.panels(), context_.data(), c.hidden_size}};
  linear(project);
  norm_rows(hidden_norm_, rows, context_.data(), context_.data());
  tasks_.clear();
  for (int64_t i = 0; i < c.layers; ++i) {
    const Layer& layer = layers_[static_cast<size_t>(i)];
    for (const auto& [weight, to] : {std::pair(&layer.k, &k_), std::pair(&layer.v, &v_)})
      tasks_.push_back(
          {context_.data(), c.hidden_size, rows, weight->panels(), to->data() + i * rows * width, width});
  }
  linear(tasks_);
  prepare_angles(rows);
  parallel_rows(rows, c.layers * width, [&](int64_t r) {
    angles(cache.length + r, r);
    for (int64_t i = 0; i < c.layers; ++i) {
      float* k = k_.data() + (i * rows + r) * width;
      norm_and_rotate(layers_[static_cast<size_t>(i)].k_norm, c.kv_heads, r, k);
      cache.write(i, cache.length + r, k, v_.data() + (i * rows + r) * width);
    }
  });
  cache.length += rows;
  cache.pending_rows = 0;
  cache.pending.clear();
}

// Rows of `x` to rows of `out`, [rows, hidden] both.
void DFlashDrafter::norm_rows(const std::vector<float>& norm, int64_t rows, const float* x,
                              float* out) const {
  const int64_t hidden = config_.hidden_size;
  parallel_rows(rows, hidden, [&](int64_t r) {
    best_ops_target().rms_norm(x + r * hidden, norm.data(), config_.norm_eps, hidden, out + r * hidden);
  });
}

void DFlashDrafter::prepare_angles(int64_t rows) {
  cosine_.resize(static_cast<size_t>(rows * config_.head_dim / 2));
  sine_.resize(cosine_.size());
}

void DFlashDrafter::angles(int64_t position, int64_t row) {
  const int64_t at = row * config_.head_dim / 2;
  config_.rope.angles(position, cosine_.data() + at, sine_.data() + at);
}

// The heads of one row, whose angles are known.
void DFlashDrafter::norm_and_rotate(const std::vector<float>& norm, int64_t heads, int64_t row,
                                    float* x) const {
  const int64_t at = row * config_.head_dim / 2;
  for (int64_t h = 0; h < heads; ++h) {
    float* head = x + h * config_.head_dim;
    best_ops_target().rms_norm(head, norm.data(), config_.norm_eps, config_.head_dim, head);
    config_.rope.rotate(head, cosine_.data() + at, sine_.data() + at);
  }
}

std::span<const float> DFlashDrafter::propose(std::span<const DraftQuery> queries, int64_t depth) {
  return with_team([&] { return run(queries, depth + 1); });
}

std::span<const float> DFlashDrafter::run(std::span<const DraftQuery> queries, int64_t block_size) {
  const DFlashConfig& c = config_;
  const int64_t rows = static_cast<int64_t>(queries.size()) * block_size;
  std::vector<Block> blocks;
  std::vector<int32_t> tokens;
  for (const DraftQuery& query : queries) {
    auto& cache = static_cast<Cache&>(*query.state);
    compute_pending(cache);
    cache.reserve(cache.length + block_size);
    blocks.push_back({&cache, static_cast<int64_t>(tokens.size())});
    tokens.push_back(query.root_token);
    tokens.resize(tokens.size() + static_cast<size_t>(block_size) - 1, c.mask_token);
  }
  for (std::vector<float>* memory : {&hidden_, &normed_, &update_})
    memory->resize(static_cast<size_t>(rows * c.hidden_size));
  target_.embed(tokens, hidden_.data());
  prepare_angles(rows);
  parallel_rows(rows, c.head_dim, [&](int64_t r) {
    angles(blocks[static_cast<size_t>(r / block_size)].cache->length + r % block_size, r);
  });
  for (int64_t i = 0; i < c.layers; ++i) {
    const Layer& layer = layers_[static_cast<size_t>(i)];
    attention(i, blocks, block_size);
    norm_rows(layer.mlp_norm, rows, hidden_.data(), normed_.data());
    mlp_forward(layer.mlp, normed_, rows, update_.data(), mlp_);
    std::transform(hidden_.begin(), hidden_.end(), update_.begin(), hidden_.begin(), std::plus<>());
  }
  // The first row of each block is the last token's own: it proposes nothing.
  int64_t proposed = 0;
  for (int64_t r = 0; r < rows; ++r) {
    if (r % block_size == 0) continue;
    best_ops_target().rms_norm(hidden_.data() + r * c.hidden_size, norm_.data(), c.norm_eps, c.hidden_size,
                               normed_.data() + proposed * c.hidden_size);
    ++proposed;
  }
  logits_.resize(static_cast<size_t>(proposed * target_.config().vocab_size));
  target_.head(normed_, proposed, logits_.data());
  return logits_;
}

void DFlashDrafter::attention(int64_t index, std::span<const Block> blocks, int64_t block_size) {
  const DFlashConfig& c = config_;
  const Layer& layer = layers_[static_cast<size_t>(index)];
  const int64_t rows = static_cast<int64_t>(blocks.size()) * block_size;
  const int64_t q_width = c.heads * c.head_dim;
  const int64_t kv_width = c.kv_heads * c.head_dim;
  norm_rows(layer.attention_norm, rows, hidden_.data(), normed_.data());
  q_.resize(static_cast<size_t>(rows * q_width));
  attended_.resize(q_.size());
  k_.resize(static_cast<size_t>(rows * kv_width));
  v_.resize(k_.size());
  const LinearTask in[] = {{normed_.data(), c.hidden_size, rows, layer.q.panels(), q_.data(), q_width},
                           {normed_.data(), c.hidden_size, rows, layer.k.panels(), k_.data(), kv_width},
                           {normed_.data(), c.hidden_size, rows, layer.v.panels(), v_.data(), kv_width}};
  linear(in);
  // Scores are scaled through their queries.
  const float scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  parallel_rows(rows, q_width + kv_width, [&](int64_t r) {
    float* q = q_.data() + r * q_width;
    norm_and_rotate(layer.q_norm, c.heads, r, q);
    std::transform(q, q + q_width, q, [scale](float x) { return x * scale; });
    norm_and_rotate(layer.k_norm, c.kv_heads, r, k_.data() + r * kv_width);
    Cache& cache = *blocks[static_cast<size_t>(r / block_size)].cache;
    cache.write(index, cache.length + r % block_size, k_.data() + r * kv_width, v_.data() + r * kv_width);
  });
  attend(index, blocks, block_size);
  const LinearTask out[] = {
      {attended_.data(), q_width, rows, layer.o.panels(), update_.data(), c.hidden_size}};
  linear(out);
  std::transform(hidden_.begin(), hidden_.end(), update_.begin(), hidden_.begin(), std::plus<>());
}

// softmax(q k^T) v, every position of a block over all committed ones and the block.
void DFlashDrafter::attend(int64_t index, std::span<const Block> blocks, int64_t block_size) {
  const DFlashConfig& c = config_;
  const int64_t q_width = c.heads * c.head_dim;
  std::vector<int64_t> first;  // scores of each block
  int64_t size = 0;
  for (const Block& block : blocks) {
    first.push_back(size);
    size += c.heads * block_size * (block.cache->length + block_size);
  }
  scores_.resize(static_cast<size_t>(size));
  // task(block, head, key head, scores, positions) for every head of every block.
  const auto run = [&](const auto& task) {
    tasks_.clear();
    for (size_t b = 0; b < blocks.size(); ++b) {
      const int64_t positions = blocks[b].cache->length + block_size;
      for (int64_t h = 0; h < c.heads; ++h) {
        float* scores = scores_.data() + first[b] + h * block_size * positions;
        tasks_.push_back(task(blocks[b], h, h / (c.heads / c.kv_heads), scores, positions));
      }
    }
    linear(tasks_);
  };
  run([&](const Block& block, int64_t head, int64_t kv_head, float* scores, int64_t positions) {
    const float* q = q_.data() + block.row * q_width + head * c.head_dim;
    return LinearTask{q,      q_width,  block_size, block.cache->keys(index, kv_head, positions),
                      scores, positions};
  });
  for (size_t b = 0; b < blocks.size(); ++b) {
    const int64_t positions = blocks[b].cache->length + block_size;
    parallel_rows(c.heads * block_size, positions, [&](int64_t row) {
      best_ops_target().softmax(scores_.data() + first[b] + row * positions, positions);
    });
  }
  run([&](const Block& block, int64_t head, int64_t kv_head, float* scores, int64_t positions) {
    float* out = attended_.data() + block.row * q_width + head * c.head_dim;
    return LinearTask{scores, positions, block_size, block.cache->values(index, kv_head, positions),
                      out,    q_width};
  });
}

}  // namespace kdtree
