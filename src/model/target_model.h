// The model that speaks: DeepSeek-V3's transformer (arXiv 2405.04434, 2412.19437) on the host, rows in fp32,
// with absorbed attention through the verify kernel always. Decoding one token is a tree of one node, a
// prompt is a tree that is a chain. A row's outputs have the same bits whatever rows are computed with it.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/problem.h"
#include "model/config.h"
#include "model/kv_pool.h"
#include "model/moe.h"
#include "model/weights.h"

namespace kdtree {

// The rows of a ragged batch of trees; the conventions are those of kdtree_verify_attn_params.
struct ForwardBatch {
  std::vector<int32_t> tokens;      // [T] each in [0, vocabulary)
  std::vector<int64_t> positions;   // [T]
  std::vector<int32_t> parents;     // [T] local to the request
  std::vector<int64_t> slots;       // [T] where each row's KV goes, distinct
  std::vector<int32_t> qo_indptr;   // [b+1]
  std::vector<int32_t> kv_indptr;   // [b+1]
  std::vector<int64_t> kv_indices;  // [kv_indptr[b]] slots of the prefixes
  std::vector<int32_t> logit_rows;  // rows whose logits are wanted

  int64_t rows() const { return static_cast<int64_t>(tokens.size()); }
  void clear();
};

// Views of the model's memory, until its next forward().
struct ForwardOutput {
  std::span<const float> logits;    // [logit_rows, vocab]
  std::span<const float> features;  // [T, feature layers * hidden]
};

// One pass at a time: engines may take turns, in one thread.
class TargetModel {
 public:
  // bf16 products where weights are in bf16. Errors: those of read_model_config and Weights.
  static Result<TargetModel> load(const std::string& folder, Products products = Products::f32);
  TargetModel(TargetModel&&) noexcept;
  TargetModel& operator=(TargetModel&&) noexcept;
  ~TargetModel();

  const ModelConfig& config() const { return config_; }
  int64_t weight_bytes() const { return weights_.bytes(); }
  // Those of the head, which are what checkpoints have throughout, but for a router in fp32.
  Products products() const { return head_.panels().products; }

  // The layers whose outputs forward() returns as features, each in [0, layers).
  void set_feature_layers(std::vector<int64_t> layers);
  // Called for every layer, after its attention, with the arrays in place; an error ends the forward pass.
  // `residual` [T, hidden] is what the attention block's output is about to be added to.
  using VerifyHook =
      std::function<Status(int64_t layer, const VerifyProblem& problem, std::span<const float> residual)>;
  void set_verify_hook(VerifyHook hook);

  // Writes the rows' KV into the pool and computes them. Errors: KDTREE_INVALID_ARGUMENT naming the row of a
  // token that the vocabulary does not have; those of the verify kernel.
  Result<ForwardOutput> forward(const ForwardBatch& batch, KvPool& pool);

  // The rest of a forward pass behind the attention of `layer`, which gave `attended` [T, heads, latent],
  // with the residual of that moment; the pool has the prefixes of the layers behind it. Returns logits
  // [logit_rows, vocab], those of forward() bit for bit where the arguments are. Tokens are not read. Errors:
  // KDTREE_INVALID_ARGUMENT for a layer that the model does not have, or arrays of another length.
  Result<std::span<const float>> resume(const ForwardBatch& batch, KvPool& pool, int64_t layer,
                                        std::span<const float> residual, std::span<const float> attended);

  // 16 hexadecimal digits that tell this checkpoint from others: a hash of config.json and of every weight's
  // name, shape and bytes. Reads them all.
  Result<std::string> fingerprint() const;

  // What a drafter borrows: the embedding of tokens [n, hidden], and the head's logits [rows, vocab] of
  // hidden states [rows, hidden] that its own norm has passed.
  void embed(std::span<const int32_t> tokens, float* out) const;
  void head(std::span<const float> hidden, int64_t rows, float* logits) const;

 private:
  struct Layer;
  struct Scratch;

  TargetModel();
  Packed packed(const Matrix& matrix) const { return Packed(matrix, wanted_); }
  Status load_layer(int64_t index);
  Status load_attention(const std::string& prefix, Layer& layer);
  Status load_mlp(const std::string& prefix, int64_t intermediate, Mlp& mlp);
  Result<ForwardOutput> run(const ForwardBatch& batch, KvPool& pool);
  Status check(const ForwardBatch& batch) const;
  void prepare(const ForwardBatch& batch);
  Result<ForwardOutput> finish(const ForwardBatch& batch, int64_t first_layer, KvPool& pool);
  Status attend(const ForwardBatch& batch, int64_t index, KvPool& pool);
  void add_attention(int64_t rows, const Layer& layer);
  void project(const ForwardBatch& batch, const Layer& layer, int64_t index, KvPool& pool);
  Status verify(const ForwardBatch& batch, int64_t index, KvPool& pool);
  void feed_forward(int64_t rows, const Layer& layer);

  std::string folder_;
  Products wanted_ = Products::f32;
  ModelConfig config_;
  Weights weights_;
  Matrix embedding_;  // [vocab, hidden]
  Packed head_;       // [vocab, hidden]
  std::vector<float> norm_;
  std::vector<Layer> layers_;
  std::vector<int64_t> feature_layers_;
  VerifyHook verify_hook_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace kdtree
