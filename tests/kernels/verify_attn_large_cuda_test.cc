// The CUDA backends where offsets do not fit 32 bits, and on a prefix of 2^20 tokens.
#include "tests/kernels/device_cases.h"

namespace kdtree::testing {
namespace {

class CudaLarge : public CudaBackends {};
INSTANTIATE_TEST_SUITE_P(Device, CudaLarge, ::testing::ValuesIn(cuda_backends()), backend_name);

// Puts a request without rows, with a prefix of `entries`, before the others.
void begin_at(OwnedProblem& problem, int64_t entries) {
  std::vector<int32_t> rows = {0};
  std::vector<int32_t> prefixes = {0};
  for (int32_t r = 0; r <= problem.scalars.batch; ++r) {
    rows.push_back(static_cast<int32_t>(index_at(problem.qo_indptr, r)));
    prefixes.push_back(static_cast<int32_t>(entries + index_at(problem.kv_indptr, r)));
  }
  problem.qo_indptr = Tensor::from<int32_t>(DType::i32, rows);
  problem.kv_indptr = Tensor::from<int32_t>(DType::i32, prefixes);
  ++problem.scalars.batch;
}

// Rows at the end of a pool of more than 2^32 elements, of which only those that are used are ever written,
// beside the same rows in a small pool.
TEST_P(CudaLarge, SlotsBeyondFourGigabytes) {
  constexpr int64_t kRowBytes = 576 * 2;
  constexpr int64_t kMostUsed = 2000;
  constexpr int64_t kSlots = (int64_t{1} << 32) / 576 + kMostUsed;
  constexpr size_t kBytes = static_cast<size_t>(kSlots * kRowBytes);
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  require(cudaMemGetInfo(&free_bytes, &total_bytes));
  if (free_bytes < kBytes + (size_t{1} << 28)) {
    GTEST_SKIP() << free_bytes << " bytes of device memory are free, expected " << kBytes << " for the pool";
  }
  const DeviceMemory pool = require(DeviceMemory::create(kBytes));
  for (const DType index_dtype : {DType::i32, DType::i64}) {
    CaseSpec spec = fit({});
    spec.name = "far";
    spec.heads = 2;
    spec.index_dtype = index_dtype;
    spec.requests = {{100, 6, TreeShape::random}, {0, 3, TreeShape::chain}, {600, 1, TreeShape::chain}};
    VerifyCase near = fitted_case(spec);
    run(near);
    expect_right(near, reference_attention(near));

    VerifyCase far = fitted_case(spec);
    const int64_t used = far.problem.params().kv_slots;
    ASSERT_LT(used, kMostUsed);
    // Slot 0 becomes the pool's last row; contiguous prefixes follow that of a request without rows.
    const auto moved = [&](int64_t slot) {
      return spec.contiguous ? kSlots - used + slot : kSlots - 1 - slot;
    };
    if (spec.contiguous) begin_at(far.problem, kSlots - used);
    for (int64_t slot = 0; slot < used; ++slot) {
      require(cudaMemcpy(static_cast<std::byte*>(pool.data()) + moved(slot) * kRowBytes,
                         far.problem.kv.bytes.data() + slot * kRowBytes, static_cast<size_t>(kRowBytes),
                         cudaMemcpyHostToDevice));
    }
    for (Tensor* slots : {&far.problem.kv_indices, &far.problem.draft_slots}) {
      for (int64_t i = 0; i < slots->size(); ++i) {
        const int64_t slot = moved(index_at(*slots, i));
        if (index_dtype == DType::i64) {
          slots->as<int64_t>()[static_cast<size_t>(i)] = slot;
        } else {
          slots->as<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(slot);
        }
      }
    }
    const DeviceProblem device = to_device(far.problem);
    VerifyProblem p = device.params();
    p.backend = GetParam().id;
    p.kv = pool.data();
    p.kv_slots = kSlots;
    enqueue(p, poisoned(workspace_bytes(p)));
    require(device.read_outputs(far.problem.out, far.problem.lse));
    EXPECT_EQ(far.problem.out.bytes, near.problem.out.bytes);
    EXPECT_EQ(far.problem.lse.bytes, near.problem.lse.bytes);
  }
}

// A prefix whose positions share few rows of the pool. Position i has the key of one kind, so that the
// reference adds up each kind once, times its positions.
struct Shared {
  VerifyCase c;
  std::vector<int64_t> positions;  // that have the kind
};

constexpr int64_t kPrefix = int64_t{1} << 20;
constexpr int64_t kKinds = 1 << 16;
constexpr int64_t kPlanted = 64;

// The first and the last key of each of 32 parts are for one row's query each: a key that is not read, or
// read twice, shows in that row's output. The other positions have hashed kinds.
Shared make_shared(const CaseSpec& spec) {
  Shared shared{make(spec), std::vector<int64_t>(kKinds)};
  OwnedProblem& problem = shared.c.problem;
  const VerifyProblem p = problem.params();
  const int64_t width = row_width(p);
  const int64_t query_rows = problem.q.shape[0] * p.heads;
  for (int64_t kind = 0; kind < kPlanted; ++kind) {
    const int64_t row = kind % query_rows;
    for (int64_t k = 0; k < width; ++k) {
      const double q =
          problem.q.value(row / p.heads * q_token_stride(p) + row % p.heads * q_head_stride(p) + k);
      problem.kv.set(index_at(problem.kv_indices, kind) * width + k, 0.32 * q);
    }
  }
  Tensor indices(DType::i32, {kPrefix});
  constexpr int64_t kPart = 2 * kPrefix / kPlanted;
  uint32_t state = 1;
  for (int64_t i = 0; i < kPrefix; ++i) {
    state = state * 1664525 + 1013904223;
    int64_t kind = kPlanted + (state >> 8) % (kKinds - kPlanted);
    if (i % kPart == 0) kind = i / kPart * 2;
    if (i % kPart == kPart - 1) kind = i / kPart * 2 + 1;
    ++shared.positions[static_cast<size_t>(kind)];
    indices.as<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(index_at(problem.kv_indices, kind));
  }
  // The kinds' slots stay behind them, for the reference.
  problem.kv_indices.bytes.insert(problem.kv_indices.bytes.begin(), indices.bytes.begin(),
                                  indices.bytes.end());
  problem.kv_indices.shape[0] += kPrefix;
  problem.kv_indptr.as<int32_t>()[1] = static_cast<int32_t>(kPrefix);
  return shared;
}

Reference reference_of(const Shared& shared) {
  const OwnedProblem& problem = shared.c.problem;
  const VerifyProblem& p = problem.scalars;
  const auto width = static_cast<size_t>(row_width(p));
  const auto latent = static_cast<size_t>(p.latent_dim);
  const int64_t nodes = problem.q.shape[0];
  std::vector<float> keys;  // bf16's values, exactly: kinds, then nodes
  for (int64_t i = 0; i < kKinds + nodes; ++i) {
    const int64_t slot =
        i < kKinds ? index_at(problem.kv_indices, kPrefix + i) : index_at(problem.draft_slots, i - kKinds);
    for (int64_t k = 0; k < row_width(p); ++k)
      keys.push_back(static_cast<float>(problem.kv.value(slot * row_width(p) + k)));
  }
  const auto masks = dense_masks(shared.c);
  Reference result;
  for (int64_t row = 0; row < nodes * p.heads; ++row) {
    const int64_t node = row / p.heads;
    std::vector<double> q;
    for (int64_t k = 0; k < row_width(p); ++k)
      q.push_back(problem.q.value(node * q_token_stride(p) + row % p.heads * q_head_stride(p) + k));
    std::vector<double> out(latent, 0.0);
    double sum = 0.0;
    for (int64_t i = 0; i < kKinds + nodes; ++i) {
      const bool seen = i < kKinds || masks[0][static_cast<size_t>(node)][static_cast<size_t>(i)];
      if (!seen) continue;
      const float* key = &keys[static_cast<size_t>(i) * width];
      double dot = 0.0;
      for (size_t k = 0; k < width; ++k)
        dot += q[k] * key[k];
      // Scores are small enough here to need no maximum.
      const double positions =
          i < kKinds ? static_cast<double>(shared.positions[static_cast<size_t>(i)]) : 1.0;
      const double weight = positions * std::exp(dot * p.scale);
      sum += weight;
      for (size_t k = 0; k < latent; ++k)
        out[k] += weight * key[k];
    }
    for (const double x : out)
      result.out.push_back(x / sum);
    result.lse.push_back(std::log(sum));
  }
  return result;
}

TEST_P(CudaLarge, PrefixOfAMillionTokens) {
  CaseSpec spec = fit({});
  if (spec.contiguous) GTEST_SKIP() << "contiguous positions cannot share rows of a pool";
  spec.name = "million";
  spec.heads = 2;
  spec.requests = {{kKinds, 4, TreeShape::random}};
  Shared shared = make_shared(fit(spec));
  const Reference expected = reference_of(shared);
  for (const int32_t plan : kPlans) {
    // cuda-naive takes seconds, and has one plan.
    if (!is_flash(GetParam()) && plan == KDTREE_PLAN_INVARIANT) continue;
    shared.c.problem.scalars.plan = plan;
    run(shared.c);
    expect_right(shared.c, expected);
  }
}

}  // namespace
}  // namespace kdtree::testing
