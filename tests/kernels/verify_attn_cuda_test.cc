// The CUDA backends on a device, against the fp64 oracle: the shared case table, random ragged batches, and
// what the plans promise.
#include <numeric>

#include "tests/kernels/device_cases.h"

namespace kdtree::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Device, CudaBackends, ::testing::ValuesIn(cuda_backends()), backend_name);

TEST_P(CudaBackends, CaseTable) {
  for (const CaseSpec& spec : case_table())
    expect_right(spec);
}

TEST_P(CudaBackends, LongPrefixes) {
  expect_right(long_spec(), {KDTREE_PLAN_BALANCED, KDTREE_PLAN_INVARIANT});
}

TEST_P(CudaBackends, MoreRowsThanATileAndMoreHeadsThanATile) {
  CaseSpec spec;
  spec.name = "rows";
  for (const int32_t heads : {1, 5, 16, 128}) {
    spec.heads = heads;
    spec.requests = {{40, 512 / heads + 1, TreeShape::random}, {17, 2, TreeShape::chain}};
    expect_right(spec, {KDTREE_PLAN_BALANCED, KDTREE_PLAN_INVARIANT});
  }
}

TEST_P(CudaBackends, NumbersOfHeads) {
  CaseSpec spec;
  for (const int32_t heads : {1, 2, 3, 4, 6, 7, 8, 12, 20, 31, 32, 40, 63, 64, 65, 96, 127, 128}) {
    spec.name = "heads_" + std::to_string(heads);
    spec.heads = heads;
    spec.requests = {{33, 5, TreeShape::random}, {0, 2, TreeShape::chain}};
    expect_right(spec);
  }
}

// A warp reads the lengths of 32 requests at a time.
TEST_P(CudaBackends, ManyRequests) {
  for (const int64_t requests : {32, 33, 64, 70}) {
    CaseSpec spec;
    spec.name = "requests_" + std::to_string(requests);
    spec.heads = 2;
    for (int64_t r = 0; r < requests; ++r)
      spec.requests.push_back({r * 37 % 120, r % 7 * (r % 5), TreeShape::random});
    expect_right(spec, {KDTREE_PLAN_BALANCED, KDTREE_PLAN_INVARIANT});
  }
}

TEST_P(CudaBackends, ManyNodes) {
  for (const int32_t encoding : {KDTREE_TREE_PARENTS, KDTREE_TREE_ANCESTOR_BITS, KDTREE_TREE_BOOL_MASK}) {
    for (const int64_t nodes : {191, 256, 512}) {
      CaseSpec spec;
      spec.name = "nodes_" + std::to_string(nodes) + "_encoding_" + std::to_string(encoding);
      spec.heads = 8;
      spec.tree_encoding = encoding;
      // Its prefix ends within a tile of keys. A path of all nodes, and one that branches everywhere.
      spec.requests = {{21, nodes, encoding == KDTREE_TREE_PARENTS ? TreeShape::comb : TreeShape::random}};
      expect_right(spec, {KDTREE_PLAN_BALANCED, KDTREE_PLAN_INVARIANT});
    }
  }
}

// Over many pieces: both types, caps that bend a few scores and that bend all.
TEST_P(CudaBackends, LogitCaps) {
  for (const DType type : {DType::bf16, DType::f16}) {
    for (const float cap : {0.0f, 0.5f, 30.0f}) {
      CaseSpec spec = long_spec();
      spec.name = std::string("cap_") + dtype_name(type) + "_" + std::to_string(cap);
      spec.q_dtype = spec.kv_dtype = spec.out_dtype = type;
      spec.logit_cap = cap;
      if (cap > 1.0f) spec.scale = 1.0f;  // scores of 24 in the mean square
      expect_right(spec, {KDTREE_PLAN_BALANCED, KDTREE_PLAN_INVARIANT});
    }
  }
}

TEST_P(CudaBackends, RandomRaggedBatches) {
  for (uint64_t seed = 1; seed <= 1000; ++seed)
    expect_right(random_spec(seed), {kPlans[seed % 2]});
}

// What a sanitizer has the time for.
TEST_P(CudaBackends, ReducedTable) {
  for (uint64_t seed = 1; seed <= 12; ++seed)
    expect_right(random_spec(seed), {kPlans[seed % 2]});
  CaseSpec spec;
  spec.name = "reduced";
  spec.heads = 8;
  spec.requests = {{700, 9, TreeShape::random}, {0, 1, TreeShape::chain}};
  expect_right(spec, {KDTREE_PLAN_BALANCED, KDTREE_PLAN_INVARIANT});
}

TEST_P(CudaBackends, RunsAreBitIdentical) {
  std::vector<CaseSpec> specs = {long_spec()};
  for (uint64_t seed = 1; seed <= 20; ++seed)
    specs.push_back(random_spec(seed));
  for (const CaseSpec& spec : specs) {
    VerifyCase first = fitted_case(spec);
    VerifyCase second = fitted_case(spec);
    run(first);
    run(second);
    EXPECT_EQ(first.problem.out.bytes, second.problem.out.bytes) << spec.name;
    EXPECT_EQ(first.problem.lse.bytes, second.problem.lse.bytes) << spec.name;
  }
}

// With few blocks a block's stretch holds several pieces, and ends of items among them.
TEST_P(CudaBackends, FewMultiprocessors) {
  if (!is_flash(GetParam())) GTEST_SKIP() << GetParam().name << " has a block a row and head on any device";
  CaseSpec one = long_spec();
  one.name = "one_request";
  one.requests = {{3000, 40, TreeShape::random}};
  for (const CaseSpec& spec : {long_spec(), one}) {
    VerifyCase c = fitted_case(spec);
    const Reference expected = reference_attention(c);
    for (const int32_t plan : kPlans) {
      for (const int multiprocessors : {1, 2, 7}) {
        SCOPED_TRACE(std::to_string(multiprocessors) + " multiprocessors");
        c.problem.scalars.plan = plan;
        run(c, multiprocessors);
        expect_right(c, expected);
      }
    }
  }
}

// The bounds are the caller's, for all that a graph may ever see. Rows behind the batch's are left alone.
TEST_P(CudaBackends, BoundsMayBeLargerThanTheBatch) {
  CaseSpec chain = long_spec();
  chain.requests = {{2500, 20, TreeShape::chain}, {9, 70, TreeShape::chain}};
  std::vector<CaseSpec> specs;
  for (const int32_t encoding :
       {KDTREE_TREE_CHAIN, KDTREE_TREE_PARENTS, KDTREE_TREE_ANCESTOR_BITS, KDTREE_TREE_BOOL_MASK}) {
    specs.push_back(encoding == KDTREE_TREE_CHAIN ? chain : long_spec());
    specs.back().tree_encoding = encoding;
    specs.back().draft_location =
        encoding == KDTREE_TREE_BOOL_MASK ? KDTREE_DRAFT_SEPARATE : KDTREE_DRAFT_IN_POOL;
  }
  for (const CaseSpec& spec : specs) {
    for (const int32_t plan : kPlans) {
      SCOPED_TRACE("encoding " + std::to_string(spec.tree_encoding) + ", plan " + std::to_string(plan));
      VerifyCase tight = fitted_case(spec, plan);
      run(tight);

      VerifyCase c = fitted_case(spec, plan);
      const int64_t rows = c.problem.out.shape[0];
      set_rows(c.problem, rows + 100);
      const bool bits = spec.tree_encoding == KDTREE_TREE_ANCESTOR_BITS;
      c.problem.scalars.bits_stride = bits ? c.problem.ancestor_bits.shape[1] : 0;
      const DeviceProblem device = to_device(c.problem);
      VerifyProblem p = device.params();
      p.backend = GetParam().id;
      p.max_rows = rows + 100;
      p.max_nodes = bits ? 128 : 200;
      p.max_prefix = 100000;
      enqueue(p, poisoned(workspace_bytes(p)));
      require(device.read_outputs(c.problem.out, c.problem.lse));
      EXPECT_TRUE(poisoned_from(c.problem, rows));
      set_rows(c.problem, rows);
      EXPECT_EQ(c.problem.out.bytes, tight.problem.out.bytes);
      EXPECT_EQ(c.problem.lse.bytes, tight.problem.lse.bytes);
      if (plan == KDTREE_PLAN_BALANCED) expect_right(c, reference_attention(c));
    }
  }
}

// Request `r` of a batch of parents in the pool as a batch of its own, or its first `nodes` nodes.
OwnedProblem alone(OwnedProblem& batch, int32_t r, int64_t nodes) {
  const RequestView view = request_view(batch.params(), r);
  OwnedProblem result = batch;
  result.scalars.batch = 1;
  const int32_t rows[] = {0, static_cast<int32_t>(nodes)};
  const int32_t prefix[] = {0, static_cast<int32_t>(view.prefix_length)};
  result.qo_indptr = Tensor::from<int32_t>(DType::i32, rows);
  result.kv_indptr = Tensor::from<int32_t>(DType::i32, prefix);
  const auto cut = [](Tensor& tensor, int64_t begin, int64_t count) {
    tensor.bytes = rows_of(tensor, begin, begin + count);
    tensor.shape[0] = count;
  };
  if (result.kv_indices.present()) {
    cut(result.kv_indices, view.prefix_begin, view.prefix_length);
  } else {
    // What is before its prefix is cut off.
    cut(result.kv, view.prefix_begin, result.kv.shape[0] - view.prefix_begin);
    result.scalars.kv_slots = result.kv.shape[0];
    for (int32_t& slot : result.draft_slots.as<int32_t>())
      slot -= static_cast<int32_t>(view.prefix_begin);
  }
  for (Tensor* tensor : {&result.q, &result.out, &result.lse, &result.parents, &result.draft_slots})
    cut(*tensor, view.row_begin, nodes);
  return result;
}

// Each request alone, on other numbers of multiprocessors too, and with its first nodes only.
TEST_P(CudaBackends, InvariantRowsDoNotDependOnCompany) {
  CaseSpec spec = long_spec();
  spec.name = "company";
  spec.tree_encoding = KDTREE_TREE_PARENTS;
  // More than 32 segments of 512 keys, which are longer then.
  spec.requests.insert(spec.requests.begin() + 4, {512 * 33 + 100, 9, TreeShape::random});
  VerifyCase company = fitted_case(spec, KDTREE_PLAN_INVARIANT);
  run(company);
  expect_right(company, reference_attention(company));
  for (int32_t r = 0; r < static_cast<int32_t>(spec.requests.size()); ++r) {
    const RequestView view = request_view(company.problem.params(), r);
    for (const int64_t nodes :
         {view.nodes, view.nodes - 1, view.nodes / 2, std::min<int64_t>(view.nodes, 1)}) {
      for (const int multiprocessors : {0, 3}) {
        if (nodes <= 0) continue;
        SCOPED_TRACE("request " + std::to_string(r) + ", " + std::to_string(nodes) + " nodes, " +
                     std::to_string(multiprocessors) + " multiprocessors (0: all)");
        OwnedProblem own = alone(company.problem, r, nodes);
        run_on_device(own, GetParam(), multiprocessors);
        const int64_t end = view.row_begin + nodes;
        EXPECT_EQ(own.out.bytes, rows_of(company.problem.out, view.row_begin, end));
        EXPECT_EQ(own.lse.bytes, rows_of(company.problem.lse, view.row_begin, end));
      }
    }
  }
}

}  // namespace
}  // namespace kdtree::testing
