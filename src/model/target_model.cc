#include "model/target_model.h"

#include <algorithm>

#include "attention/backend.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "io/mapped_file.h"
#include "model/ops.h"

namespace kdtree {
namespace {

// Of the norms inside attention: Hugging Face's implementation does not take these from the configuration.
constexpr float kInnerNormEps = 1e-6f;

}  // namespace

struct TargetModel::Layer {
  std::vector<float> attention_norm;
  Packed q;    // [heads * (nope + rope), hidden], or, with q_lora_rank, [q_lora_rank, hidden]
  Packed q_b;  // [heads * (nope + rope), q_lora_rank]
  std::vector<float> q_norm;
  Packed kv;  // [latent + rope, hidden]
  std::vector<float> kv_norm;
  std::vector<Packed> k_b;  // of each head, turned: [latent, nope]
  std::vector<Packed> v_b;  // of each head [value, latent]
  Packed o;                 // [hidden, heads * value]
  std::vector<float> mlp_norm;
  Mlp mlp;  // of a dense layer
  Moe moe;  // of any other
  bool is_moe = false;
};

// One forward pass's rows.
struct TargetModel::Scratch {
  std::vector<float> hidden, normed, update;  // [T, hidden]
  std::vector<float> q_low;                   // [T, q_lora_rank]
  std::vector<float> q;                       // [T, heads * (nope + rope)]
  std::vector<float> kv;                      // [T, latent + rope]
  std::vector<float> absorbed;                // [T, heads, latent + rope]
  std::vector<uint16_t> absorbed_bf16;        // the same, for attention in bf16
  std::vector<float> attended;                // [T, heads, latent]
  std::vector<float> values;                  // [T, heads * value]
  std::vector<float> cosine, sine;            // [T, rope / 2]
  std::vector<float> features;                // [T, feature layers * hidden]
  std::vector<float> logits;                  // [logit rows, vocab]
  std::vector<std::byte> workspace;
  std::vector<LinearTask> tasks;
  MlpScratch mlp;
};

void ForwardBatch::clear() {
  *this = ForwardBatch{};
}

TargetModel::TargetModel() : scratch_(std::make_unique<Scratch>()) {}
TargetModel::TargetModel(TargetModel&&) noexcept = default;
TargetModel& TargetModel::operator=(TargetModel&&) noexcept = default;
TargetModel::~TargetModel() = default;

Result<TargetModel> TargetModel::load(const std::string& folder, Products products) {
  TargetModel model;
  model.folder_ = folder;
  model.wanted_ = products;
  auto config = read_model_config(folder);
  KDTREE_RETURN_IF_ERROR(config);
  model.config_ = *std::move(config);
  auto weights = Weights::open(folder);
  KDTREE_RETURN_IF_ERROR(weights);
  model.weights_ = *std::move(weights);

  const ModelConfig& c = model.config_;
  const std::string prefix = c.weight_prefix + "model.";
  auto embedding = model.weights_.matrix(prefix + "embed_tokens.weight", c.vocab_size, c.hidden_size);
  KDTREE_RETURN_IF_ERROR(embedding);
  model.embedding_ = *embedding;
  const auto head =
      c.tied_head ? embedding
                  : model.weights_.matrix(c.weight_prefix + "lm_head.weight", c.vocab_size, c.hidden_size);
  KDTREE_RETURN_IF_ERROR(head);
  model.head_ = model.packed(*head);
  auto norm = model.weights_.vector(prefix + "norm.weight", c.hidden_size);
  KDTREE_RETURN_IF_ERROR(norm);
  model.norm_ = *std::move(norm);
  model.layers_.resize(static_cast<size_t>(c.layers));
  for (int64_t i = 0; i < c.layers; ++i)
    KDTREE_RETURN_IF_ERROR(model.load_layer(i));
  return model;
}

Status TargetModel::load_layer(int64_t index) {
  const ModelConfig& c = config_;
  const std::string prefix = fmt::format("{}model.layers.{}.", c.weight_prefix, index);
  Layer& layer = layers_[static_cast<size_t>(index)];
  KDTREE_RETURN_IF_ERROR(load_attention(prefix, layer));
  auto norm = weights_.vector(prefix + "post_attention_layernorm.weight", c.hidden_size);
  KDTREE_RETURN_IF_ERROR(norm);
  layer.mlp_norm = *std::move(norm);
  layer.is_moe = c.moe.experts > 0 && index >= c.moe.first_layer;
  if (!layer.is_moe) return load_mlp(prefix + "mlp.", c.intermediate_size, layer.mlp);

  const auto router = weights_.matrix(prefix + "mlp.gate.weight", c.moe.experts, c.hidden_size);
  KDTREE_RETURN_IF_ERROR(router);
  layer.moe.router = Packed(*router);  // in fp32, as everywhere: a bit may mean other experts
  auto bias = weights_.vector(prefix + "mlp.gate.e_score_correction_bias", c.moe.experts);
  KDTREE_RETURN_IF_ERROR(bias);
  layer.moe.bias = *std::move(bias);
  layer.moe.experts.resize(static_cast<size_t>(c.moe.experts));
  for (int64_t e = 0; e < c.moe.experts; ++e) {
    KDTREE_RETURN_IF_ERROR(load_mlp(fmt::format("{}mlp.experts.{}.", prefix, e), c.moe.intermediate_size,
                                    layer.moe.experts[static_cast<size_t>(e)]));
  }
  if (c.moe.shared_experts == 0) return {};
  return load_mlp(prefix + "mlp.shared_experts.", c.moe.intermediate_size * c.moe.shared_experts,
                  layer.moe.shared);
}

Status TargetModel::load_attention(const std::string& prefix, Layer& layer) {
  const ModelConfig& c = config_;
  const int64_t head_rows = c.nope_dim + c.value_dim;
  const auto kv_b = weights_.matrix(prefix + "self_attn.kv_b_proj.weight", c.heads * head_rows, c.latent_dim);
  KDTREE_RETURN_IF_ERROR(kv_b);
  for (int64_t h = 0; h < c.heads; ++h) {
    layer.k_b.push_back(packed(kv_b->slice(h * head_rows, c.nope_dim).turned()));
    layer.v_b.push_back(packed(kv_b->slice(h * head_rows + c.nope_dim, c.value_dim)));
  }
  const int64_t query_width = c.heads * (c.nope_dim + c.rope_dim);
  const struct {
    const char* name;
    Packed* to;
    int64_t rows;
    int64_t columns;
  } matrices[] = {
      {c.q_lora_rank > 0 ? "q_a_proj" : "q_proj", &layer.q, c.q_lora_rank > 0 ? c.q_lora_rank : query_width,
       c.hidden_size},
      {"q_b_proj", &layer.q_b, query_width, c.q_lora_rank},
      {"kv_a_proj_with_mqa", &layer.kv, c.kv_width(), c.hidden_size},
      {"o_proj", &layer.o, c.hidden_size, c.heads * c.value_dim},
  };
  for (const auto& [name, to, rows, columns] : matrices) {
    if (columns == 0) continue;  // no q_lora_rank
    const auto matrix = weights_.matrix(fmt::format("{}self_attn.{}.weight", prefix, name), rows, columns);
    KDTREE_RETURN_IF_ERROR(matrix);
    *to = packed(*matrix);
  }
  const struct {
    const char* name;
    std::vector<float>* to;
    int64_t size;
  } norms[] = {{"input_layernorm", &layer.attention_norm, c.hidden_size},
               {"self_attn.q_a_layernorm", &layer.q_norm, c.q_lora_rank},
               {"self_attn.kv_a_layernorm", &layer.kv_norm, c.latent_dim}};
  for (const auto& [name, to, size] : norms) {
    if (size == 0) continue;
    auto vector = weights_.vector(fmt::format("{}{}.weight", prefix, name), size);
    KDTREE_RETURN_IF_ERROR(vector);
    *to = *std::move(vector);
  }
  return {};
}

Status TargetModel::load_mlp(const std::string& prefix, int64_t intermediate, Mlp& mlp) {
  const auto gate = weights_.matrix(prefix + "gate_proj.weight", intermediate, config_.hidden_size);
  KDTREE_RETURN_IF_ERROR(gate);
  const auto up = weights_.matrix(prefix + "up_proj.weight", intermediate, config_.hidden_size);
  KDTREE_RETURN_IF_ERROR(up);
  const auto down = weights_.matrix(prefix + "down_proj.weight", config_.hidden_size, intermediate);
  KDTREE_RETURN_IF_ERROR(down);
  mlp = {packed(*gate), packed(*up), packed(*down)};
  return {};
}

void TargetModel::set_feature_layers(std::vector<int64_t> layers) {
  feature_layers_ = std::move(layers);
}

void TargetModel::set_verify_hook(VerifyHook hook) {
  verify_hook_ = std::move(hook);
}

void TargetModel::embed(std::span<const int32_t> tokens, float* out) const {
  for (const int32_t token : tokens) {
    to_floats(embedding_.row(token), embedding_.dtype, config_.hidden_size, out);
    out += config_.hidden_size;
  }
}

void TargetModel::head(std::span<const float> hidden, int64_t rows, float* logits) const {
  const LinearTask task[] = {
      {hidden.data(), config_.hidden_size, rows, head_.panels(), logits, config_.vocab_size}};
  linear(task);
}

Result<ForwardOutput> TargetModel::forward(const ForwardBatch& batch, KvPool& pool) {
  return with_team([&] { return run(batch, pool); });
}

Result<ForwardOutput> TargetModel::run(const ForwardBatch& batch, KvPool& pool) {
  KDTREE_RETURN_IF_ERROR(check(batch));
  prepare(batch);
  embed(batch.tokens, scratch_->hidden.data());
  KDTREE_RETURN_IF_ERROR(attend(batch, 0, pool));
  return finish(batch, 0, pool);
}

Result<std::span<const float>> TargetModel::resume(const ForwardBatch& batch, KvPool& pool, int64_t layer,
                                                   std::span<const float> residual,
                                                   std::span<const float> attended) {
  if (layer < 0 || layer >= config_.layers) {
    return fail(KDTREE_INVALID_ARGUMENT, "layer is {}, expected 0 .. {}", layer, config_.layers - 1);
  }
  const auto rows = static_cast<size_t>(batch.rows());
  const auto check_width = [rows](const char* name, std::span<const float> values, int64_t width) -> Status {
    if (values.size() == rows * static_cast<size_t>(width)) return {};
    return fail(KDTREE_INVALID_ARGUMENT, "{} has {} elements, expected {} rows of {}", name, values.size(),
                rows, width);
  };
  KDTREE_RETURN_IF_ERROR(check_width("residual", residual, config_.hidden_size));
  KDTREE_RETURN_IF_ERROR(check_width("attended", attended, config_.heads * config_.latent_dim));
  prepare(batch);
  std::copy(residual.begin(), residual.end(), scratch_->hidden.begin());
  std::copy(attended.begin(), attended.end(), scratch_->attended.begin());
  const auto out = finish(batch, layer, pool);
  KDTREE_RETURN_IF_ERROR(out);
  return out->logits;
}

Result<std::string> TargetModel::fingerprint() const {
  const std::string path = folder_ + "/config.json";
  const auto config = MappedFile::open(path);
  KDTREE_RETURN_IF_ERROR(config);
  return fmt::format("{:016x}", weights_.hash(fnv1a(config->bytes())));
}

// Everything behind the attention of the first layer, which has filled `attended`.
Result<ForwardOutput> TargetModel::finish(const ForwardBatch& batch, int64_t first_layer, KvPool& pool) {
  Scratch& s = *scratch_;
  const int64_t rows = batch.rows();
  const int64_t hidden = config_.hidden_size;
  for (int64_t i = first_layer; i < config_.layers; ++i) {
    if (i > first_layer) KDTREE_RETURN_IF_ERROR(attend(batch, i, pool));
    add_attention(rows, layers_[static_cast<size_t>(i)]);
    feed_forward(rows, layers_[static_cast<size_t>(i)]);
    for (size_t f = 0; f < feature_layers_.size(); ++f) {
      if (feature_layers_[f] != i) continue;
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t to = (r * static_cast<int64_t>(feature_layers_.size()) + static_cast<int64_t>(f));
        std::copy_n(&s.hidden[static_cast<size_t>(r * hidden)], hidden,
                    &s.features[static_cast<size_t>(to * hidden)]);
      }
    }
  }
  const auto wanted = static_cast<int64_t>(batch.logit_rows.size());
  for (int64_t i = 0; i < wanted; ++i) {
    const int64_t row = batch.logit_rows[static_cast<size_t>(i)];
    best_ops_target().rms_norm(&s.hidden[static_cast<size_t>(row * hidden)], norm_.data(), config_.norm_eps,
                               hidden, &s.normed[static_cast<size_t>(i * hidden)]);
  }
  head(s.normed, wanted, s.logits.data());
  const auto width = static_cast<size_t>(hidden) * feature_layers_.size();
  return ForwardOutput{
      std::span(s.logits).first(static_cast<size_t>(wanted * config_.vocab_size)),
      std::span(s.features).first(static_cast<size_t>(rows) * width),
  };
}

Status TargetModel::check(const ForwardBatch& batch) const {
  for (size_t t = 0; t < batch.tokens.size(); ++t) {
    if (batch.tokens[t] >= 0 && batch.tokens[t] < config_.vocab_size) continue;
    return fail(KDTREE_INVALID_ARGUMENT, "tokens[{}] is {}, expected 0 .. {}", t, batch.tokens[t],
                config_.vocab_size - 1);
  }
  return {};
}

void TargetModel::prepare(const ForwardBatch& batch) {
  const ModelConfig& c = config_;
  const int64_t rows = batch.rows();
  Scratch& s = *scratch_;
  const struct {
    std::vector<float>* memory;
    int64_t width;
  } arrays[] = {
      {&s.hidden, c.hidden_size},
      {&s.normed, c.hidden_size},
      {&s.update, c.hidden_size},
      {&s.q_low, c.q_lora_rank},
      {&s.q, c.heads * (c.nope_dim + c.rope_dim)},
      {&s.kv, c.kv_width()},
      {&s.absorbed, c.heads * c.kv_width()},
      {&s.attended, c.heads * c.latent_dim},
      {&s.values, c.heads * c.value_dim},
      {&s.cosine, c.rope_dim / 2},
      {&s.sine, c.rope_dim / 2},
      {&s.features, c.hidden_size * static_cast<int64_t>(feature_layers_.size())},
  };
  for (const auto& [memory, width] : arrays)
    memory->resize(std::max(memory->size(), static_cast<size_t>(rows * width)));
  const auto logits = batch.logit_rows.size() * static_cast<size_t>(c.vocab_size);
  s.logits.resize(std::max(s.logits.size(), logits));
  for (int64_t t = 0; t < rows; ++t) {
    c.rope.angles(batch.positions[static_cast<size_t>(t)], &s.cosine[static_cast<size_t>(t * c.rope_dim / 2)],
                  &s.sine[static_cast<size_t>(t * c.rope_dim / 2)]);
  }
}

Status TargetModel::attend(const ForwardBatch& batch, int64_t index, KvPool& pool) {
  project(batch, layers_[static_cast<size_t>(index)], index, pool);
  return verify(batch, index, pool);
}

// What the heads attended to, through values and output projection, into the residual.
void TargetModel::add_attention(int64_t rows, const Layer& layer) {
  const ModelConfig& c = config_;
  Scratch& s = *scratch_;
  s.tasks.clear();
  for (int64_t h = 0; h < c.heads; ++h) {
    s.tasks.push_back({s.attended.data() + h * c.latent_dim, c.heads * c.latent_dim, rows,
                       layer.v_b[static_cast<size_t>(h)].panels(), s.values.data() + h * c.value_dim,
                       c.heads * c.value_dim});
  }
  linear(s.tasks);
  const LinearTask out[] = {
      {s.values.data(), c.heads * c.value_dim, rows, layer.o.panels(), s.update.data(), c.hidden_size}};
  linear(out);
  for (int64_t i = 0; i < rows * c.hidden_size; ++i)
    s.hidden[static_cast<size_t>(i)] += s.update[static_cast<size_t>(i)];
}

// The rows' absorbed queries (each head's nope part times the keys' half of kv_b), and their KV into the
// pool.
void TargetModel::project(const ForwardBatch& batch, const Layer& layer, int64_t index, KvPool& pool) {
  const ModelConfig& c = config_;
  const OpsTarget& ops = best_ops_target();
  const int64_t rows = batch.rows();
  const int64_t head_width = c.nope_dim + c.rope_dim;
  const int64_t q_width = c.heads * head_width;
  Scratch& s = *scratch_;
  parallel_rows(rows, c.hidden_size, [&](int64_t t) {
    ops.rms_norm(s.hidden.data() + t * c.hidden_size, layer.attention_norm.data(), c.norm_eps, c.hidden_size,
                 s.normed.data() + t * c.hidden_size);
  });
  const bool low_rank = c.q_lora_rank > 0;
  const LinearTask in[] = {
      {s.normed.data(), c.hidden_size, rows, layer.q.panels(), low_rank ? s.q_low.data() : s.q.data(),
       low_rank ? c.q_lora_rank : q_width},
      {s.normed.data(), c.hidden_size, rows, layer.kv.panels(), s.kv.data(), c.kv_width()},
  };
  linear(in);
  if (low_rank) {
    parallel_rows(rows, c.q_lora_rank, [&](int64_t t) {
      float* q = s.q_low.data() + t * c.q_lora_rank;
      ops.rms_norm(q, layer.q_norm.data(), kInnerNormEps, c.q_lora_rank, q);
    });
    const LinearTask up[] = {{s.q_low.data(), c.q_lora_rank, rows, layer.q_b.panels(), s.q.data(), q_width}};
    linear(up);
  }
  parallel_rows(rows, q_width, [&](int64_t t) {
    const float* cosine = s.cosine.data() + t * c.rope_dim / 2;
    const float* sine = s.sine.data() + t * c.rope_dim / 2;
    float* kv = s.kv.data() + t * c.kv_width();
    ops.rms_norm(kv, layer.kv_norm.data(), kInnerNormEps, c.latent_dim, kv);
    c.rope.rotate(kv + c.latent_dim, cosine, sine);
    pool.write(index, batch.slots[static_cast<size_t>(t)], {kv, static_cast<size_t>(c.kv_width())});
    for (int64_t h = 0; h < c.heads; ++h) {
      float* to = s.absorbed.data() + (t * c.heads + h) * c.kv_width() + c.latent_dim;
      std::copy_n(s.q.data() + t * q_width + h * head_width + c.nope_dim, c.rope_dim, to);
      c.rope.rotate(to, cosine, sine);
    }
  });
  s.tasks.clear();
  for (int64_t h = 0; h < c.heads; ++h) {
    s.tasks.push_back({s.q.data() + h * head_width, q_width, rows, layer.k_b[static_cast<size_t>(h)].panels(),
                       s.absorbed.data() + h * c.kv_width(), c.heads * c.kv_width()});
  }
  linear(s.tasks);
}

Status TargetModel::verify(const ForwardBatch& batch, int64_t index, KvPool& pool) {
  Scratch& s = *scratch_;
  VerifyProblem p = kdtree_init<VerifyProblem>();
  p.batch = static_cast<int32_t>(batch.qo_indptr.size()) - 1;
  p.heads = static_cast<int32_t>(config_.heads);
  p.latent_dim = static_cast<int32_t>(config_.latent_dim);
  p.rope_dim = static_cast<int32_t>(config_.rope_dim);
  p.plan = KDTREE_PLAN_INVARIANT;
  p.scale = config_.attention_scale;
  p.out_dtype = KDTREE_DTYPE_F32;
  p.out = s.attended.data();
  p.q_dtype = KDTREE_DTYPE_F32;
  p.q = s.absorbed.data();
  // Only then does the kernel multiply bf16.
  if (products() == Products::bf16 && pool.dtype() == DType::bf16) {
    const int64_t width = config_.heads * config_.kv_width();
    s.absorbed_bf16.resize(std::max(s.absorbed_bf16.size(), s.absorbed.size()));
    parallel_rows(batch.rows(), width, [&](int64_t t) {
      best_ops_target().round_to_bf16(s.absorbed.data() + t * width, width,
                                      s.absorbed_bf16.data() + t * width);
    });
    p.q_dtype = KDTREE_DTYPE_BF16;
    p.q = s.absorbed_bf16.data();
  }
  p.indptr_dtype = KDTREE_DTYPE_I32;
  p.qo_indptr = batch.qo_indptr.data();
  p.kv_indptr = batch.kv_indptr.data();
  p.kv = pool.layer(index);
  p.kv_slots = pool.slots();
  p.kv_dtype = static_cast<int32_t>(pool.dtype());
  p.kv_indices_dtype = KDTREE_DTYPE_I64;
  // An empty vector's pointer is null, which the kernel refuses even where nothing is read.
  p.kv_indices = batch.kv_indices.empty() ? batch.slots.data() : batch.kv_indices.data();
  p.draft_location = KDTREE_DRAFT_IN_POOL;
  p.draft_slots = batch.slots.data();
  p.tree_encoding = KDTREE_TREE_PARENTS;
  p.parents = batch.parents.data();
  const auto bytes = verify_workspace_size(p);
  if (!bytes) return tl::unexpected<Error>(bytes.error());
  s.workspace.resize(std::max(s.workspace.size(), *bytes + kdtree::Scratch::kAlignment));
  void* base = s.workspace.data();
  size_t room = s.workspace.size();
  std::align(kdtree::Scratch::kAlignment, 1, base, room);
  KDTREE_RETURN_IF_ERROR(run_verify(p, base, room, nullptr));
  if (!verify_hook_) return {};
  return verify_hook_(index, p,
                      std::span(s.hidden).first(static_cast<size_t>(batch.rows() * config_.hidden_size)));
}

void TargetModel::feed_forward(int64_t rows, const Layer& layer) {
  const int64_t hidden = config_.hidden_size;
  Scratch& s = *scratch_;
  parallel_rows(rows, hidden, [&](int64_t t) {
    best_ops_target().rms_norm(s.hidden.data() + t * hidden, layer.mlp_norm.data(), config_.norm_eps, hidden,
                               s.normed.data() + t * hidden);
  });
  if (layer.is_moe) {
    moe_forward(layer.moe, config_.moe, s.normed, rows, s.update.data(), s.mlp);
  } else {
    mlp_forward(layer.mlp, s.normed, rows, s.update.data(), s.mlp);
  }
  for (int64_t i = 0; i < rows * hidden; ++i)
    s.hidden[static_cast<size_t>(i)] += s.update[static_cast<size_t>(i)];
}

}  // namespace kdtree
