#include "engine/engine.h"

#include <gtest/gtest.h>

#include "tests/engine/generate.h"
#include "tests/engine/planted_drafter.h"

namespace kdtree {
namespace {

const std::vector<int32_t> kPrompt = {5, 17, 3, 60};

// What the target says behind `prompt`.
std::vector<int32_t> plain_tokens(TargetModel& target, const std::vector<int32_t>& prompt, int64_t count) {
  const auto out = generate(target, nullptr, {}, {{prompt, count, {}}});
  EXPECT_TRUE(out) << out.error().message;
  return out->tokens[0];
}

PlantedDrafter sure_drafter(const TargetModel& target, std::vector<int32_t> truth) {
  return PlantedDrafter({std::move(truth)}, target.config().vocab_size, 7, 1.0);
}

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(Engine, EndOfSequenceInsideAPathEndsTheTextThere) {
  TargetModel unbounded = load_target("dense");
  const auto tokens = plain_tokens(unbounded, kPrompt, 12);
  // The fourth token, where it comes first.
  const auto end = std::find(tokens.begin(), tokens.end(), tokens[3]);
  const std::vector<int32_t> expected(tokens.begin(), end + 1);
  const CheckpointCopy copy("dense");
  copy.edit("config.json", [&](nlohmann::json& json) { json["eos_token_id"] = tokens[3]; });
  auto target = TargetModel::load(copy.path());
  ASSERT_TRUE(target) << target.error().message;
  PlantedDrafter drafter = sure_drafter(*target, joined(kPrompt, tokens));
  for (const DecodeMode mode : {DecodeMode::autoregressive, DecodeMode::chain, DecodeMode::tree}) {
    const auto out = generate(*target, &drafter, {.mode = mode, .nodes = 16}, {{kPrompt, 12, {}}});
    ASSERT_TRUE(out) << out.error().message;
    EXPECT_EQ(out->tokens[0], expected);
    EXPECT_EQ(out->finish[0], FinishReason::eos);
  }
}

TEST(Engine, StopsAtTheLengthAskedForWhereverAPathWouldEnd) {
  TargetModel target = load_target("dense");
  const auto tokens = plain_tokens(target, kPrompt, 30);
  PlantedDrafter drafter = sure_drafter(target, joined(kPrompt, tokens));
  for (int64_t count = 1; count <= 20; ++count) {
    const auto out =
        generate(target, &drafter, {.mode = DecodeMode::tree, .nodes = 16}, {{kPrompt, count, {}}});
    ASSERT_TRUE(out) << out.error().message;
    EXPECT_EQ(out->tokens[0], std::vector<int32_t>(tokens.begin(), tokens.begin() + count));
    EXPECT_EQ(out->finish[0], FinishReason::length);
  }
}

TEST(Engine, RequestsHaveNodesOfTheirOwn) {
  TargetModel target = load_target("dense");
  const auto tokens = plain_tokens(target, kPrompt, 20);
  PlantedDrafter drafter = sure_drafter(target, joined(kPrompt, tokens));
  for (const DecodeMode mode : {DecodeMode::chain, DecodeMode::tree}) {
    auto engine = Engine::create(target, &drafter, {.mode = mode, .nodes = 6, .batch = 4, .kv_slots = 200});
    ASSERT_TRUE(engine) << engine.error().message;
    for (const int32_t nodes : {0, 1, 4, 1000})
      ASSERT_TRUE(engine->submit({kPrompt, 20, {}, nodes}));
    const auto bad = engine->submit({kPrompt, 20, {}, -1});
    ASSERT_FALSE(bad);
    EXPECT_EQ(bad.error().message, "nodes is -1, expected at least 0");
    std::vector<int32_t> sizes;
    engine->watch([&](const RoundView& round) { sizes.push_back(static_cast<int32_t>(round.tree.size())); });
    std::vector<std::vector<int32_t>> out(4);
    while (!engine->idle()) {
      ASSERT_TRUE(engine->step([&](const Emission& e) {
        auto& own = out[static_cast<size_t>(e.request)];
        own.insert(own.end(), e.tokens.begin(), e.tokens.end());
        return true;
      }));
    }
    sizes.resize(4);  // of the first round
    EXPECT_EQ(sizes, (std::vector<int32_t>{1, 2, 5, 7}));
    for (const auto& text : out)
      EXPECT_EQ(text, tokens);
  }
}

TEST(Engine, StopsWhereTheContextIsFull) {
  const CheckpointCopy copy("dense");
  copy.edit("config.json", [](nlohmann::json& json) { json["max_position_embeddings"] = 15; });
  auto target = TargetModel::load(copy.path());
  ASSERT_TRUE(target) << target.error().message;
  TargetModel unbounded = load_target("dense");
  const auto tokens = plain_tokens(unbounded, kPrompt, 30);
  PlantedDrafter drafter = sure_drafter(*target, joined(kPrompt, tokens));
  for (const DecodeMode mode : {DecodeMode::autoregressive, DecodeMode::tree}) {
    const auto out = generate(*target, &drafter, {.mode = mode, .nodes = 16}, {{kPrompt, 1000000, {}}});
    ASSERT_TRUE(out) << out.error().message;
    EXPECT_EQ(out->tokens[0], std::vector<int32_t>(tokens.begin(), tokens.begin() + 11));
    EXPECT_EQ(out->finish[0], FinishReason::context);
  }
  const auto full = generate(*target, nullptr, {}, {{std::vector<int32_t>(15, 1), 1, {}}});
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().message,
            "the prompt has 15 tokens, expected fewer than the context's 15 (max_position_embeddings)");
}

TEST(Engine, RequestsWaitForSlotsAndAreRefusedWhenThePoolCannotHoldThem) {
  TargetModel target = load_target("dense");
  const auto tokens = plain_tokens(target, kPrompt, 8);
  PlantedDrafter drafter = sure_drafter(target, joined(kPrompt, tokens));
  EngineOptions options{.mode = DecodeMode::tree, .nodes = 4, .batch = 8};
  const Request request{kPrompt, 8, {}};
  options.kv_slots = Engine::slots_needed(target.config(), options, request);
  EXPECT_EQ(options.kv_slots, 4 + 8 + 4);
  // Shared prefixes need fewer slots, but here there is not one to spare.
  const auto out = generate(target, &drafter, options, {request, request, request});
  ASSERT_TRUE(out) << out.error().message;
  for (const auto& each : out->tokens)
    EXPECT_EQ(each, tokens);
  options.kv_slots -= 1;
  const auto refused = generate(target, &drafter, options, {request});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, KDTREE_OUT_OF_MEMORY);
  EXPECT_EQ(refused.error().message, "the request takes 16 slots of the KV pool, expected at most its 15");
}

TEST(Engine, SharedPrefixesAreComputedOnce) {
  TargetModel target = load_target("dense");
  EngineOptions options{.batch = 2};
  std::vector<int32_t> prompt(40, 7);
  prompt[11] = 3;
  const Request request{prompt, 4, {}};
  options.kv_slots = 44 + 5;  // the second needs five of its own: the prompt's last token and four more
  auto engine = Engine::create(target, nullptr, options);
  ASSERT_TRUE(engine) << engine.error().message;
  ASSERT_TRUE(engine->submit(request));
  ASSERT_TRUE(engine->submit(request));
  std::vector<std::vector<int32_t>> tokens(2);
  const auto emit = [&](const Emission& e) {
    auto& own = tokens[static_cast<size_t>(e.request)];
    own.insert(own.end(), e.tokens.begin(), e.tokens.end());
    return true;
  };
  ASSERT_TRUE(engine->step(emit));
  EXPECT_EQ(engine->free_slots(), 0) << "both are in";
  while (!engine->idle())
    ASSERT_TRUE(engine->step(emit));
  EXPECT_EQ(tokens[0], tokens[1]);
  EXPECT_EQ(engine->free_slots(), options.kv_slots);
}

TEST(Engine, AnEmissionThatIsDeclinedEndsTheRequestAlone) {
  TargetModel target = load_target("dense");
  auto engine = Engine::create(target, nullptr, {.batch = 2, .kv_slots = 100});
  ASSERT_TRUE(engine->submit({kPrompt, 10, {}}));
  ASSERT_TRUE(engine->submit({{1, 2, 3}, 10, {}}));
  std::vector<int64_t> counts(2);
  while (!engine->idle()) {
    ASSERT_TRUE(engine->step([&](const Emission& emission) {
      auto& count = counts[static_cast<size_t>(emission.request)];
      count += static_cast<int64_t>(emission.tokens.size());
      return emission.request == 1 || count < 3;
    }));
  }
  EXPECT_EQ(counts, (std::vector<int64_t>{3, 10}));
  EXPECT_EQ(engine->free_slots(), 100);
}

TEST(Engine, StatisticsAddUp) {
  TargetModel target = load_target("dense");
  const auto tokens = plain_tokens(target, kPrompt, 30);
  PlantedDrafter drafter = sure_drafter(target, joined(kPrompt, tokens));
  const auto out = generate(target, &drafter, {.mode = DecodeMode::chain, .nodes = 16}, {{kPrompt, 30, {}}});
  ASSERT_TRUE(out) << out.error().message;
  const GenerationStats& stats = out->stats;
  EXPECT_EQ(stats.emitted, 29) << "the first token comes from the prompt's pass";
  int64_t rounds = 0;
  int64_t emitted = 0;
  for (size_t length = 0; length < stats.accept_lengths.size(); ++length) {
    rounds += stats.accept_lengths[length];
    emitted += stats.accept_lengths[length] * static_cast<int64_t>(length);
  }
  EXPECT_EQ(rounds, stats.rounds);
  EXPECT_EQ(emitted, stats.emitted);
  ASSERT_FALSE(stats.offered.empty());
  int64_t accepted = 0;
  for (size_t d = 0; d < stats.offered.size(); ++d) {
    EXPECT_LE(stats.accepted[d], stats.offered[d]);
    accepted += stats.accepted[d];
  }
  EXPECT_EQ(accepted, stats.emitted - stats.rounds);
  EXPECT_EQ(stats.nodes, 7 * (stats.rounds - 1) + (29 - (stats.rounds - 1) * 8) - 1)
      << "the last chain is shorter";
}

TEST(Engine, BadRequestsAreRefusedAndTheOthersGoOn) {
  TargetModel target = load_target("dense");
  auto engine = Engine::create(target, nullptr, {.batch = 2, .kv_slots = 100});
  const auto refused = [&](const Request& request) {
    const auto id = engine->submit(request);
    EXPECT_FALSE(id);
    EXPECT_EQ(id.error().code, KDTREE_INVALID_ARGUMENT);
    return id.error().message;
  };
  EXPECT_EQ(refused({{}, 10, {}}), "the prompt is empty, expected at least one token");
  EXPECT_EQ(refused({{1, 96}, 10, {}}), "prompt[1] is token 96, expected 0 .. 95");
  EXPECT_EQ(refused({{-1}, 10, {}}), "prompt[0] is token -1, expected 0 .. 95");
  EXPECT_EQ(refused({{1}, 0, {}}), "max_new_tokens is 0, expected at least 1");
  EXPECT_NE(refused({{1}, 10, {.temperature = -1.0}}).find("temperature"), std::string::npos);
  EXPECT_EQ(*engine->submit({{1}, 2, {}}), 0);
  while (!engine->idle())
    ASSERT_TRUE(engine->step([](const Emission&) { return true; }));
  const auto no_drafter = Engine::create(target, nullptr, {.mode = DecodeMode::tree, .kv_slots = 1});
  ASSERT_FALSE(no_drafter);
  EXPECT_EQ(no_drafter.error().message, "drafter is absent, expected one for chains and trees");
}

}  // namespace
}  // namespace kdtree
