// Running an engine to the end.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "tests/model/golden.h"

namespace kdtree {

struct Generated {
  std::vector<std::vector<int32_t>> tokens;  // new ones, of each request
  std::vector<FinishReason> finish;
  // The bits of the logits that gave each new token but the first of a request.
  std::vector<std::vector<std::vector<float>>> logits;
  GenerationStats stats;
  int64_t free_slots = 0;  // in the end
};

inline Result<Generated> generate(TargetModel& target, Drafter* drafter, EngineOptions options,
                                  const std::vector<Request>& requests,
                                  std::optional<NodePolicy> policy = std::nullopt) {
  if (options.kv_slots == 0) {
    for (const Request& request : requests)
      options.kv_slots += Engine::slots_needed(target.config(), options, request);
  }
  auto engine = Engine::create(target, drafter, options, std::move(policy));
  KDTREE_RETURN_IF_ERROR(engine);
  Generated out;
  out.tokens.resize(requests.size());
  out.finish.resize(requests.size());
  out.logits.resize(requests.size());
  for (const Request& request : requests)
    KDTREE_RETURN_IF_ERROR(engine->submit(request));
  engine->watch([&](const RoundView& round) {
    const auto vocab = static_cast<size_t>(target.config().vocab_size);
    for (const int32_t node : round.accept_path) {
      const auto row = round.logits.subspan(static_cast<size_t>(node) * vocab, vocab);
      out.logits[static_cast<size_t>(round.request)].emplace_back(row.begin(), row.end());
    }
  });
  while (!engine->idle()) {
    const Status status = engine->step([&](const Emission& emission) {
      const auto request = static_cast<size_t>(emission.request);
      out.tokens[request].insert(out.tokens[request].end(), emission.tokens.begin(), emission.tokens.end());
      EXPECT_EQ(out.finish[request], FinishReason::none) << "emitted after the end";
      out.finish[request] = emission.finish;
      return true;
    });
    KDTREE_RETURN_IF_ERROR(status);
  }
  out.stats = engine->stats();
  out.free_slots = engine->free_slots();
  EXPECT_EQ(out.free_slots, options.kv_slots) << "slots leak";
  return out;
}

inline TargetModel load_target(const std::string& name, Products products = Products::f32) {
  auto model = TargetModel::load(golden(name), products);
  EXPECT_TRUE(model) << model.error().message;
  return *std::move(model);
}

}  // namespace kdtree
