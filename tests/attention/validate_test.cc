// Each check of a verify problem: one field made wrong, and the message that must come.
#include "attention/validate.h"

#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include "cases/verify_case.h"
#include "tests/cases/case_table.h"

namespace kdtree {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

// Two requests; i32 indices; drafts in the pool.
VerifyCase valid_case(int32_t encoding = KDTREE_TREE_PARENTS, int32_t location = KDTREE_DRAFT_IN_POOL) {
  CaseSpec spec = testing::case_table().front();
  spec.tree_encoding = encoding;
  spec.draft_location = location;
  spec.requests = {{6, 4, TreeShape::chain}, {3, 2, TreeShape::chain}};
  auto made = make_verify_case(spec);
  EXPECT_TRUE(made);
  return std::move(*made);
}

Status validate(const VerifyProblem& p) {
  KDTREE_RETURN_IF_ERROR(validate_fields(p));
  return validate_contents(p);
}

struct FieldCase {
  const char* message;
  std::function<void(VerifyProblem&)> spoil;
  int32_t code = KDTREE_INVALID_ARGUMENT;
};

TEST(Validate, FieldsAreNamedWithValueAndExpectation) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const FieldCase cases[] = {
      {"batch is -1, expected 0 .. 2147483646", [](auto& p) { p.batch = -1; }},
      {"heads is 0, expected 1 .. 1024", [](auto& p) { p.heads = 0; }},
      {"heads is 1025, expected 1 .. 1024", [](auto& p) { p.heads = 1025; }},
      {"latent_dim is 0, expected 16 .. 4096", [](auto& p) { p.latent_dim = 0; }},
      {"latent_dim is 4112, expected 16 .. 4096", [](auto& p) { p.latent_dim = 4112; }},
      {"latent_dim is 40 and rope_dim 16, expected multiples of 16", [](auto& p) { p.latent_dim = 40; }},
      {"rope_dim is -16, expected 0 .. 4096", [](auto& p) { p.rope_dim = -16; }},
      {"latent_dim is 32 and rope_dim 8, expected multiples of 16", [](auto& p) { p.rope_dim = 8; }},
      {"plan is 2, expected 0 .. 1", [](auto& p) { p.plan = 2; }},
      {"scale is 0, expected a finite number above 0", [](auto& p) { p.scale = 0.0f; }},
      {"scale is nan, expected a finite number above 0", [=](auto& p) { p.scale = nan; }},
      {"scale is inf, expected a finite number above 0",
       [](auto& p) { p.scale = std::numeric_limits<float>::infinity(); }},
      {"logit_cap is -1, expected 0 (none) or a finite number above 0", [](auto& p) { p.logit_cap = -1.0f; }},
      {"kv_scale is -1, expected 0 (= 1) or a finite number above 0", [](auto& p) { p.kv_scale = -1.0f; }},
      {"kv_scale is 2 with kv_dtype bf16, expected 0 or 1 unless it is e4m3",
       [](auto& p) { p.kv_scale = 2.0f; }},
      {"q_dtype is 0 (invalid), expected one of f32 (1), f16 (2), bf16 (3), f64 (4)",
       [](auto& p) { p.q_dtype = 0; }},
      {"q_dtype is 5 (e4m3), expected one of f32 (1), f16 (2), bf16 (3), f64 (4)",
       [](auto& p) { p.q_dtype = KDTREE_DTYPE_E4M3; }},
      {"out_dtype is 16 (i32), expected one of f32 (1), f16 (2), bf16 (3), f64 (4)",
       [](auto& p) { p.out_dtype = KDTREE_DTYPE_I32; }},
      {"kv_dtype is 17 (i64), expected one of f32 (1), f16 (2), bf16 (3), f64 (4), e4m3 (5)",
       [](auto& p) { p.kv_dtype = KDTREE_DTYPE_I64; }},
      {"lse_dtype is 3 (bf16), expected one of f32 (1), f64 (4)",
       [](auto& p) { p.lse_dtype = KDTREE_DTYPE_BF16; }},
      {"indptr_dtype is 1 (f32), expected one of i32 (16), i64 (17)",
       [](auto& p) { p.indptr_dtype = KDTREE_DTYPE_F32; }},
      {"kv_indices_dtype is 0 (invalid), expected one of i32 (16), i64 (17)",
       [](auto& p) { p.kv_indices_dtype = 0; }},
      {"kv_row_stride is 47, expected 0 (contiguous) or at least 48", [](auto& p) { p.kv_row_stride = 47; }},
      {"draft_row_stride is -1, expected 0 (contiguous) or at least 48",
       [](auto& p) { p.draft_row_stride = -1; }},
      {"q_head_stride is 47, expected 0 (contiguous) or at least 48", [](auto& p) { p.q_head_stride = 47; }},
      {"q_token_stride is 47, expected 0 (contiguous) or at least 48",
       [](auto& p) { p.q_token_stride = 47; }},
      {"out_head_stride is 31, expected 0 (contiguous) or at least 32",
       [](auto& p) { p.out_head_stride = 31; }},
      {"out_token_stride is 31, expected 0 (contiguous) or at least 32",
       [](auto& p) { p.out_token_stride = 31; }},
      {"lse_head_stride is -1, expected 0 (contiguous) or at least 1",
       [](auto& p) { p.lse_head_stride = -1; }},
      {"lse_token_stride is -1, expected 0 (contiguous) or at least 1",
       [](auto& p) { p.lse_token_stride = -1; }},
      {"bits_stride is -1, expected >= 0", [](auto& p) { p.bits_stride = -1; }},
      {"kv_slots is -1, expected 0 .. 9223372036854775807", [](auto& p) { p.kv_slots = -1; }},
      {"kv_slots is 9223372036854775807 with rows of 48 elements, expected a pool below 2^63 bytes",
       [](auto& p) { p.kv_slots = kMost; }},
      {"draft_location is 2, expected 0 .. 1", [](auto& p) { p.draft_location = 2; }},
      {"tree_encoding is 4, expected 0 .. 3", [](auto& p) { p.tree_encoding = 4; }},
      {"qo_indptr is null, expected an array", [](auto& p) { p.qo_indptr = nullptr; }},
      {"kv_indptr is null, expected an array", [](auto& p) { p.kv_indptr = nullptr; }},
      {"q is null, expected an array", [](auto& p) { p.q = nullptr; }},
      {"out is null, expected an array", [](auto& p) { p.out = nullptr; }},
      {"kv is null, expected an array of kv_slots rows", [](auto& p) { p.kv = nullptr; }},
      {"kv_slots is 5, expected at least 9 rows of contiguous prefixes (kv_indices is null)",
       [](auto& p) {
         p.kv_indices = nullptr;
         p.kv_slots = 5;
       }},
      {"draft_slots is null, expected an array with KDTREE_DRAFT_IN_POOL",
       [](auto& p) { p.draft_slots = nullptr; }},
      {"draft_kv is null, expected an array with KDTREE_DRAFT_SEPARATE",
       [](auto& p) { p.draft_location = KDTREE_DRAFT_SEPARATE; }},
      {"parents is null, expected an array with KDTREE_TREE_PARENTS", [](auto& p) { p.parents = nullptr; }},
      {"ancestor_bits is null, expected an array with KDTREE_TREE_ANCESTOR_BITS",
       [](auto& p) { p.tree_encoding = KDTREE_TREE_ANCESTOR_BITS; }},
      {"mask is null, expected an array with KDTREE_TREE_BOOL_MASK",
       [](auto& p) { p.tree_encoding = KDTREE_TREE_BOOL_MASK; }},
  };
  VerifyCase c = valid_case();
  ASSERT_TRUE(validate(c.problem.params()));
  for (const FieldCase& field : cases) {
    VerifyProblem p = c.problem.params();
    field.spoil(p);
    const Status status = validate(p);
    ASSERT_FALSE(status) << "accepted; expected: " << field.message;
    EXPECT_EQ(status.error().message, field.message);
    EXPECT_EQ(status.error().code, field.code) << field.message;
  }
}

TEST(Validate, NoRequestsNeedNoArrays) {
  VerifyCase c = valid_case();
  VerifyProblem p = c.problem.scalars;
  p.batch = 0;
  EXPECT_TRUE(validate(p));
}

void expect_contents(VerifyCase& c, const std::string& message) {
  const Status status = validate(c.problem.params());
  ASSERT_FALSE(status) << "accepted; expected: " << message;
  EXPECT_EQ(status.error().message, message);
}

TEST(Validate, ContentsAreNamedWithIndexValueAndExpectation) {
  {
    VerifyCase c = valid_case();
    c.problem.qo_indptr.as<int32_t>()[0] = 1;
    expect_contents(c, "qo_indptr[0] is 1, expected 0");
  }
  {
    VerifyCase c = valid_case();
    c.problem.qo_indptr.as<int32_t>()[2] = 3;
    expect_contents(c, "qo_indptr[2] is 3 after 4, expected 0 .. 2147483647 more");
  }
  {
    VerifyCase c = valid_case();
    c.problem.kv_indptr.as<int32_t>()[1] = -2;
    expect_contents(c, "kv_indptr[1] is -2 after 0, expected 0 .. 4611686018427387903 more");
  }
  {
    VerifyCase c = valid_case();
    const auto slots = static_cast<int32_t>(c.problem.scalars.kv_slots);
    c.problem.kv_indices.as<int32_t>()[8] = slots;
    expect_contents(c, "kv_indices[8] is " + std::to_string(slots) + ", expected a slot in [0, " +
                           std::to_string(slots) + ")");
    c.problem.kv_indices.as<int32_t>()[8] = -1;
    expect_contents(c, "kv_indices[8] is -1, expected a slot in [0, " + std::to_string(slots) + ")");
  }
  {
    VerifyCase c = valid_case();
    c.problem.draft_slots.as<int32_t>()[5] = -3;
    expect_contents(c, "draft_slots[5] is -3, expected a slot in [0, " +
                           std::to_string(c.problem.scalars.kv_slots) + ")");
  }
  {
    VerifyCase c = valid_case(KDTREE_TREE_ANCESTOR_BITS);
    c.problem.qo_indptr.as<int32_t>()[1] = 65;
    c.problem.qo_indptr.as<int32_t>()[2] = 66;
    c.problem.scalars.bits_stride = 1;
    c.problem.scalars.draft_location = KDTREE_DRAFT_SEPARATE;
    c.problem.draft_kv = c.problem.kv;
    expect_contents(c, "bits_stride is 1, expected at least 2 words for 65 nodes");
  }
}

TEST(Validate, EmptyPoolsNegativeMasksAndOverlappingOutputsAreNamed) {
  {
    VerifyCase c = valid_case();
    c.problem.scalars.kv_slots = 0;
    expect_contents(c, "kv_indices[0] is " + std::to_string(c.problem.kv_indices.as<int32_t>()[0]) +
                           ", expected a slot in [0, 0)");
  }
  {
    VerifyCase c = valid_case(KDTREE_TREE_BOOL_MASK);
    c.problem.mask_indptr.as<int64_t>()[1] = -1;
    expect_contents(c, "mask_indptr[1] is -1, expected >= 0 with room for 2 rows of 5 bytes");
    c.problem.mask_indptr.as<int64_t>()[1] = kMost;
    expect_contents(c,
                    "mask_indptr[1] is 9223372036854775807, expected >= 0 with room for 2 rows of 5 bytes");
  }
  VerifyCase c = valid_case();
  VerifyProblem& s = c.problem.scalars;
  s.out_token_stride = 32;
  expect_contents(c, "out_token_stride is 32 with a head stride of 32, expected at least 64: rows overlap");
  s.out_head_stride = 6 * 32;  // [H, T, latent]: heads apart
  EXPECT_TRUE(validate(c.problem.params()));
  s.out_head_stride = 6 * 32 - 1;
  EXPECT_FALSE(validate(c.problem.params()));
  s.out_head_stride = s.out_token_stride = 0;
  s.lse_token_stride = 1;
  expect_contents(c, "lse_token_stride is 1 with a head stride of 1, expected at least 2: rows overlap");
  s.lse_token_stride = 0;
  s.q_token_stride = 48;  // the query is only read: rows may share elements
  EXPECT_TRUE(validate(c.problem.params()));
  s.q_token_stride = kMost / 4;
  expect_contents(c, "q_token_stride is 2305843009213693951 over 6 rows, expected an array below 2^63 bytes");
  s.q_token_stride = 0;
  s.draft_row_stride = kMost / 2;
  expect_contents(c,
                  "draft_row_stride is 4611686018427387903 over 7 rows, expected an array below 2^63 bytes");
}

TEST(Validate, MaskLayouts) {
  const auto message = [](VerifyCase& c) {
    const Status status = validate(c.problem.params());
    return status ? std::string("accepted") : status.error().message;
  };
  VerifyCase c = valid_case(KDTREE_TREE_BOOL_MASK);
  VerifyProblem& s = c.problem.scalars;
  s.mask_skip_prefix = 1;
  EXPECT_EQ(message(c), "accepted");
  s.mask_row_stride = 10;  // prefixes 6 and 3, nodes 4 and 2
  s.mask_column_offset = -1;
  EXPECT_EQ(message(c), "accepted");
  s.mask_row_stride = 9;
  EXPECT_EQ(message(c), "mask_row_stride is 9, expected at least 10 (column 6 and 4 nodes)");
  s.mask_row_stride = 4;
  s.mask_column_offset = 0;
  EXPECT_EQ(message(c), "accepted");
  s.mask_column_offset = kMost;
  EXPECT_EQ(message(c),
            "mask_row_stride is 4, expected at least 9223372036854775807 (column 9223372036854775807 and "
            "4 nodes)");
  s.mask_column_offset = 0;
  s.mask_skip_prefix = 0;
  EXPECT_EQ(message(c),
            "mask_column_offset is 0, expected at least the prefix length 6 unless mask_skip_prefix is 1");
  s.mask_row_stride = 10;
  s.mask_column_offset = 6;
  EXPECT_EQ(message(c), "accepted");
  s.mask_skip_prefix = 2;
  EXPECT_EQ(message(c), "mask_skip_prefix is 2, expected 0 .. 1");
  s.mask_skip_prefix = 1;
  s.mask_row_stride = 0;
  s.mask_column_offset = 3;
  EXPECT_EQ(message(c),
            "mask_row_stride is 0 and mask_column_offset 3, expected a stride > 0 with a column >= -1, or 0 "
            "and 0 for rows of prefix + N columns");
  s.mask_column_offset = -2;
  s.mask_row_stride = 20;
  EXPECT_NE(message(c).find("mask_column_offset -2"), std::string::npos);
}

}  // namespace
}  // namespace kdtree
