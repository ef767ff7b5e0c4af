#include "engine/recorder.h"

#include <gtest/gtest.h>

#include "attention/backend.h"
#include "core/scratch.h"
#include "tests/engine/generate.h"
#include "tests/engine/planted_drafter.h"
#include "tests/temporary_directory.h"
#include "tree/accept.h"

namespace kdtree {
namespace {

// What a bundle says is what happened: the kernel gives the recorded output again, the walk the recorded
// path.
TEST(BundleRecorder, BundlesReplayTheRound) {
  TargetModel target = load_target("q_lora");
  const std::vector<Request> requests = {{{5, 17, 3, 60}, 12, {.temperature = 0.8, .seed = 2}},
                                         {{9, 9, 1}, 12, {}}};
  const auto plain = generate(target, nullptr, {}, requests);
  ASSERT_TRUE(plain) << plain.error().message;
  std::vector<std::vector<int32_t>> truth;
  for (size_t i = 0; i < requests.size(); ++i) {
    truth.push_back(requests[i].prompt);
    truth.back().insert(truth.back().end(), plain->tokens[i].begin(), plain->tokens[i].end());
  }
  PlantedDrafter drafter(truth, target.config().vocab_size, 7, 0.7);
  auto engine =
      Engine::create(target, &drafter, {.mode = DecodeMode::tree, .nodes = 8, .batch = 2, .kv_slots = 200});
  ASSERT_TRUE(engine) << engine.error().message;
  const TemporaryDirectory folder;
  std::vector<std::string> files;
  const auto recorder = BundleRecorder::create(
      *engine, target, {.layer = 2, .from = 1, .every = 2, .most = 2, .provenance = {{"test", "yes"}}},
      [&](int64_t round, const Bundle& bundle) {
        EXPECT_EQ(round % 2, 1);
        EXPECT_EQ(bundle.provenance.at("round"), std::to_string(round));
        files.push_back(folder.file(std::to_string(round)));
        return write_bundle(files.back(), bundle);
      });
  ASSERT_TRUE(recorder) << recorder.error().message;
  for (const Request& request : requests)
    ASSERT_TRUE(engine->submit(request));
  std::vector<std::vector<int32_t>> emitted(2);
  std::vector<std::vector<int32_t>> expected;  // emitted by the recorded rounds
  while (!engine->idle() && (*recorder)->recorded() < 2) {
    const int64_t before = (*recorder)->recorded();
    std::vector<std::vector<int32_t>> round(2);
    ASSERT_TRUE(engine->step([&](const Emission& e) {
      round[static_cast<size_t>(e.request)].assign(e.tokens.begin(), e.tokens.end());
      return true;
    }));
    ASSERT_TRUE((*recorder)->status()) << (*recorder)->status().error().message;
    if ((*recorder)->recorded() > before) expected.insert(expected.end(), round.begin(), round.end());
  }
  ASSERT_EQ(files.size(), 2u);
  size_t next = 0;
  for (const std::string& file : files) {
    auto bundle = read_bundle(file);
    ASSERT_TRUE(bundle) << bundle.error().message;
    EXPECT_EQ(bundle->provenance.at("test"), "yes");
    const Tensor recorded = bundle->problem.out;
    std::fill(bundle->problem.out.bytes.begin(), bundle->problem.out.bytes.end(), std::byte{0xff});
    const VerifyProblem p = bundle->problem.params();
    const size_t bytes = *verify_workspace_size(p);
    std::vector<std::byte> memory(bytes + Scratch::kAlignment);
    const auto workspace = Scratch::inside(memory).take<std::byte>(static_cast<int64_t>(bytes));
    const Status status = run_verify(p, workspace.data(), bytes, nullptr);
    ASSERT_TRUE(status) << status.error().message;
    EXPECT_EQ(bundle->problem.out.bytes, recorded.bytes);

    const auto rows = bundle->problem.qo_indptr.as<int32_t>();
    for (size_t r = 0; r < 2; ++r, ++next) {
      const auto begin = static_cast<size_t>(rows[r]);
      const auto count = static_cast<size_t>(rows[r + 1]) - begin;
      std::vector<int32_t> path(count), tokens(count);
      const auto walked =
          accept_path(bundle->problem.parents.as<int32_t>().subspan(begin, count),
                      bundle->tokens.as<int32_t>().subspan(begin, count),
                      bundle->target_tokens.as<int32_t>().subspan(begin, count), {}, path, tokens);
      ASSERT_TRUE(walked);
      tokens.resize(static_cast<size_t>(walked->count));
      EXPECT_EQ(walked->count, bundle->accept_count.as<int32_t>()[r]);
      EXPECT_EQ(tokens, expected[next]);
    }
  }
}

}  // namespace
}  // namespace kdtree
