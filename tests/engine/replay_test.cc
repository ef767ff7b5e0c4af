// Recorded rounds lead to the recorded tokens again, and to others where attention is another.
#include "engine/replay.h"

#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

#include "attention/backend.h"
#include "core/scratch.h"
#include "engine/recorder.h"
#include "tests/engine/generate.h"
#include "tests/engine/planted_drafter.h"
#include "tests/model/forward.h"
#include "tests/temporary_directory.h"

namespace kdtree {
namespace {

struct Recording {
  std::string checkpoint = "q_lora";
  EngineOptions engine = {.mode = DecodeMode::tree, .nodes = 8, .batch = 2, .kv_slots = 300};
  BundleRecorder::Options recorder = {.layer = 1, .from = 1, .most = 2, .provenance = {}};
  double sure = 0.8;  // of the drafter
  std::vector<Request> requests = {{{5, 17, 3, 60}, 16, {}}, {{9, 9, 1}, 16, {}}};
};

// The bundles, written and read.
std::vector<Bundle> record(const Recording& recording) {
  TargetModel target = load_target(recording.checkpoint);
  const auto plain = generate(target, nullptr, {.kv_dtype = recording.engine.kv_dtype}, recording.requests);
  EXPECT_TRUE(plain) << plain.error().message;
  std::vector<std::vector<int32_t>> truth;
  for (size_t i = 0; i < recording.requests.size(); ++i) {
    truth.push_back(recording.requests[i].prompt);
    truth.back().insert(truth.back().end(), plain->tokens[i].begin(), plain->tokens[i].end());
  }
  PlantedDrafter drafter(truth, target.config().vocab_size, 7, recording.sure);
  auto engine = Engine::create(target, &drafter, recording.engine);
  EXPECT_TRUE(engine) << engine.error().message;
  std::vector<Bundle> bundles;
  const TemporaryDirectory folder;
  const auto recorder = BundleRecorder::create(
      *engine, target, recording.recorder, [&](int64_t, const Bundle& bundle) -> Status {
        KDTREE_RETURN_IF_ERROR(write_bundle(folder.file("a"), bundle));
        auto read = read_bundle(folder.file("a"));
        KDTREE_RETURN_IF_ERROR(read);
        bundles.push_back(*std::move(read));
        return {};
      });
  for (const Request& request : recording.requests)
    EXPECT_TRUE(engine->submit(request));
  while (!engine->idle() && (*recorder)->recorded() < recording.recorder.most) {
    EXPECT_TRUE(engine->step([](const Emission&) { return true; }));
    EXPECT_TRUE((*recorder)->status()) << (*recorder)->status().error().message;
  }
  EXPECT_EQ(bundles.size(), static_cast<size_t>(recording.recorder.most));
  return bundles;
}

// Rows whose token is not the recorded one; -1 where the replay fails.
int64_t inexact_rows(const std::string& checkpoint, Bundle& bundle, const VerifyProblem& result) {
  TargetModel target = load_target(checkpoint);
  auto replay = BundleReplay::create(target);
  EXPECT_TRUE(replay) << replay.error().message;
  const auto rows = replay->run(bundle, result);
  if (!rows) {
    ADD_FAILURE() << rows.error().message;
    return -1;
  }
  EXPECT_EQ(rows->size(), static_cast<size_t>(total_rows(result)));
  int64_t inexact = 0;
  for (const ReplayedRow& row : *rows) {
    if (row.token != bundle.target_tokens.as<int32_t>()[static_cast<size_t>(row.row)]) ++inexact;
  }
  return inexact;
}

int64_t inexact_rows(const std::string& checkpoint, Bundle& bundle) {
  return inexact_rows(checkpoint, bundle, bundle.problem.params());
}

void expect_exact(const Recording& recording) {
  int64_t accepted = 0;
  for (Bundle& bundle : record(recording)) {
    EXPECT_EQ(inexact_rows(recording.checkpoint, bundle), 0);
    for (const int32_t count : bundle.accept_count.as<int32_t>())
      accepted += count - 1;
  }
  EXPECT_GT(accepted, 0) << "drafts must be accepted";
}

TEST(BundleReplay, GivesTheRecordedTokensFromEveryLayer) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (int64_t layer = 0; layer < 4; ++layer) {
      Recording recording;
      recording.recorder.layer = layer;
      recording.engine.kv_dtype = dtype;
      expect_exact(recording);
      recording.checkpoint = "moe";
      if (layer < 2) expect_exact(recording);
    }
  }
}

TEST(BundleReplay, SampledGreedyAndRaggedTogether) {
  Recording recording;
  recording.requests = {
      {{5, 17, 3, 60}, 16, {.temperature = 0.8, .seed = 2}, 0},
      {{9, 9, 1}, 16, {}, 1},
      {{4, 2}, 16, {.temperature = 0.9, .top_p = 0.9, .top_k = 20, .min_p = 0.02, .seed = 7}},
      {{1, 2, 3, 4, 5}, 16, {.temperature = 1.0, .seed = 2}, 20}};
  recording.engine.batch = 4;
  recording.engine.nodes = 31;
  recording.engine.kv_slots = 400;
  expect_exact(recording);
  auto bundles = record(recording);
  const auto rows = bundles[0].problem.qo_indptr.as<int32_t>();
  const std::vector<int32_t> ends(rows.begin(), rows.end());
  EXPECT_EQ(ends, (std::vector<int32_t>{0, 1, 3, 35, 56}));
  // The settings decide: the same round with another seed.
  bundles[0].seed.as<uint64_t>()[3] = 3;
  EXPECT_GT(inexact_rows("q_lora", bundles[0]), 0);
}

TEST(BundleReplay, ScatteredSlots) {
  Recording recording;
  recording.engine.move_rows = false;
  recording.sure = 0.4;  // some paths do not begin with the first child
  recording.engine.nodes = 32;
  recording.requests[0].max_new_tokens = recording.requests[1].max_new_tokens = 40;
  recording.recorder.from = 7;
  expect_exact(recording);
  const auto bundles = record(recording);
  const auto slots = bundles[0].problem.kv_indices.as<int64_t>();
  EXPECT_FALSE(std::is_sorted(slots.begin(), slots.begin() + bundles[0].problem.kv_indptr.as<int32_t>()[1]));
  recording.engine.move_rows = true;
  const auto moved = record(recording);
  const auto in_order = moved[0].problem.kv_indices.as<int64_t>();
  EXPECT_TRUE(std::is_sorted(in_order.begin(), in_order.end()));
}

// The recorded output is the one of the rounded queries, in their type.
TEST(BundleReplay, InBf16) {
  Recording recording;
  recording.recorder.dtype = DType::bf16;
  recording.engine.kv_dtype = DType::bf16;
  for (Bundle& bundle : record(recording)) {
    EXPECT_EQ(bundle.problem.q.dtype, DType::bf16);
    EXPECT_EQ(bundle.problem.out.dtype, DType::bf16);
    const Tensor out = bundle.problem.out;
    std::fill(bundle.problem.out.bytes.begin(), bundle.problem.out.bytes.end(), std::byte{0xff});
    const VerifyProblem p = bundle.problem.params();
    const size_t bytes = *verify_workspace_size(p);
    std::vector<std::byte> memory(bytes + Scratch::kAlignment);
    const auto workspace = Scratch::inside(memory).take<std::byte>(static_cast<int64_t>(bytes));
    ASSERT_TRUE(run_verify(p, workspace.data(), bytes, nullptr));
    EXPECT_EQ(bundle.problem.out.bytes, out.bytes);
    EXPECT_EQ(inexact_rows("q_lora", bundle), 0);
  }
}

TEST(BundleReplay, NoticesAnotherAttention) {
  Bundle bundle = record({})[0];
  const Tensor out = bundle.problem.out;
  const int64_t row = 3 * bundle.problem.scalars.heads * bundle.problem.scalars.latent_dim;
  for (int64_t i = 0; i < row / 3; ++i)
    bundle.problem.out.set(row + i, -20.0 * out.value(row + i));
  EXPECT_EQ(inexact_rows("q_lora", bundle), 1);

  TargetModel target = load_target("q_lora");
  auto replay = BundleReplay::create(target);
  bundle.problem.out.set(row, std::numeric_limits<double>::quiet_NaN());
  const auto rows = replay->run(bundle, bundle.problem.params());
  ASSERT_TRUE(rows) << rows.error().message;
  EXPECT_EQ((*rows)[3].token, -1);

  // And another prefix of a later layer.
  bundle.problem.out = out;
  ASSERT_EQ(inexact_rows("q_lora", bundle), 0);
  for (int64_t i = 0; i < bundle.later_kv.size(); ++i)
    bundle.later_kv.set(i, -3.0 * bundle.later_kv.value(i));
  EXPECT_GT(inexact_rows("q_lora", bundle), 0);
}

TEST(BundleReplay, GapsAreBetweenTheTwoLargestLogits) {
  const Recording recording;
  const Bundle bundle = record(recording)[0];
  TargetModel target = load_target("q_lora");
  auto replay = BundleReplay::create(target);
  const auto rows = replay->run(bundle, const_cast<OwnedProblem&>(bundle.problem).params());
  ASSERT_TRUE(rows) << rows.error().message;
  // The first row is the token behind the first request's prefix.
  const auto plain = generate(target, nullptr, {}, recording.requests);
  std::vector<int32_t> tokens = recording.requests[0].prompt;
  tokens.insert(tokens.end(), plain->tokens[0].begin(), plain->tokens[0].end());
  tokens.resize(static_cast<size_t>(bundle.problem.kv_indptr.as<int32_t>()[1]) + 1);
  const auto all = teacher_forced_logits(target, tokens);
  const auto last = all->as<float>().last(static_cast<size_t>(target.config().vocab_size));
  std::vector<float> logits(last.begin(), last.end());
  std::sort(logits.rbegin(), logits.rend());
  EXPECT_EQ((*rows)[0].gap, logits[0] - logits[1]);
  EXPECT_FALSE((*rows)[0].sampled);
}

TEST(BundleReplay, PaddingRowsAreNotReplayed) {
  Bundle bundle = record({})[0];
  // The last row of the first request becomes padding: no child depends on it.
  const auto last = static_cast<size_t>(bundle.problem.qo_indptr.as<int32_t>()[1]) - 1;
  bundle.problem.parents.as<int32_t>()[last] = KDTREE_PARENT_PADDING;
  TargetModel target = load_target("q_lora");
  auto replay = BundleReplay::create(target);
  const auto rows = replay->run(bundle, bundle.problem.params());
  ASSERT_TRUE(rows) << rows.error().message;
  EXPECT_EQ(rows->size(), static_cast<size_t>(bundle.tokens.size()) - 1);
  for (const ReplayedRow& row : *rows) {
    EXPECT_NE(row.row, static_cast<int64_t>(last));
    EXPECT_EQ(row.token, bundle.target_tokens.as<int32_t>()[static_cast<size_t>(row.row)]);
  }
}

TEST(BundleReplay, EmptyBatch) {
  Bundle bundle = record({})[0];
  OwnedProblem& problem = bundle.problem;
  problem.scalars.batch = 0;
  TargetModel target = load_target("q_lora");
  auto replay = BundleReplay::create(target);
  bundle.residual = Tensor(DType::f32, {0, 48});
  const auto rows = replay->run(bundle, problem.params());
  ASSERT_TRUE(rows) << rows.error().message;
  EXPECT_TRUE(rows->empty());
}

TEST(BundleReplay, RefusesWhatIsNotOfItsModel) {
  const Bundle bundle = record({})[0];
  TargetModel other = load_target("moe");
  const Status wrong = BundleReplay::create(other)->check(bundle);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, KDTREE_INVALID_ARGUMENT);
  EXPECT_EQ(wrong.error().message,
            fmt::format("metadata \"model\" is {}, expected {}, the hash of the model given", bundle.model,
                        *other.fingerprint()));

  TargetModel target = load_target("q_lora");
  auto replay = BundleReplay::create(target);
  ASSERT_TRUE(replay->check(bundle));
  const auto message = [&](auto change) {
    Bundle changed = bundle;
    change(changed);
    const auto rows = replay->run(changed, changed.problem.params());
    EXPECT_FALSE(rows);
    EXPECT_EQ(rows.error().code, KDTREE_INVALID_FILE);
    return rows.error().message;
  };
  EXPECT_EQ(message([](Bundle& b) { b.problem.scalars.heads = 2; }), "heads is 2, expected the model's 4");
  EXPECT_EQ(message([](Bundle& b) { b.problem.scalars.latent_dim = 16; }),
            "latent_dim is 16, expected the model's 32");
  EXPECT_EQ(message([](Bundle& b) { b.problem.scalars.rope_dim = 0; }),
            "rope_dim is 0, expected the model's 16");
  EXPECT_EQ(message([](Bundle& b) {
              b.residual.shape = {b.residual.shape[0], 24};
            }),
            "residual's width is 24, expected the model's 48");
  EXPECT_EQ(message([](Bundle& b) { b.layer = 0; }), "later_kv's layers is 2, expected the model's 3");
  EXPECT_EQ(message([](Bundle& b) { b.layer = 2; }), "later_kv's layers is 2, expected the model's 1");
  EXPECT_EQ(message([](Bundle& b) { b.layer = 4; }), "layer is 4, expected less than the model's 4");
  EXPECT_EQ(message([](Bundle& b) { b.later_kv.shape[0] = std::numeric_limits<int64_t>::max(); }),
            "later_kv's layers is 9223372036854775807, expected the model's 2");
  EXPECT_EQ(message([](Bundle& b) { b.problem.scalars.kv_dtype = KDTREE_DTYPE_F16; }),
            "kv is f16, expected f32 or bf16, which the model's cache has");
  EXPECT_EQ(message([](Bundle& b) { b.top_p.as<double>()[1] = 2.0; }).rfind("request 1: top_p is 2", 0), 0u);
}

}  // namespace
}  // namespace kdtree
