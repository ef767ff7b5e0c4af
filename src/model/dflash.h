// The DFlash drafter (arXiv 2602.06036): a few transformer layers that see the target's hidden states of all
// committed tokens, and predict a block of tokens at once: [last token, MASK, MASK, ...], each position
// seeing all of the block. Embedding and head are the target's. Configuration and weights are those that
// SGLang's DFlashDraftModel loads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/drafter.h"
#include "model/moe.h"
#include "model/rope.h"
#include "model/target_model.h"
#include "model/weights.h"

namespace kdtree {

struct DFlashConfig {
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t block_size = 0;      // the last token and the masks: one more than the positions proposed
  int64_t min_block_size = 0;  // that it was trained for; block_size where the configuration names none
  int32_t mask_token = 0;
  float norm_eps = 0.0f;
  std::vector<int64_t> target_layers;
  Rope rope;
};

// Reads FOLDER/config.json and checks that it fits the target. Errors: KDTREE_IO_ERROR, KDTREE_INVALID_FILE,
// KDTREE_UNSUPPORTED, each naming the key.
Result<DFlashConfig> read_dflash_config(const std::string& folder, const ModelConfig& target);

class DFlashDrafter : public Drafter {
 public:
  // `target` must outlive the drafter. bf16 products where weights are in bf16. Errors: those of
  // read_dflash_config and Weights.
  static Result<std::unique_ptr<DFlashDrafter>> load(const std::string& folder, const TargetModel& target,
                                                     Products products = Products::f32);

  const DFlashConfig& config() const { return config_; }
  int64_t weight_bytes() const { return weights_.bytes(); }  // of the files

  int64_t depth() const override { return config_.block_size - 1; }
  int64_t least_depth() const override { return config_.min_block_size - 1; }
  std::vector<int64_t> feature_layers() const override { return config_.target_layers; }
  std::unique_ptr<DraftState> start() const override;
  std::unique_ptr<DraftState> fork(DraftState& state, int64_t length) override;
  void extend(DraftState& state, std::span<const int32_t> tokens, std::span<const float> features) override;
  std::span<const float> propose(std::span<const DraftQuery> queries, int64_t depth) override;

 private:
  struct Layer {
    std::vector<float> attention_norm, q_norm, k_norm, mlp_norm;
    Packed q, k, v, o;
    Mlp mlp;
  };
  class Cache;
  // Memory of pending features that no request uses: fresh memory costs more than the copy into it.
  using Spare = std::vector<std::vector<float>>;
  // Rows of one request's block among those of all.
  struct Block {
    Cache* cache;
    int64_t row;
  };

  explicit DFlashDrafter(const TargetModel& target) : target_(target) {}
  std::string weight_prefix() const;
  Status load_layer(int64_t index, Products products);
  std::span<const float> run(std::span<const DraftQuery> queries, int64_t block_size);
  void compute_pending(Cache& cache);
  void attention(int64_t index, std::span<const Block> blocks, int64_t block_size);
  void attend(int64_t index, std::span<const Block> blocks, int64_t block_size);
  void norm_rows(const std::vector<float>& norm, int64_t rows, const float* x, float* out) const;
  void prepare_angles(int64_t rows);
  void angles(int64_t position, int64_t row);
  void norm_and_rotate(const std::vector<float>& norm, int64_t heads, int64_t row, float* x) const;

  const TargetModel& target_;
  DFlashConfig config_;
  Weights weights_;
  Packed fc_;  // [hidden, target layers * hidden]
  std::vector<float> hidden_norm_;
  std::vector<float> norm_;
  std::vector<Layer> layers_;

  std::shared_ptr<Spare> spare_ = std::make_shared<Spare>();

  // Memory kept from call to call.
  std::vector<float> hidden_, normed_, update_, q_, k_, v_, attended_, scores_, context_, logits_;
  std::vector<float> cosine_, sine_;  // [rows, head_dim / 2]
  std::vector<LinearTask> tasks_;
  MlpScratch mlp_;
};

}  // namespace kdtree
