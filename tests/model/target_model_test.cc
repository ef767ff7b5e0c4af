#include "model/target_model.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "cases/random.h"
#include "model/dflash.h"
#include "tests/model/forward.h"
#include "tests/model/golden.h"

namespace kdtree {
namespace {

constexpr const char* kCheckpoints[] = {"dense", "q_lora", "moe", "yarn", "kimi"};

TargetModel load(const std::string& name) {
  auto model = TargetModel::load(golden(name));
  EXPECT_TRUE(model) << model.error().message;
  return *std::move(model);
}

double relative_error(const Tensor& actual, const Tensor& expected) {
  EXPECT_EQ(actual.shape, expected.shape);
  double error = 0.0;
  double most = 0.0;
  for (int64_t i = 0; i < expected.size(); ++i) {
    error = std::max(error, std::fabs(actual.value(i) - expected.value(i)));
    most = std::max(most, std::fabs(expected.value(i)));
  }
  return error / most;
}

class Golden : public testing::TestWithParam<const char*> {};

TEST_P(Golden, LogitsAreThoseOfTransformers) {
  TargetModel model = load(GetParam());
  const Tensor tokens = golden_tensor(GetParam(), "tokens");
  const auto logits = teacher_forced_logits(model, tokens.as<int32_t>());
  ASSERT_TRUE(logits) << logits.error().message;
  EXPECT_LE(relative_error(*logits, golden_tensor(GetParam(), "logits")), 2e-5);
}

TEST_P(Golden, BitsDoNotDependOnHowThePromptIsCut) {
  TargetModel model = load(GetParam());
  const Tensor tokens = golden_tensor(GetParam(), "tokens");
  const auto one_by_one = teacher_forced_logits(model, tokens.as<int32_t>(), 1);
  ASSERT_TRUE(one_by_one) << one_by_one.error().message;
  for (const int64_t chunk : {2, 3, 7, 1000})
    EXPECT_EQ(teacher_forced_logits(model, tokens.as<int32_t>(), chunk)->bytes, one_by_one->bytes) << chunk;
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Golden, testing::ValuesIn(kCheckpoints),
                         [](const auto& param) { return std::string(param.param); });

TEST(GoldenVariants, LogitsAreThoseOfTransformers) {
  const Tensor tokens = golden_tensor("yarn", "tokens");
  for (const auto& [name, changes] : golden_variants("yarn")) {
    const CheckpointCopy copy("yarn");
    copy.edit("config.json", [&](nlohmann::json& json) { json.update(changes); });
    auto model = TargetModel::load(copy.path());
    ASSERT_TRUE(model) << model.error().message;
    const auto logits = teacher_forced_logits(*model, tokens.as<int32_t>());
    ASSERT_TRUE(logits) << logits.error().message;
    EXPECT_LE(relative_error(*logits, golden_tensor("yarn", "logits_" + name)), 2e-5) << name;
  }
}

TEST(Dflash, ProposesWhatTheReferenceProposes) {
  TargetModel model = load("q_lora");
  auto drafter = DFlashDrafter::load(golden("dflash"), model);
  ASSERT_TRUE(drafter) << drafter.error().message;
  const Tensor tokens = golden_tensor("dflash", "tokens");
  const auto logits = draft_logits(model, **drafter, tokens.as<int32_t>());
  ASSERT_TRUE(logits) << logits.error().message;
  EXPECT_LE(relative_error(*logits, golden_tensor("dflash", "draft_logits")), 2e-5);
}

TEST(Dflash, ScalesItsRotationAsTheReference) {
  TargetModel model = load("q_lora");
  const Tensor tokens = golden_tensor("dflash", "tokens");
  for (const auto& [name, changes] : golden_variants("dflash")) {
    const CheckpointCopy copy("dflash");
    copy.edit("config.json", [&](nlohmann::json& json) { json.update(changes); });
    auto drafter = DFlashDrafter::load(copy.path(), model);
    ASSERT_TRUE(drafter) << drafter.error().message;
    const auto logits = draft_logits(model, **drafter, tokens.as<int32_t>());
    ASSERT_TRUE(logits) << logits.error().message;
    EXPECT_LE(relative_error(*logits, golden_tensor("dflash", "draft_logits_" + name)), 2e-5) << name;
  }
}

// A drafter that was trained for blocks of several sizes: fewer positions are what a drafter of that block
// size proposes.
TEST(Dflash, ProposesFewerPositionsWhereItWasTrainedTo) {
  TargetModel model = load("q_lora");
  const Tensor tokens = golden_tensor("dflash", "tokens");
  const CheckpointCopy any("dflash");
  any.edit("config.json", [](nlohmann::json& json) { json["dflash_config"]["min_block_size"] = 2; });
  auto drafter = DFlashDrafter::load(any.path(), model);
  ASSERT_TRUE(drafter) << drafter.error().message;
  EXPECT_EQ((*drafter)->least_depth(), 1);
  for (const int64_t depth : {7, 1, 4, 2}) {
    const CheckpointCopy fixed("dflash");
    fixed.edit("config.json", [&](nlohmann::json& json) { json["dflash_config"]["block_size"] = depth + 1; });
    auto smaller = DFlashDrafter::load(fixed.path(), model);
    ASSERT_TRUE(smaller) << smaller.error().message;
    EXPECT_EQ((*smaller)->least_depth(), depth);
    const auto expected = draft_logits(model, **smaller, tokens.as<int32_t>(), depth);
    const auto logits = draft_logits(model, **drafter, tokens.as<int32_t>(), depth);
    ASSERT_TRUE(expected && logits);
    EXPECT_EQ(logits->bytes, expected->bytes) << depth;
  }
}

TEST(Dflash, CommittingInPiecesAndProposingInBetweenChangeNothing) {
  TargetModel model = load("q_lora");
  auto drafter = DFlashDrafter::load(golden("dflash"), model);
  ASSERT_TRUE(drafter) << drafter.error().message;
  const Tensor tensor = golden_tensor("dflash", "tokens");
  const auto tokens = tensor.as<int32_t>();
  const auto expected = draft_logits(model, **drafter, tokens);

  const auto count = static_cast<int64_t>(tokens.size()) - 1;
  auto pool = KvPool::create(model.config().layers, count, model.config().kv_width(), DType::f32);
  const auto slots = *pool->allocator().allocate(count);
  const auto state = (*drafter)->start();
  const auto other = (*drafter)->start();
  std::span<const float> proposed;
  for (int64_t begin = 0; begin < count;) {
    const int64_t end = std::min(begin + 1 + begin % 4, count);
    ForwardBatch batch;
    add_chain(batch, tokens, slots, begin, end);
    const auto out = model.forward(batch, *pool);
    (*drafter)->extend(*state, tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                       out->features);
    // Beside a request that has nothing committed.
    const DraftQuery queries[] = {{other.get(), 5}, {state.get(), tokens[static_cast<size_t>(end)]}};
    proposed = (*drafter)->propose(queries, (*drafter)->depth());
    begin = end;
  }
  const auto expected_logits = expected->as<float>();
  ASSERT_EQ(proposed.size(), 2 * expected_logits.size());
  EXPECT_EQ(std::memcmp(proposed.data() + expected_logits.size(), expected_logits.data(),
                        expected_logits.size_bytes()),
            0);
}

// Rows of a random tree, of two requests at once, in scattered slots, have the bits of plain decoding.
TEST(TargetModel, TreeRowsHaveTheBitsOfPlainDecoding) {
  for (const char* name : {"q_lora", "moe", "yarn"}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Random random(7);
      TargetModel model = load(name);
      const auto vocab = model.config().vocab_size;
      auto pool = KvPool::create(model.config().layers, 512, model.config().kv_width(), dtype);
      auto taken = *pool->allocator().allocate(512);
      random.shuffle(std::span(taken));
      const auto token = [&] { return static_cast<int32_t>(random.below(vocab)); };

      struct Request {
        std::vector<int32_t> prompt;
        std::vector<int64_t> slots;
        std::vector<int32_t> parents, tokens;
      };
      std::vector<Request> requests(2);
      ForwardBatch prompts, trees;
      for (Request& request : requests) {
        for (int64_t i = 5 + random.below(20); i > 0; --i) {
          request.prompt.push_back(token());
          request.slots.push_back(taken.back());
          taken.pop_back();
        }
        add_chain(prompts, request.prompt, request.slots, 0, static_cast<int64_t>(request.prompt.size()));
      }
      ASSERT_TRUE(model.forward(prompts, *pool));
      trees.qo_indptr = trees.kv_indptr = {0};
      for (Request& request : requests) {
        for (int32_t node = 0; node < 20; ++node) {
          request.parents.push_back(node == 0 ? -1 : static_cast<int32_t>(random.below(node)));
          request.tokens.push_back(token());
          int64_t depth = 0;
          for (int32_t n = node; n > 0; n = request.parents[static_cast<size_t>(n)])
            ++depth;
          trees.positions.push_back(static_cast<int64_t>(request.prompt.size()) + depth);
          trees.slots.push_back(taken.back());
          taken.pop_back();
        }
        trees.tokens.insert(trees.tokens.end(), request.tokens.begin(), request.tokens.end());
        trees.parents.insert(trees.parents.end(), request.parents.begin(), request.parents.end());
        trees.qo_indptr.push_back(static_cast<int32_t>(trees.tokens.size()));
        trees.kv_indices.insert(trees.kv_indices.end(), request.slots.begin(), request.slots.end());
        trees.kv_indptr.push_back(static_cast<int32_t>(trees.kv_indices.size()));
      }
      trees.logit_rows.resize(trees.tokens.size());
      std::iota(trees.logit_rows.begin(), trees.logit_rows.end(), 0);
      const auto out = model.forward(trees, *pool);
      ASSERT_TRUE(out) << out.error().message;
      const std::vector<float> logits(out->logits.begin(), out->logits.end());

      int64_t row = 0;
      for (const Request& request : requests) {
        for (int32_t node = 0; node < 20; ++node, ++row) {
          std::vector<int32_t> sequence;
          for (int32_t n = node; n >= 0; n = request.parents[static_cast<size_t>(n)])
            sequence.insert(sequence.begin(), request.tokens[static_cast<size_t>(n)]);
          sequence.insert(sequence.begin(), request.prompt.begin(), request.prompt.end());
          auto plain_pool = KvPool::create(model.config().layers, static_cast<int64_t>(sequence.size()),
                                           model.config().kv_width(), dtype);
          const auto slots = *plain_pool->allocator().allocate(static_cast<int64_t>(sequence.size()));
          std::vector<float> last;
          for (size_t i = 0; i < sequence.size(); ++i) {
            ForwardBatch batch;
            add_chain(batch, sequence, slots, static_cast<int64_t>(i), static_cast<int64_t>(i) + 1);
            batch.logit_rows = {0};
            const auto step = model.forward(batch, *plain_pool);
            last.assign(step->logits.begin(), step->logits.end());
          }
          ASSERT_EQ(std::memcmp(last.data(), logits.data() + row * vocab, last.size() * sizeof(float)), 0)
              << name << " node " << node;
        }
      }
    }
  }
}

// What a hook saw behind one layer's attention.
struct Seen {
  std::vector<float> residual, attended;
};

// A prompt of 9 tokens and a tree of 7 nodes behind it.
struct TreeBehindPrompt {
  ForwardBatch prompt, tree;

  explicit TreeBehindPrompt(const ModelConfig& config, KvPool& pool) {
    Random random(3);
    const auto slots = *pool.allocator().allocate(16);
    std::vector<int32_t> tokens;
    for (int i = 0; i < 9; ++i)
      tokens.push_back(static_cast<int32_t>(random.below(config.vocab_size)));
    add_chain(prompt, tokens, slots, 0, 9);
    tree.parents = {-1, 0, 0, 1, 1, 2, 5};
    for (const int64_t depth : {0, 1, 1, 2, 2, 2, 3}) {
      tree.tokens.push_back(static_cast<int32_t>(random.below(config.vocab_size)));
      tree.positions.push_back(9 + depth);
    }
    tree.slots.assign(slots.begin() + 9, slots.end());
    tree.qo_indptr = {0, 7};
    tree.kv_indptr = {0, 9};
    tree.kv_indices.assign(slots.begin(), slots.begin() + 9);
    tree.logit_rows = {0, 1, 2, 3, 4, 5, 6};
  }
};

TEST(TargetModel, ResumingBehindALayerHasTheBitsOfForward) {
  for (const char* name : {"q_lora", "moe", "yarn"}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      TargetModel model = load(name);
      const int64_t layers = model.config().layers;
      auto pool = KvPool::create(layers, 16, model.config().kv_width(), dtype);
      const TreeBehindPrompt batches(model.config(), *pool);
      ASSERT_TRUE(model.forward(batches.prompt, *pool));
      std::vector<Seen> seen(static_cast<size_t>(layers));
      model.set_verify_hook([&](int64_t layer, const VerifyProblem& p, std::span<const float> residual) {
        const auto* out = static_cast<const float*>(p.out);
        seen[static_cast<size_t>(layer)] = {{residual.begin(), residual.end()},
                                            {out, out + 7 * p.heads * p.latent_dim}};
        return Status();
      });
      const auto whole = model.forward(batches.tree, *pool);
      ASSERT_TRUE(whole) << whole.error().message;
      const std::vector<float> logits(whole->logits.begin(), whole->logits.end());
      model.set_verify_hook({});
      for (int64_t layer = 0; layer < layers; ++layer) {
        // Only the prefixes of later layers are there; all else is NaN.
        auto later = KvPool::create(layers, 16, model.config().kv_width(), dtype);
        std::memset(later->layer(0), 0xff, static_cast<size_t>(layers * 16 * later->row_bytes()));
        for (int64_t i = layer + 1; i < layers; ++i)
          std::memcpy(later->layer(i), pool->layer(i), static_cast<size_t>(9 * later->row_bytes()));
        const Seen& own = seen[static_cast<size_t>(layer)];
        const auto rest = model.resume(batches.tree, *later, layer, own.residual, own.attended);
        ASSERT_TRUE(rest) << rest.error().message;
        ASSERT_EQ(rest->size(), logits.size());
        EXPECT_EQ(std::memcmp(rest->data(), logits.data(), rest->size_bytes()), 0) << name << " " << layer;

        std::vector<float> other = own.attended;
        other[5] += 1.0f;
        const auto changed = model.resume(batches.tree, *later, layer, own.residual, other);
        EXPECT_NE(std::memcmp(changed->data(), logits.data(), changed->size_bytes()), 0) << "it matters";
      }
    }
  }
}

TEST(TargetModel, ResumingChecksItsArrays) {
  TargetModel model = load("q_lora");
  auto pool = KvPool::create(4, 16, model.config().kv_width(), DType::f32);
  const TreeBehindPrompt batches(model.config(), *pool);
  const std::vector<float> residual(size_t{7} * 48), attended(size_t{7} * 4 * 32);
  const auto message = [&](int64_t layer, std::span<const float> r, std::span<const float> a) {
    const auto logits = model.resume(batches.tree, *pool, layer, r, a);
    return logits ? "" : logits.error().message;
  };
  EXPECT_EQ(message(3, residual, attended), "");
  EXPECT_EQ(message(4, residual, attended), "layer is 4, expected 0 .. 3");
  EXPECT_EQ(message(-1, residual, attended), "layer is -1, expected 0 .. 3");
  EXPECT_EQ(message(3, std::span(residual).first(335), attended),
            "residual has 335 elements, expected 7 rows of 48");
  EXPECT_EQ(message(3, residual, std::span(attended).first(1)),
            "attended has 1 elements, expected 7 rows of 128");
}

TEST(TargetModel, FingerprintsTellCheckpointsApart) {
  const auto fingerprint = [](const std::string& folder) {
    const auto model = TargetModel::load(folder);
    EXPECT_TRUE(model) << model.error().message;
    return *model->fingerprint();
  };
  const std::string own = fingerprint(golden("q_lora"));
  EXPECT_EQ(own.size(), 16u);
  EXPECT_NE(own, fingerprint(golden("moe")));
  const CheckpointCopy copy("q_lora");
  EXPECT_EQ(fingerprint(copy.path()), own) << "wherever it lies";
  std::fstream weights(copy.file("model.safetensors"), std::ios::in | std::ios::out | std::ios::binary);
  weights.seekg(-1, std::ios::end);
  const int last = weights.get();
  weights.seekp(-1, std::ios::end);
  weights.put(static_cast<char>(last ^ 1));
  weights.close();
  EXPECT_NE(fingerprint(copy.path()), own) << "one bit of a weight";
  const CheckpointCopy other("q_lora");
  other.edit("config.json", [](nlohmann::json& json) { json["rope_theta"] = 20000.0; });
  EXPECT_NE(fingerprint(other.path()), own) << "the configuration";
}

TEST(TargetModel, TokensOutsideTheVocabularyAreRefused) {
  TargetModel model = load("dense");
  for (const int32_t token : {-1, 96, std::numeric_limits<int32_t>::max()}) {
    const std::vector<int32_t> tokens = {3, token};
    const auto logits = teacher_forced_logits(model, tokens);
    ASSERT_FALSE(logits);
    EXPECT_EQ(logits.error().code, KDTREE_INVALID_ARGUMENT);
    EXPECT_EQ(logits.error().message, fmt::format("tokens[1] is {}, expected 0 .. 95", token));
  }
}

}  // namespace
}  // namespace kdtree
