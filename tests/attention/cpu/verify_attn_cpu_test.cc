// The cpu backend's promise: a row's bits follow from its own keys alone. On every SIMD target.
#include "attention/cpu/verify_attn_cpu.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>

#include <gtest/gtest.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include "attention/cpu/tile.h"
#include "tests/attention/cpu/plain_decoding.h"
#include "tests/attention/host_backends.h"
#include "tests/attention/run.h"
#include "tests/cases/case_table.h"

namespace kdtree {
namespace {

using testing::case_table;
using testing::CpuTargetChoice;
using testing::HostBackend;
using testing::make;
using testing::PlainDecoding;
using testing::random_spec;
using testing::run_case;

class Cpu : public ::testing::TestWithParam<HostBackend> {
  CpuTargetChoice choice_{GetParam().cpu_target};
};
INSTANTIATE_TEST_SUITE_P(Targets, Cpu, ::testing::ValuesIn(testing::cpu_backends()),
                         [](const auto& test) { return test.param.name; });

int64_t expect_rows_as_decoded_plainly(const CaseSpec& spec) {
  SCOPED_TRACE(spec.name);
  VerifyCase c = make(spec);
  EXPECT_TRUE(run_case(c.problem, KDTREE_BACKEND_CPU));
  const PlainDecoding plain(c);
  int64_t rows = 0;
  for (size_t r = 0; r < c.trees.size(); ++r) {
    for (int64_t node = 0; node < c.trees[r].size(); ++node, ++rows) {
      const auto tree = plain.row_of_tree(static_cast<int64_t>(r), node);
      const auto decoded = plain.decode(static_cast<int64_t>(r), node, c.trees[r].parent);
      EXPECT_EQ(tree.out, decoded.out) << "request " << r << " node " << node;
      EXPECT_EQ(tree.lse, decoded.lse) << "request " << r << " node " << node;
      if (::testing::Test::HasFailure()) return rows;
    }
  }
  return rows;
}

TEST_P(Cpu, TreeRowsEqualPlainDecodingBitForBitOnTheCaseTable) {
  int64_t rows = 0;
  for (const CaseSpec& spec : case_table())
    rows += expect_rows_as_decoded_plainly(spec);
  EXPECT_GT(rows, 1000);
}

TEST_P(Cpu, TreeRowsEqualPlainDecodingBitForBitOnRandomCases) {
  int64_t rows = 0;
  for (uint64_t seed = 1; seed <= 1000 && !HasFailure(); ++seed)
    rows += expect_rows_as_decoded_plainly(random_spec(seed));
  EXPECT_GT(rows, 5000);
}

std::vector<std::byte> bytes_of(const OwnedProblem& problem) {
  std::vector<std::byte> all = problem.out.bytes;
  all.insert(all.end(), problem.lse.bytes.begin(), problem.lse.bytes.end());
  return all;
}

// What a run leaves out shows.
void poison_outputs(OwnedProblem& problem) {
  std::ranges::fill(problem.out.bytes, std::byte{0xff});
  std::ranges::fill(problem.lse.bytes, std::byte{0xff});
}

// Two tiles of many blocks, which several threads have to merge in order.
CaseSpec many_blocks() {
  CaseSpec spec = case_table().front();
  spec.name = "many_blocks";
  spec.requests = {{20000, 40, TreeShape::random}};
  return spec;
}

TEST_P(Cpu, TheNumberOfThreadsChangesNoBit) {
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, 64);
  std::vector<CaseSpec> specs = case_table();
  specs.push_back(many_blocks());
  for (const CaseSpec& spec : specs) {
    VerifyCase c = make(spec);
    std::vector<std::byte> first;
    for (const int threads : {1, 3, 64}) {
      poison_outputs(c.problem);
      tbb::task_arena arena(threads);
      arena.execute([&] { ASSERT_TRUE(run_case(c.problem, KDTREE_BACKEND_CPU)) << spec.name; });
      const std::vector<std::byte> now = bytes_of(c.problem);
      if (threads == 1) first = now;
      ASSERT_EQ(now, first) << spec.name << " with " << threads << " threads";
    }
  }
}

// The same rows in other slots: the pool turned upside down.
TEST_P(Cpu, TheOrderOfSlotsChangesNoBit) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    CaseSpec spec = random_spec(seed);
    spec.index_dtype = DType::i64;
    VerifyCase c = make(spec);
    poison_outputs(c.problem);
    ASSERT_TRUE(run_case(c.problem, KDTREE_BACKEND_CPU));
    const std::vector<std::byte> before = bytes_of(c.problem);
    const int64_t slots = c.problem.scalars.kv_slots;
    const std::vector<std::byte> pool = c.problem.kv.bytes;
    const size_t row = static_cast<size_t>(kv_row_stride(c.problem.scalars) * dtype_size(spec.kv_dtype));
    const size_t width = static_cast<size_t>(row_width(c.problem.scalars) * dtype_size(spec.kv_dtype));
    for (size_t s = 0; s < static_cast<size_t>(slots); ++s) {
      std::copy_n(
          pool.begin() + static_cast<ptrdiff_t>(s * row), width,
          c.problem.kv.bytes.begin() + static_cast<ptrdiff_t>((static_cast<size_t>(slots) - 1 - s) * row));
    }
    for (Tensor* indices : {&c.problem.kv_indices, &c.problem.draft_slots}) {
      if (!indices->present()) continue;
      for (int64_t& slot : indices->as<int64_t>()) {
        if (slot >= 0 && slot < slots) slot = slots - 1 - slot;
      }
    }
    poison_outputs(c.problem);
    ASSERT_TRUE(run_case(c.problem, KDTREE_BACKEND_CPU));
    ASSERT_EQ(bytes_of(c.problem), before) << "seed " << seed;
  }
}

// Whatever is in the query of a padding row and in the values of the prefix.
TEST_P(Cpu, PaddingRowsAreZeroAndDisturbNobody) {
  for (const int64_t prefix : {int64_t{30}, int64_t{1100}}) {
    CaseSpec spec = case_table().front();
    spec.q_dtype = spec.kv_dtype = DType::bf16;
    spec.out_dtype = DType::f32;
    spec.requests = {{prefix, 7, TreeShape::random, 3}};
    VerifyCase c = make(spec);
    poison_outputs(c.problem);
    ASSERT_TRUE(run_case(c.problem, KDTREE_BACKEND_CPU));
    const std::vector<std::byte> before = bytes_of(c.problem);
    const size_t row = c.problem.q.bytes.size() / 7;
    std::fill(c.problem.q.bytes.begin() + static_cast<ptrdiff_t>(4 * row), c.problem.q.bytes.end(),
              std::byte{0xff});
    poison_outputs(c.problem);
    ASSERT_TRUE(run_case(c.problem, KDTREE_BACKEND_CPU));
    EXPECT_EQ(bytes_of(c.problem), before);
    const std::vector<float> out(c.problem.out.as<float>().begin(), c.problem.out.as<float>().end());
    for (size_t i = out.size() / 7 * 4; i < out.size(); ++i)
      EXPECT_EQ(std::bit_cast<uint32_t>(out[i]), 0u);
    for (size_t i = 4 * static_cast<size_t>(spec.heads); i < 7 * static_cast<size_t>(spec.heads); ++i)
      EXPECT_EQ(c.problem.lse.as<float>()[i], -std::numeric_limits<float>::infinity());
  }
}

// NaN in one own key makes NaN of the rows that see it, and of no other, wherever it lies in a block.
TEST_P(Cpu, NanReachesTheRowsThatSeeIt) {
  for (const int64_t prefix : {3, 62, 63, 64, 65, 127, 511, 700}) {
    CaseSpec spec = case_table().front();
    spec.q_dtype = spec.kv_dtype = DType::f32;
    spec.out_dtype = prefix % 2 == 0 ? DType::f32 : DType::bf16;
    spec.draft_location = KDTREE_DRAFT_SEPARATE;
    spec.requests = {{prefix, 12, TreeShape::random}};
    VerifyCase c = make(spec);
    const VerifyProblem& p = c.problem.scalars;
    constexpr int64_t kSick = 1;
    c.problem.draft_kv.as<float>()[static_cast<size_t>(kSick * draft_row_stride(p) + row_width(p) - 1)] =
        std::numeric_limits<float>::quiet_NaN();
    ASSERT_TRUE(run_case(c.problem, KDTREE_BACKEND_CPU));
    const std::vector<double> out = testing::outputs(c.problem);
    const std::vector<double> lse = testing::lses(c.problem);
    const size_t row = out.size() / 12;
    for (size_t node = 0; node < 12; ++node) {
      bool sees = false;
      for (int32_t n = static_cast<int32_t>(node); n >= 0; n = c.trees[0].parent[static_cast<size_t>(n)])
        sees = sees || n == kSick;
      for (size_t i = node * row; i < (node + 1) * row; ++i)
        ASSERT_EQ(std::isnan(out[i]), sees) << "prefix " << prefix << " node " << node;
      EXPECT_EQ(std::isnan(lse[node * static_cast<size_t>(spec.heads)]), sees);
    }
  }
}

// One node without a prefix: its output is its own value, exactly.
TEST_P(Cpu, EveryHalfIsWidenedExactly) {
  CaseSpec spec = case_table().front();
  spec.heads = 1;
  spec.latent_dim = 16;
  spec.rope_dim = 0;
  spec.kv_dtype = DType::f16;
  spec.q_dtype = spec.out_dtype = DType::f32;
  spec.draft_location = KDTREE_DRAFT_SEPARATE;
  spec.tree_encoding = KDTREE_TREE_CHAIN;
  spec.requests.assign(65536 / 16, {0, 1, TreeShape::chain});
  VerifyCase c = make(spec);
  const auto halves = c.problem.draft_kv.as<uint16_t>();
  for (size_t i = 0; i < halves.size(); ++i)
    halves[i] = static_cast<uint16_t>(i);
  for (float& q : c.problem.q.as<float>())
    q = 0.0f;
  ASSERT_TRUE(run_case(c.problem, KDTREE_BACKEND_CPU));
  const auto out = c.problem.out.as<float>();
  for (size_t i = 0; i < 65536; ++i) {
    const float expected = f16_to_float(static_cast<uint16_t>(i));
    if (std::isfinite(expected)) {
      ASSERT_EQ(out[i], expected) << i;
    } else {
      ASSERT_TRUE(std::isnan(out[i])) << i;  // 0 * infinity in its score
    }
  }
}

TEST(CpuBackend, AWorkspaceForFewerThreadsIsEnough) {
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, 8);
  VerifyCase c = make(case_table().front());
  VerifyProblem p = c.problem.params();
  p.backend = KDTREE_BACKEND_CPU;
  size_t one = 0;
  size_t many = 0;
  tbb::task_arena(1).execute([&] { one = *verify_workspace_size(p); });
  tbb::task_arena(8).execute([&] { many = *verify_workspace_size(p); });
  EXPECT_GT(many, one);
  std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(64, many), std::free);
  tbb::task_arena(8).execute([&] {
    EXPECT_TRUE(run_verify(p, memory.get(), one, nullptr));
    const Status status = run_verify(p, memory.get(), one - 64, nullptr);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, KDTREE_WORKSPACE_TOO_SMALL);
    EXPECT_NE(status.error().message.find("expected at least " + std::to_string(one)), std::string::npos)
        << status.error().message;
  });
}

TEST(CpuBackend, ItsMemoryDoesNotGrowWithThePrefix) {
  CaseSpec spec = case_table().front();
  spec.requests = {{100, 64, TreeShape::random}};
  VerifyCase some = make(spec);
  spec.requests = {{5000, 64, TreeShape::random}};
  VerifyCase many = make(spec);
  VerifyProblem p = some.problem.params();
  VerifyProblem q = many.problem.params();
  p.backend = q.backend = KDTREE_BACKEND_CPU;
  EXPECT_EQ(*verify_workspace_size(p), *verify_workspace_size(q));
}

TEST(CpuBackend, ProgressCountsUnitsAndCanStop) {
  CaseSpec spec = case_table().front();
  spec.requests.assign(5, {20, 3, TreeShape::chain});
  VerifyCase c = make(spec);
  VerifyProblem p = c.problem.params();
  p.backend = KDTREE_BACKEND_CPU;
  const size_t bytes = *verify_workspace_size(p);
  std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(64, bytes), std::free);
  std::vector<int64_t> seen;
  int64_t expected_total = 0;
  const auto progress = [&](int64_t done, int64_t total) {
    seen.push_back(done);
    expected_total = total;
    return done < 2;
  };
  EXPECT_TRUE(run_verify(p, memory.get(), bytes, nullptr, progress));
  EXPECT_EQ(seen, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(expected_total, 5);
}

// A unit that was taken is finished, or those after it would wait for ever.
TEST(CpuBackend, StoppingNeverHangs) {
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism, 8);
  VerifyCase c = make(many_blocks());
  VerifyProblem p = c.problem.params();
  p.backend = KDTREE_BACKEND_CPU;
  tbb::task_arena(8).execute([&] {
    const size_t bytes = *verify_workspace_size(p);
    std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(64, bytes), std::free);
    for (int64_t stop = 1; stop <= 60; ++stop) {
      int64_t last = 0;
      const auto progress = [&](int64_t done, int64_t total) {
        EXPECT_GE(total, 60);
        last = done;
        return done < stop;
      };
      ASSERT_TRUE(run_verify(p, memory.get(), bytes, nullptr, progress));
      EXPECT_EQ(last, stop);
    }
  });
}

TEST(CpuBackend, TheTargetCanBeForced) {
  EXPECT_TRUE((*choose_cpu_target())->supported);
  {
    const CpuTargetChoice choice("mmx");
    const auto target = choose_cpu_target();
    ASSERT_FALSE(target);
    EXPECT_EQ(target.error().code, KDTREE_INVALID_ARGUMENT);
    EXPECT_EQ(target.error().message.rfind("KDTREE_CPU_TARGET is \"mmx\", expected one of: ", 0), 0u)
        << target.error().message;
    VerifyCase c = make(case_table().front());
    EXPECT_EQ(run_case(c.problem, KDTREE_BACKEND_CPU).error().message, target.error().message);
  }
  for (const CpuTarget& t : cpu_targets()) {
    const CpuTargetChoice choice(t.name);
    const auto target = choose_cpu_target();
    if (t.supported) {
      EXPECT_EQ((*target)->name, t.name);
    } else {
      EXPECT_EQ(target.error().code, KDTREE_BACKEND_UNAVAILABLE);
      EXPECT_EQ(target.error().message,
                std::string("KDTREE_CPU_TARGET is ") + t.name + ", which this processor does not have");
    }
  }
}

}  // namespace
}  // namespace kdtree
