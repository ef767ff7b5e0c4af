// What the CUDA backends refuse, which needs no device: the message names the field, the value and what was
// expected.
#include <gtest/gtest.h>

#include "attention/cuda_backends.h"

namespace kdtree {
namespace {

// Which cuda-flash-paged takes; no array is looked at.
VerifyProblem problem() {
  alignas(16) static std::byte array[16];
  VerifyProblem p = kdtree_init<VerifyProblem>();
  p.batch = 2;
  p.heads = 8;
  p.latent_dim = 512;
  p.rope_dim = 64;
  p.q_dtype = p.kv_dtype = p.out_dtype = KDTREE_DTYPE_BF16;
  p.memory = KDTREE_MEMORY_CUDA;
  p.q = p.kv = p.kv_indices = array;
  p.out = array;
  p.max_rows = 20;
  p.max_nodes = 16;
  p.max_prefix = 1000;
  return p;
}

std::string refusal(const VerifyProblem& p, int32_t backend = KDTREE_BACKEND_CUDA_FLASH_PAGED) {
  const Status status = cuda_supports(p, backend);
  return status ? "" : status.error().message;
}

TEST(CudaSupports, TheModelsOwnSizes) {
  EXPECT_EQ(refusal(problem()), "");
  EXPECT_EQ(refusal(problem(), KDTREE_BACKEND_CUDA_NAIVE), "");
}

TEST(CudaSupports, Bounds) {
  VerifyProblem p = problem();
  p.max_rows = -1;
  EXPECT_EQ(refusal(p), "max_rows is -1, expected 0 .. 2147483647 with KDTREE_MEMORY_CUDA");
  p = problem();
  p.max_nodes = 0;
  EXPECT_EQ(refusal(p), "max_nodes is 0, expected at least 1 with max_rows 20");
  p = problem();
  p.max_nodes = 65;
  p.tree_encoding = KDTREE_TREE_ANCESTOR_BITS;
  EXPECT_EQ(refusal(p), "bits_stride is 0, expected 2 words or more for max_nodes 65");
  p.bits_stride = 2;
  EXPECT_EQ(refusal(p), "");
  p = problem();
  p.kv = nullptr;
  EXPECT_EQ(refusal(p), "kv is NULL, expected an array with max_rows 20 and max_prefix 1000");
}

TEST(CudaSupports, SlotsOrContiguousPrefixes) {
  VerifyProblem p = problem();
  EXPECT_EQ(refusal(p, KDTREE_BACKEND_CUDA_FLASH),
            "kv_indices is an array, expected NULL for contiguous prefixes on cuda-flash (slots: "
            "cuda-flash-paged)");
  p.kv_indices = nullptr;
  EXPECT_EQ(refusal(p, KDTREE_BACKEND_CUDA_FLASH), "");
  EXPECT_EQ(refusal(p, KDTREE_BACKEND_CUDA_NAIVE), "");
  EXPECT_EQ(refusal(p), "kv_indices is NULL, expected slots on cuda-flash-paged (contiguous: cuda-flash)");
  p.max_prefix = 0;  // no prefixes
  EXPECT_EQ(refusal(p), "");
}

TEST(CudaSupports, RowsTimesHeads) {
  VerifyProblem p = problem();
  p.heads = 1024;
  p.max_rows = 1 << 21;
  EXPECT_EQ(refusal(p),
            "max_rows is 2097152 and heads 1024, expected a product below 2^31 on cuda-flash-paged");
  EXPECT_EQ(refusal(p, KDTREE_BACKEND_CUDA_NAIVE), "");
  p.max_rows -= 1;
  EXPECT_EQ(refusal(p), "");
}

TEST(CudaSupports, SizesTypesAndAlignment) {
  VerifyProblem p = problem();
  p.rope_dim = 32;
  EXPECT_EQ(refusal(p), "latent_dim is 512 and rope_dim 32, expected 512 and 64 on cuda-flash-paged");
  EXPECT_EQ(refusal(p, KDTREE_BACKEND_CUDA_NAIVE), "");
  p = problem();
  p.q_dtype = KDTREE_DTYPE_F16;
  EXPECT_EQ(refusal(p), "q_dtype is f16, expected kv_dtype on cuda-flash-paged");
  p = problem();
  p.kv_dtype = KDTREE_DTYPE_E4M3;
  EXPECT_EQ(refusal(p), "kv_dtype is e4m3, expected bf16 or f16 on cuda-flash-paged");
  p = problem();
  p.kv_row_stride = 580;
  EXPECT_EQ(refusal(p), "kv_row_stride is 580, expected a multiple of 8 on cuda-flash-paged");
  EXPECT_EQ(refusal(p, KDTREE_BACKEND_CUDA_NAIVE), "");
  p = problem();
  p.out_dtype = KDTREE_DTYPE_F64;
  EXPECT_EQ(refusal(p), "out_dtype is f64, expected f32, f16 or bf16 on cuda-flash-paged");
  EXPECT_EQ(refusal(p, KDTREE_BACKEND_CUDA_NAIVE),
            "out_dtype is f64, expected a type that cuda-naive has (f64: oracle)");
}

}  // namespace
}  // namespace kdtree
