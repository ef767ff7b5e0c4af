// Every available backend on the shared case table and on random cases.
#include "attention/backend.h"

#include <cmath>
#include <cstdlib>
#include <cstring>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "tests/attention/host_backends.h"
#include "tests/attention/reference.h"
#include "tests/attention/run.h"
#include "tests/cases/case_table.h"

namespace kdtree {
namespace {

using testing::case_table;
using testing::CpuTargetChoice;
using testing::host_backends;
using testing::HostBackend;
using testing::lses;
using testing::make;
using testing::max_error;
using testing::outputs;
using testing::random_spec;
using testing::reference_attention;
using testing::relative_frobenius;
using testing::run_case;

// What rounding the output once allows, and the arithmetic of the backend on top.
double tolerance(const CaseSpec& spec, int32_t backend) {
  const DType out = spec.out_dtype;
  const double rounding = out == DType::bf16  ? 2.5e-3
                          : out == DType::f16 ? 3.5e-4
                          : out == DType::f32 ? 1e-7
                                              : 0.0;
  if (backend == KDTREE_BACKEND_ORACLE) return rounding + 1e-12;
  const bool bf16_products = spec.q_dtype == DType::bf16 && spec.kv_dtype == DType::bf16 &&
                             std::string((*choose_cpu_target())->name).ends_with("bf16");
  return bf16_products ? 4e-3 : rounding + 1e-5;
}

void expect_right(const CaseSpec& spec, int32_t backend) {
  SCOPED_TRACE(spec.name + " on backend " + std::to_string(backend));
  VerifyCase c = make(spec);
  const auto expected = reference_attention(c);
  const Status status = run_case(c.problem, backend);
  ASSERT_TRUE(status) << status.error().message;
  EXPECT_LE(relative_frobenius(outputs(c.problem), expected.out), tolerance(spec, backend));
  if (spec.want_lse) {
    double largest = 1.0;
    for (const double lse : expected.lse) {
      if (std::isfinite(lse)) largest = std::max(largest, std::fabs(lse));
    }
    EXPECT_LE(max_error(lses(c.problem), expected.lse), 1e-5 * largest);
  }
}

class Backends : public ::testing::TestWithParam<HostBackend> {
 protected:
  int32_t id() const { return GetParam().id; }

 private:
  CpuTargetChoice choice_{GetParam().cpu_target};
};
INSTANTIATE_TEST_SUITE_P(Host, Backends, ::testing::ValuesIn(host_backends()),
                         [](const auto& test) { return test.param.name; });

TEST_P(Backends, CaseTable) {
  for (const CaseSpec& spec : case_table())
    expect_right(spec, id());
}

TEST_P(Backends, RandomCases) {
  for (uint64_t seed = 1; seed <= 300; ++seed)
    expect_right(random_spec(seed), id());
}

TEST_P(Backends, RowsOfPaddingBetweenElementsAreLeftAlone) {
  CaseSpec spec = random_spec(5);
  spec.stride_padding = 3;
  spec.out_dtype = DType::f32;
  spec.requests = {{9, 4, TreeShape::chain}};
  VerifyCase c = make(spec);
  for (float& x : c.problem.out.as<float>())
    x = -77.0f;
  ASSERT_TRUE(run_case(c.problem, id()));
  const VerifyProblem& p = c.problem.scalars;
  int64_t untouched = 0;
  for (const float x : c.problem.out.as<float>())
    untouched += x == -77.0f;
  EXPECT_EQ(untouched, 4 * (out_token_stride(p) - int64_t{spec.heads} * spec.latent_dim));
}

// Appending nodes, other requests or another encoding changes no earlier row, bit for bit.
TEST_P(Backends, ARowDoesNotDependOnItsCompany) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    CaseSpec spec = random_spec(seed);
    spec.tree_encoding = KDTREE_TREE_PARENTS;
    spec.out_dtype = DType::f32;
    spec.indptr_dtype = DType::i32;
    spec.stride_padding = 0;
    spec.requests = {{static_cast<int64_t>(seed % 50), 12, TreeShape::random}, {20, 7, TreeShape::random}};
    VerifyCase all = make(spec);
    ASSERT_TRUE(run_case(all.problem, id()));
    const std::vector<double> expected = outputs(all.problem);
    const std::vector<double> expected_lse = lses(all.problem);

    // The same problem in other words.
    for (const int32_t encoding : {KDTREE_TREE_ANCESTOR_BITS, KDTREE_TREE_BOOL_MASK}) {
      spec.tree_encoding = encoding;
      VerifyCase other = make(spec);
      ASSERT_TRUE(run_case(other.problem, id()));
      ASSERT_EQ(outputs(other.problem), expected) << "seed " << seed << " encoding " << encoding;
      ASSERT_EQ(lses(other.problem), expected_lse) << "seed " << seed << " encoding " << encoding;
    }

    // Only the first five nodes of the first request.
    OwnedProblem fewer = all.problem;
    fewer.scalars.batch = 1;
    fewer.qo_indptr.as<int32_t>()[1] = 5;
    ASSERT_TRUE(run_case(fewer, id()));
    const std::vector<double> some = outputs(fewer);
    const std::vector<double> some_lse = lses(fewer);
    const auto row_size = static_cast<size_t>(spec.heads) * static_cast<size_t>(spec.latent_dim);
    for (size_t i = 0; i < 5 * row_size; ++i)
      ASSERT_EQ(some[i], expected[i]) << "seed " << seed;
    for (size_t i = 0; i < 5 * static_cast<size_t>(spec.heads); ++i)
      ASSERT_EQ(some_lse[i], expected_lse[i]);
  }
}

// Slots whose byte offset needs more than 32 bits: a sparse pool of 6 GiB, of which only the used rows exist.
TEST_P(Backends, SlotsBeyondFourGigabytes) {
  CaseSpec spec = random_spec(3);
  spec.latent_dim = 512;
  spec.rope_dim = 64;
  spec.kv_dtype = DType::bf16;
  spec.out_dtype = DType::f32;
  spec.index_dtype = DType::i32;
  spec.draft_location = KDTREE_DRAFT_IN_POOL;
  spec.tree_encoding = KDTREE_TREE_PARENTS;
  spec.stride_padding = 0;
  spec.page_size = 1;
  spec.requests = {{12, 6, TreeShape::random}};
  VerifyCase c = make(spec);
  const auto expected = reference_attention(c);

  constexpr int64_t kSlots = 6 * (int64_t{1} << 30) / (576 * 2);
  constexpr size_t kRowBytes = 576 * 2;
  constexpr size_t kBytes = static_cast<size_t>(kSlots) * kRowBytes;
  void* memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const auto move_up = [&](int32_t& slot) {
    const auto far = static_cast<int32_t>(kSlots - 1 - slot);  // slot 0 becomes the pool's last row
    std::memcpy(static_cast<std::byte*>(memory) + static_cast<size_t>(far) * kRowBytes,
                &c.problem.kv.bytes[static_cast<size_t>(slot) * kRowBytes], kRowBytes);
    slot = far;
  };
  for (size_t i = 0; i < 12; ++i)
    move_up(c.problem.kv_indices.as<int32_t>()[i]);
  for (int32_t& slot : c.problem.draft_slots.as<int32_t>())
    move_up(slot);
  VerifyProblem p = c.problem.params();
  p.kv = memory;
  p.kv_slots = kSlots;
  p.backend = id();
  const auto bytes = verify_workspace_size(p);
  ASSERT_TRUE(bytes) << bytes.error().message;
  void* workspace = std::aligned_alloc(64, *bytes);
  ASSERT_TRUE(run_verify(p, workspace, *bytes, nullptr));
  std::free(workspace);
  munmap(memory, kBytes);
  EXPECT_LE(relative_frobenius(outputs(c.problem), expected.out), 1e-5);
}

TEST(Backend, NamesReasonsAndChoice) {
  EXPECT_EQ(*backend_from_name("oracle"), KDTREE_BACKEND_ORACLE);
  EXPECT_EQ(*backend_from_name("cuda-sm90"), KDTREE_BACKEND_CUDA_SM90);
  EXPECT_EQ(backend_from_name("cpuu").error().message,
            "backend is \"cpuu\", expected one of: oracle, cpu, cuda-naive, cuda-flash, cuda-flash-paged, "
            "cuda-sm90");
  for (const Backend& backend : backends())
    EXPECT_FALSE(backend.reason.empty()) << backend.name;

  VerifyProblem p = kdtree_init<VerifyProblem>();
  EXPECT_EQ(*choose_backend(p), KDTREE_BACKEND_CPU);
  p.backend = 77;
  EXPECT_EQ(choose_backend(p).error().code, KDTREE_INVALID_ARGUMENT);
  p.backend = KDTREE_BACKEND_CUDA_SM90;
  EXPECT_EQ(choose_backend(p).error().code, KDTREE_BACKEND_UNAVAILABLE);
  EXPECT_NE(choose_backend(p).error().message.find("required: "), std::string::npos);
  p.backend = KDTREE_BACKEND_CPU;
  p.memory = KDTREE_MEMORY_CUDA;
  EXPECT_EQ(choose_backend(p).error().message, "memory is 1, expected KDTREE_MEMORY_HOST with backend cpu");
  p.memory = KDTREE_MEMORY_HOST;

  setenv("KDTREE_FORCE_BACKEND", "oracle", 1);
  p.backend = KDTREE_BACKEND_AUTO;
  EXPECT_EQ(*choose_backend(p), KDTREE_BACKEND_ORACLE);
  p.backend = KDTREE_BACKEND_CPU;  // what the caller names wins
  EXPECT_EQ(*choose_backend(p), KDTREE_BACKEND_CPU);
  p.backend = KDTREE_BACKEND_AUTO;
  setenv("KDTREE_FORCE_BACKEND", "nonesuch", 1);
  EXPECT_EQ(choose_backend(p).error().code, KDTREE_INVALID_ARGUMENT);
  setenv("KDTREE_FORCE_BACKEND", "cuda-naive", 1);
  EXPECT_EQ(choose_backend(p).error().message.rfind("KDTREE_FORCE_BACKEND is cuda-naive", 0), 0u);
  unsetenv("KDTREE_FORCE_BACKEND");
}

TEST(Backend, ProgressCountsRowsAndCanStop) {
  CaseSpec spec = random_spec(8);
  spec.out_dtype = DType::f32;
  spec.requests = {{5, 4, TreeShape::chain}, {6, 3, TreeShape::chain}};
  VerifyCase c = make(spec);
  VerifyProblem p = c.problem.params();
  p.backend = KDTREE_BACKEND_ORACLE;
  const auto bytes = verify_workspace_size(p);
  ASSERT_TRUE(bytes);
  void* workspace = std::aligned_alloc(64, *bytes);
  std::vector<int64_t> seen;
  const auto progress = [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, 7);
    seen.push_back(done);
    return done < 2;
  };
  EXPECT_TRUE(run_verify(p, workspace, *bytes, nullptr, progress));
  EXPECT_EQ(seen, (std::vector<int64_t>{1, 2}));
  EXPECT_FALSE(std::isnan(outputs(c.problem).front()));
  EXPECT_TRUE(std::isnan(outputs(c.problem).back()));
  std::free(workspace);
}

TEST(Backend, TheCpuHasNoF64) {
  VerifyCase c = make(case_table().front());
  testing::want_f64(c.problem);
  const Status status = run_case(c.problem, KDTREE_BACKEND_CPU);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, KDTREE_UNSUPPORTED);
  EXPECT_EQ(status.error().message, "out_dtype is f64, expected a type the cpu backend has (f64: oracle)");
}

}  // namespace
}  // namespace kdtree
