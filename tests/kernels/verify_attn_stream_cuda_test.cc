// The CUDA backends as servers call them: many calls on one stream, and graphs.
#include "tests/kernels/device_cases.h"

namespace kdtree::testing {
namespace {

class CudaStreams : public CudaBackends {};
INSTANTIATE_TEST_SUITE_P(Device, CudaStreams, ::testing::ValuesIn(cuda_backends()), backend_name);

class Stream {
 public:
  Stream() { require(cudaStreamCreate(&stream_)); }
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void wait() const { require(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

// One captured call.
class Graph {
 public:
  Graph(const VerifyProblem& p, const DeviceMemory& workspace) {
    require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    const Status captured = run_verify(p, workspace.data(), workspace.size(), stream_);
    require(cudaStreamEndCapture(stream_, &graph_));
    require(captured);
    require(cudaGraphInstantiate(&executable_, graph_, 0));
  }
  ~Graph() {
    (void)cudaGraphExecDestroy(executable_);
    (void)cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void replay() const {
    require(cudaGraphLaunch(executable_, stream_));
    stream_.wait();
  }

 private:
  Stream stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

// A call's kernels may begin while those before them end: none may touch what an earlier call still reads.
TEST_P(CudaStreams, CallsFollowWithoutWaiting) {
  std::vector<VerifyCase> cases;
  for (uint64_t i = 0; i < 12; ++i) {
    CaseSpec spec = i % 3 == 0 ? long_spec() : random_spec(i);
    spec.seed = i;
    if (i % 3 == 1) {
      spec.heads = 8;
      spec.tree_encoding = KDTREE_TREE_PARENTS;
      spec.requests = {{300, 33, TreeShape::random}, {1000, 5, TreeShape::star}};
    }
    cases.push_back(fitted_case(spec, kPlans[i / 3 % 2]));
  }
  std::vector<DeviceProblem> devices;
  std::vector<VerifyProblem> problems;
  size_t bytes = 0;
  for (VerifyCase& c : cases) {
    devices.push_back(to_device(c.problem));
    problems.push_back(devices.back().params());
    problems.back().backend = GetParam().id;
    bytes = std::max(bytes, workspace_bytes(problems.back()));
  }
  const DeviceMemory workspace = poisoned(bytes);
  const Stream stream;
  require(wait_for_device());
  for (size_t i = 0; i < 20 * cases.size(); ++i)
    enqueue(problems[i * 5 % cases.size()], workspace, stream);
  stream.wait();
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(cases[i].spec.name + ", case " + std::to_string(i));
    OwnedProblem alone = cases[i].problem;
    run_on_device(alone, GetParam());
    require(devices[i].read_outputs(cases[i].problem.out, cases[i].problem.lse));
    EXPECT_EQ(cases[i].problem.out.bytes, alone.out.bytes);
    EXPECT_EQ(cases[i].problem.lse.bytes, alone.lse.bytes);
  }
}

// Batches of five requests: prefixes grow and shrink, rows and trees change, one request is all padding.
std::vector<CaseSpec> batches(int32_t encoding) {
  CaseSpec spec;
  spec.heads = 2;
  spec.tree_encoding = encoding;
  spec.draft_location = encoding == KDTREE_TREE_BOOL_MASK ? KDTREE_DRAFT_SEPARATE : KDTREE_DRAFT_IN_POOL;
  spec.index_dtype = encoding == KDTREE_TREE_PARENTS ? DType::i64 : DType::i32;
  spec.indptr_dtype = encoding == KDTREE_TREE_ANCESTOR_BITS ? DType::i64 : DType::i32;
  std::vector<CaseSpec> specs(3, spec);
  specs[0].requests = {{700, 20, TreeShape::random},
                       {0, 3, TreeShape::chain},
                       {0, 0, TreeShape::chain},
                       {277, 70, TreeShape::random, 3},
                       {2000, 3, TreeShape::star}};
  specs[1].requests = {{31, 5, TreeShape::binary},
                       {400, 66, TreeShape::random},
                       {100, 1, TreeShape::chain},
                       {0, 9, TreeShape::comb, 9},
                       {4900, 2, TreeShape::chain}};
  specs[2].requests = {{0, 0, TreeShape::chain},
                       {2100, 1, TreeShape::chain},
                       {300, 100, TreeShape::comb, 1},
                       {513, 7, TreeShape::random},
                       {16, 16, TreeShape::binary}};
  for (size_t i = 0; i < specs.size(); ++i) {
    specs[i].seed = 2 * i + 2;  // even: masks do not have the prefix
    specs[i].name = "batch_" + std::to_string(i) + "_encoding_" + std::to_string(encoding);
  }
  return specs;
}

// One graph for several batches, which only the device's arrays say.
class Replays {
 public:
  Replays(std::vector<VerifyCase>& cases, const Backend& backend, int32_t plan) {
    // Arrays that hold any of the batches.
    room_ = cases[0].problem;
    int64_t rows = 0;
    int64_t prefix = 0;
    int64_t nodes = 0;
    for (VerifyCase& c : cases) {
      const VerifyProblem p = c.problem.params();
      rows = std::max(rows, total_rows(p));
      prefix = std::max(prefix, max_prefix_length(p));
      nodes = std::max(nodes, max_nodes(p));
      for (const auto member : kInputs) {
        auto& bytes = (room_.*member).bytes;
        bytes.resize(std::max(bytes.size(), (c.problem.*member).bytes.size()), std::byte{kPoison});
      }
    }
    set_rows(room_, rows);
    room_.scalars.plan = plan;
    room_.scalars.bits_stride = ceil_div(nodes, 64);
    device_ = to_device(room_);
    p_ = device_.params();
    p_.backend = backend.id;
    p_.max_rows = rows;
    p_.max_prefix = prefix;
    p_.max_nodes = static_cast<int32_t>(nodes);
    workspace_ = poisoned(workspace_bytes(p_));
  }

  const VerifyProblem& params() const { return p_; }
  const DeviceMemory& workspace() const { return workspace_; }

  // The outputs that `compute` leaves for a batch go into its case.
  template <class Compute>
  void run(VerifyCase& c, const Compute& compute) {
    const void* to[] = {p_.q,           p_.qo_indptr,   p_.kv_indptr,     p_.kv,
                        p_.kv_indices,  p_.parents,     p_.ancestor_bits, p_.mask,
                        p_.mask_indptr, p_.draft_slots, p_.draft_kv};
    for (size_t i = 0; i < std::size(kInputs); ++i) {
      const Tensor& from = c.problem.*kInputs[i];
      if (!from.present()) continue;
      require(
          cudaMemcpy(const_cast<void*>(to[i]), from.bytes.data(), from.bytes.size(), cudaMemcpyHostToDevice));
    }
    require(cudaMemset(p_.out, kPoison, room_.out.bytes.size()));
    require(cudaMemset(p_.lse, kPoison, room_.lse.bytes.size()));
    require(cudaMemset(workspace_.data(), kPoison, workspace_.size()));
    require(wait_for_device());
    compute();
    require(device_.read_outputs(room_.out, room_.lse));
    const int64_t rows = c.problem.out.shape[0];
    EXPECT_TRUE(poisoned_from(room_, rows));
    c.problem.out.bytes = rows_of(room_.out, 0, rows);
    c.problem.lse.bytes = rows_of(room_.lse, 0, rows);
  }

 private:
  static constexpr Tensor OwnedProblem::*kInputs[] = {&OwnedProblem::q,
                                                      &OwnedProblem::qo_indptr,
                                                      &OwnedProblem::kv_indptr,
                                                      &OwnedProblem::kv,
                                                      &OwnedProblem::kv_indices,
                                                      &OwnedProblem::parents,
                                                      &OwnedProblem::ancestor_bits,
                                                      &OwnedProblem::mask,
                                                      &OwnedProblem::mask_indptr,
                                                      &OwnedProblem::draft_slots,
                                                      &OwnedProblem::draft_kv};

  OwnedProblem room_;
  DeviceProblem device_;
  VerifyProblem p_ = kdtree_init<VerifyProblem>();
  DeviceMemory workspace_;
};

TEST_P(CudaStreams, GraphsReplayWithOtherBatches) {
  for (const int32_t encoding : {KDTREE_TREE_PARENTS, KDTREE_TREE_ANCESTOR_BITS, KDTREE_TREE_BOOL_MASK}) {
    std::vector<VerifyCase> cases;
    std::vector<Reference> expected;
    for (const CaseSpec& spec : batches(encoding)) {
      cases.push_back(fitted_case(spec));
      expected.push_back(reference_attention(cases.back()));
    }
    for (const int32_t plan : kPlans) {
      Replays replays(cases, GetParam(), plan);
      const Graph graph(replays.params(), replays.workspace());
      for (const size_t i : {0, 1, 2, 0, 2}) {
        SCOPED_TRACE(cases[i].spec.name + ", plan " + std::to_string(plan));
        VerifyCase eager = cases[i];
        replays.run(cases[i], [&] { graph.replay(); });
        replays.run(eager, [&] { enqueue(replays.params(), replays.workspace()); });
        EXPECT_EQ(cases[i].problem.out.bytes, eager.problem.out.bytes);
        EXPECT_EQ(cases[i].problem.lse.bytes, eager.problem.lse.bytes);
        expect_right(cases[i], expected[i]);
      }
    }
  }
}

CaseSpec small_spec(int32_t encoding) {
  CaseSpec spec;
  spec.name = "small";
  spec.heads = 2;
  spec.tree_encoding = encoding;
  spec.requests = {{20, 5, TreeShape::random}};
  return spec;
}

// No launch works on a stream whose capture is broken.
TEST_P(CudaStreams, LaunchErrorsSayWhatWasLaunched) {
  for (const int32_t encoding : {KDTREE_TREE_PARENTS, KDTREE_TREE_ANCESTOR_BITS}) {
    VerifyCase c = fitted_case(small_spec(encoding));
    const DeviceProblem device = to_device(c.problem);
    VerifyProblem p = device.params();
    p.backend = GetParam().id;
    const DeviceMemory workspace = poisoned(workspace_bytes(p));
    const Stream stream;
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    EXPECT_NE(cudaStreamSynchronize(stream), cudaSuccess);
    const Status status = run_verify(p, workspace.data(), workspace.size(), stream);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    (void)cudaGetLastError();
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, KDTREE_CUDA_ERROR);
    const std::string& message = status.error().message;
    if (encoding == KDTREE_TREE_PARENTS) {
      EXPECT_EQ(
          message.rfind("tree_bits, grid 1 x 1 x 1, block 128 x 1 x 1, 0 bytes of dynamic shared memory, on "
                        "device 0: ",
                        0),
          0u)
          << message;
    } else {
      EXPECT_EQ(message.rfind("verify_attn_", 0), 0u) << message;
      for (const char* part : {", grid ", ", block ", " bytes of dynamic shared memory, on device 0: "})
        EXPECT_NE(message.find(part), std::string::npos) << message;
      EXPECT_EQ(message.find("block 0"), std::string::npos) << message;
    }
    EXPECT_NE(message.find("(cudaErrorStreamCaptureInvalidated)"), std::string::npos) << message;
  }
}

// One that the caller has not looked at yet is not taken for a call's own, and stays.
TEST_P(CudaStreams, ErrorsOfTheCallerAreTheirOwn) {
  VerifyCase c = fitted_case(small_spec(KDTREE_TREE_PARENTS));
  const DeviceProblem device = to_device(c.problem);
  VerifyProblem p = device.params();
  p.backend = GetParam().id;
  const DeviceMemory workspace = poisoned(workspace_bytes(p));
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, size_t{1} << 60);
  ASSERT_NE(error, cudaSuccess);
  enqueue(p, workspace);
  EXPECT_EQ(cudaGetLastError(), error);
  require(device.read_outputs(c.problem.out, c.problem.lse));
  expect_right(c, reference_attention(c));
}

}  // namespace
}  // namespace kdtree::testing
