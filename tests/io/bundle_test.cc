#include "io/bundle.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "attention/backend.h"
#include "cases/verify_case.h"
#include "io/bundle_check.h"
#include "io/bundle_fields.h"
#include "io/safetensors.h"
#include "tests/io/files.h"

namespace kdtree {
namespace {

// Of a layer with two behind it, in a model whose hidden size is 6.
void add_what_follows(Bundle& bundle) {
  const VerifyProblem& p = bundle.problem.scalars;
  bundle.layer = 3;
  bundle.model = "0123456789abcdef";
  bundle.residual = Tensor(DType::f32, {7, 6});
  bundle.later_kv = Tensor(DType::bf16, {2, p.kv_slots, 32});
  bundle.temperature = bundle.top_p = bundle.min_p = Tensor(DType::f64, {2});
  bundle.top_k = Tensor(DType::i32, {2});
  bundle.seed = bundle.request = Tensor(DType::u64, {2});
  int byte = 0;
  for (Tensor* tensor :
       {&bundle.residual, &bundle.later_kv, &bundle.temperature, &bundle.top_k, &bundle.seed}) {
    for (std::byte& to : tensor->bytes)
      to = static_cast<std::byte>(byte++ % 64);
  }
}

// Two requests with every optional array that there is room for.
Bundle make_bundle(int32_t tree_encoding = KDTREE_TREE_PARENTS,
                   int32_t draft_location = KDTREE_DRAFT_IN_POOL) {
  CaseSpec spec;
  spec.heads = 2;
  spec.latent_dim = 16;
  spec.rope_dim = 16;
  spec.tree_encoding = tree_encoding;
  spec.draft_location = draft_location;
  spec.logit_cap = 30.0f;
  spec.requests = {{.prefix_length = 5, .nodes = 3}, {.prefix_length = 0, .nodes = 4}};
  if (tree_encoding == KDTREE_TREE_CHAIN) {
    for (auto& request : spec.requests)
      request.shape = TreeShape::chain;
  }
  auto made = make_verify_case(spec);
  EXPECT_TRUE(made.has_value()) << made.error().message;
  Bundle bundle;
  bundle.problem = std::move(made->problem);
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7};
  bundle.tokens = Tensor::from<int32_t>(DType::i32, tokens);
  bundle.target_tokens = bundle.tokens;
  bundle.accept_path = Tensor::from<int32_t>(DType::i32, std::vector<int32_t>{0, -1, 0, 1});
  bundle.accept_path.shape = {2, 2};
  bundle.accept_count = Tensor::from<int32_t>(DType::i32, std::vector<int32_t>{1, 2});
  bundle.eos_tokens = Tensor::from<int32_t>(DType::i32, std::vector<int32_t>{1, 5});
  bundle.provenance = {{"source", "bundle_test"}, {"made by", "é"}};
  if (draft_location == KDTREE_DRAFT_IN_POOL) add_what_follows(bundle);
  return bundle;
}

// A bundle's file, to be changed before it is written.
struct Parts {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;

  explicit Parts(const Bundle& bundle = make_bundle()) {
    const TemporaryDirectory directory;
    const auto status = write_bundle(directory.file("a"), bundle);
    EXPECT_TRUE(status.has_value()) << status.error().message;
    const auto file = SafetensorsFile::open(directory.file("a"));
    metadata = file->metadata();
    for (const auto& [name, view] : file->tensors())
      tensors[name] = view.to_tensor();
  }

  Result<Bundle> read() const {
    std::map<std::string, const Tensor*> pointers;
    for (const auto& [name, tensor] : tensors)
      pointers[name] = &tensor;
    const TemporaryDirectory directory;
    const auto status = write_safetensors(directory.file("a"), pointers, metadata);
    EXPECT_TRUE(status.has_value()) << status.error().message;
    return read_bundle(directory.file("a"));
  }

  void set_field(const std::string& name, const std::string& value) {
    std::string& text = metadata["problem"];
    const size_t begin = text.find('"' + name + "\":") + name.size() + 3;
    text.replace(begin, text.find_first_of(",}", begin) - begin, value);
  }

  void set_i32(const std::string& name, size_t index, int32_t value) {
    tensors[name].as<int32_t>()[index] = value;
  }

  void expect_invalid(const std::string& message) const {
    expect_error(read(), KDTREE_INVALID_FILE, "/a: " + message);
  }
};

void expect_same(const char* name, const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.present(), b.present()) << name;
  if (!a.present()) return;
  EXPECT_EQ(a.dtype, b.dtype) << name;
  EXPECT_EQ(a.shape, b.shape) << name;
  EXPECT_EQ(a.bytes, b.bytes) << name;
}

class BundleRoundTrip : public testing::TestWithParam<std::tuple<int32_t, int32_t>> {};

TEST_P(BundleRoundTrip, EveryArrayAndField) {
  const auto [tree_encoding, draft_location] = GetParam();
  const Bundle written = make_bundle(tree_encoding, draft_location);
  const TemporaryDirectory directory;
  const auto status = write_bundle(directory.file("a"), written);
  ASSERT_TRUE(status.has_value()) << status.error().message;
  const auto read = read_bundle(directory.file("a"));
  ASSERT_TRUE(read.has_value()) << read.error().message;
  for (const auto& array : problem_arrays())
    expect_same(array.name, written.problem.*array.tensor, read->problem.*array.tensor);
  for (const auto& array : bundle_arrays())
    expect_same(array.name, written.*array.tensor, (*read).*array.tensor);
  EXPECT_EQ(read->provenance, written.provenance);
  EXPECT_EQ(read->layer, written.layer);
  EXPECT_EQ(read->model, written.model);
  // All scalar fields, but the two that are not the problem's.
  VerifyProblem expected = written.problem.scalars;
  expected.backend = KDTREE_BACKEND_AUTO;
  expected.plan = KDTREE_PLAN_BALANCED;
  const auto bytes = [](const VerifyProblem& problem) { return std::as_bytes(std::span(&problem, 1)); };
  EXPECT_TRUE(std::ranges::equal(bytes(read->problem.scalars), bytes(expected)));
}

INSTANTIATE_TEST_SUITE_P(, BundleRoundTrip,
                         testing::Combine(testing::Values(KDTREE_TREE_CHAIN, KDTREE_TREE_PARENTS,
                                                          KDTREE_TREE_ANCESTOR_BITS, KDTREE_TREE_BOOL_MASK),
                                          testing::Values(KDTREE_DRAFT_IN_POOL, KDTREE_DRAFT_SEPARATE)));

TEST(Bundle, ReadsAndRunsWhatThePythonPackageWrote) {
  auto bundle = read_bundle(golden("bundle.safetensors"));
  ASSERT_TRUE(bundle.has_value()) << bundle.error().message;
  EXPECT_EQ(bundle->provenance.at("source"), "docs/bundle.md");
  EXPECT_FALSE(bundle->problem.out.present());
  EXPECT_FALSE(bundle->problem.lse.present());
  EXPECT_EQ(bundle->problem.scalars.q_dtype, KDTREE_DTYPE_F32);
  bundle->problem.out = Tensor(DType::f32, {2, 2, 16});
  bundle->problem.scalars.backend = KDTREE_BACKEND_ORACLE;
  const auto bytes = verify_workspace_size(bundle->problem.params());
  ASSERT_TRUE(bytes.has_value()) << bytes.error().message;
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> workspace(*bytes / 64 + 1);
  const auto status = run_verify(bundle->problem.params(), workspace.data(), *bytes, nullptr);
  EXPECT_TRUE(status.has_value()) << status.error().message;
  EXPECT_NE(bundle->problem.out.value(0), 0.0);
}

TEST(Bundle, EmptyBatchAndEmptyRequest) {
  CaseSpec spec;
  spec.latent_dim = 16;
  spec.spare_slots = 0;
  for (const auto& requests : {std::vector<RequestSpec>{}, std::vector<RequestSpec>{{.nodes = 0}}}) {
    spec.requests = requests;
    auto made = make_verify_case(spec);
    ASSERT_TRUE(made.has_value()) << made.error().message;
    Bundle bundle;
    bundle.problem = std::move(made->problem);
    const auto read = Parts(bundle).read();
    ASSERT_TRUE(read.has_value()) << read.error().message;
    EXPECT_EQ(read->problem.scalars.batch, static_cast<int32_t>(requests.size()));
  }
}

TEST(Bundle, Metadata) {
  const auto with = [](const std::string& key, const std::string& value) {
    Parts parts;
    parts.metadata[key] = value;
    return parts;
  };
  const auto without = [](const std::string& key) {
    Parts parts;
    parts.metadata.erase(key);
    return parts;
  };
  without("format").expect_invalid("metadata \"format\" is missing, expected \"kdtree-bundle\"");
  with("format", "pt").expect_invalid("metadata \"format\" is \"pt\", expected \"kdtree-bundle\"");
  without("version").expect_invalid("bundle version is missing, expected \"1\"");
  with("version", "2").expect_invalid("bundle version is \"2\", expected \"1\", the one this program reads");
  without("problem").expect_invalid("metadata \"problem\" is missing");
  with("source", "x")
      .expect_invalid("metadata \"source\" is unknown, expected a name that starts with \"provenance.\"");
}

TEST(Bundle, ProblemText) {
  const auto problem = [](const std::string& text) {
    Parts parts;
    parts.metadata["problem"] = text;
    return parts;
  };
  problem("").expect_invalid("metadata \"problem\" is not the text of a JSON object");
  problem("[]").expect_invalid("metadata \"problem\" is not the text of a JSON object");
  problem("{}").expect_invalid("metadata \"problem\" has no batch");
  problem(std::string(65537, ' '))
      .expect_invalid("metadata \"problem\" has 65537 bytes, expected at most 65536");
  const std::string good = Parts().metadata["problem"];
  problem(good + std::string("\0x", 2))
      .expect_invalid("metadata \"problem\" is not the text of a JSON object");
  problem("{\"color\":1," + good.substr(1))
      .expect_invalid("metadata \"problem\" has a field \"color\", which");
  problem("{\"heads\":2," + good.substr(1)).expect_invalid("metadata \"problem\" has a field twice");
  const auto field = [](const std::string& name, const std::string& value, const std::string& message) {
    Parts parts;
    parts.set_field(name, value);
    parts.expect_invalid("metadata \"problem\" " + message);
  };
  field("heads", "2.0", "heads is 2.0, expected a 32-bit integer");
  field("heads", "\"2\"", "heads is \"2\", expected a 32-bit integer");
  field("heads", "2147483648", "heads is 2147483648, expected a 32-bit integer");
  field("heads", "-2147483649", "heads is -2147483649, expected a 32-bit integer");
  field("kv_slots", "9223372036854775808", "kv_slots is 9223372036854775808, expected a 64-bit integer");
  field("scale", "1e39", "scale is 1e+39, expected a number that fits float");
  field("scale", "null", "scale is null, expected a number that fits float");
  field("scale", "true", "scale is true, expected a number that fits float");
}

TEST(Bundle, OptionalFieldsDefaultToZero) {
  const auto problem = problem_from_json(
      R"({"batch":1,"heads":2,"latent_dim":16,"rope_dim":0,"scale":1,"out_dtype":1,"kv_slots":4,)"
      R"("draft_location":0,"tree_encoding":0})");
  ASSERT_TRUE(problem.has_value()) << problem.error().message;
  EXPECT_EQ(problem->scale, 1.0f);
  EXPECT_EQ(problem->logit_cap, 0.0f);
  EXPECT_EQ(problem->mask_column_offset, 0);
}

TEST(Bundle, MissingArrays) {
  for (const char* name : {"q", "qo_indptr", "kv_indptr", "kv", "kv_indices", "draft_slots", "parents"}) {
    Parts parts;
    parts.tensors.erase(name);
    parts.expect_invalid(std::string(name) + " is missing, expected an array");
  }
  Parts separate(make_bundle(KDTREE_TREE_ANCESTOR_BITS, KDTREE_DRAFT_SEPARATE));
  Parts without_draft_kv = separate;
  without_draft_kv.tensors.erase("draft_kv");
  without_draft_kv.expect_invalid("draft_kv is missing, expected an array with draft_location 1");
  separate.tensors.erase("ancestor_bits");
  separate.expect_invalid("ancestor_bits is missing, expected an array with tree_encoding 2");
  for (const char* name : {"mask", "mask_indptr"}) {
    Parts masked(make_bundle(KDTREE_TREE_BOOL_MASK));
    masked.tensors.erase(name);
    masked.expect_invalid(std::string(name) + " is missing, expected an array with tree_encoding 3");
  }
  for (const char* name : {"accept_path", "accept_count"}) {
    Parts parts;
    parts.tensors.erase(name);
    parts.expect_invalid(std::string(name) + " is missing, expected accept_path and accept_count together");
  }
}

TEST(Bundle, UnknownArrayAndScalarArray) {
  Parts unknown;
  unknown.tensors["colors"] = Tensor(DType::u8, {1});
  unknown.expect_invalid("tensor \"colors\" is unknown: bundles of version 1 do not define it");
  Parts scalar;
  scalar.tensors["tokens"].shape = {};
  scalar.tensors["tokens"].bytes.resize(4);
  scalar.expect_invalid("tensor \"tokens\" has no dimension, expected at least one");
}

TEST(Bundle, ElementTypes) {
  const auto with_type = [](const char* name, DType type, const std::string& message) {
    Parts parts(make_bundle(KDTREE_TREE_BOOL_MASK, KDTREE_DRAFT_IN_POOL));
    parts.tensors[name] = Tensor(type, {1000});
    parts.expect_invalid(message);
  };
  with_type("q", DType::i32, "q_dtype is 16 (i32), expected one of f32");
  with_type("qo_indptr", DType::f32, "kv_indptr is i32, expected f32");
  with_type("kv_indptr", DType::i64, "kv_indptr is i64, expected i32");
  with_type("draft_slots", DType::i64, "draft_slots is i64, expected i32");
  with_type("draft_kv", DType::f32, "draft_kv is f32, expected bf16");
  with_type("parents", DType::i64, "parents is i64, expected i32");
  with_type("ancestor_bits", DType::i64, "ancestor_bits is i64, expected u64");
  with_type("mask", DType::i32, "mask is i32, expected u8");
  with_type("mask_indptr", DType::i32, "mask_indptr is i32, expected i64");
  with_type("out", DType::f32, "out is f32, expected bf16");
  with_type("lse", DType::f64, "lse is f64, expected f32");
  with_type("tokens", DType::i64, "tokens is i64, expected i32");
}

// One element less than needed, of every array of every encoding.
TEST(Bundle, ShortArrays) {
  for (const int32_t encoding : {KDTREE_TREE_PARENTS, KDTREE_TREE_ANCESTOR_BITS, KDTREE_TREE_BOOL_MASK}) {
    for (const int32_t location : {KDTREE_DRAFT_IN_POOL, KDTREE_DRAFT_SEPARATE}) {
      Bundle bundle = make_bundle(encoding, location);
      bundle.problem.out = Tensor(DType::bf16, {7, 2, 16});
      bundle.problem.lse = Tensor(DType::f32, {7, 2});
      // Of these, more than is needed may be there.
      for (Tensor* tensor : {&bundle.problem.kv_indices, &bundle.problem.mask_indptr}) {
        if (!tensor->present()) continue;
        tensor->shape = {tensor == &bundle.problem.kv_indices ? 5 : 2};
        tensor->bytes.resize(static_cast<size_t>(tensor->size() * dtype_size(tensor->dtype)));
      }
      const Parts whole(bundle);
      for (const auto& [name, tensor] : whole.tensors) {
        if (name == "accept_path" || name == "eos_tokens" || name == "residual" || name == "later_kv")
          continue;
        Parts cut = whole;
        const int64_t elements = tensor.size();
        Tensor& shorter = cut.tensors[name];
        shorter.shape = {elements - 1};
        shorter.bytes.resize(shorter.bytes.size() - static_cast<size_t>(dtype_size(tensor.dtype)));
        cut.expect_invalid(
            name == "mask"
                ? "mask: request 1 starts at byte 24 of 39, expected room for its 4 rows"
                : fmt::format("{} has {} elements, expected at least {}", name, elements - 1, elements));
      }
    }
  }
}

TEST(Bundle, SizesThatOverflow) {
  Parts parts;
  parts.set_field("q_token_stride", "4611686018427387904");
  parts.expect_invalid("q has 448 elements, expected at least 2^63: the sizes overflow");
}

TEST(Bundle, Indptr) {
  for (const char* name : {"qo_indptr", "kv_indptr"}) {
    Parts start;
    start.set_i32(name, 0, 1);
    start.expect_invalid(std::string(name) + "[0] is 1, expected 0");
    Parts decrease;
    decrease.set_i32(name, 2, -1);
    decrease.expect_invalid(fmt::format("{}[2] is -1 after {}, expected 0 ..", name, name[0] == 'q' ? 3 : 5));
  }
}

TEST(Bundle, MaskRanges) {
  const Parts whole(make_bundle(KDTREE_TREE_BOOL_MASK));
  for (const int64_t offset : {int64_t{-1}, int64_t{41}, std::numeric_limits<int64_t>::max()}) {
    Parts parts = whole;
    parts.tensors["mask_indptr"].as<int64_t>()[1] = offset;
    parts.expect_invalid(fmt::format("mask: request 1 starts at byte {} of 40", offset));
  }
  Parts wide = whole;
  wide.set_field("mask_row_stride", "4611686018427387904");
  wide.expect_invalid("mask: request 0 starts at byte 0 of 40");
}

TEST(Bundle, FieldsAndContentsAreValidated) {
  Parts field;
  field.set_field("heads", "0");
  field.expect_invalid("heads is 0, expected 1 .. 1024");
  Parts slot;
  slot.set_i32("draft_slots", 3, 1'000'000);
  slot.expect_invalid("draft_slots[3] is 1000000, expected a slot");
}

TEST(Bundle, AcceptedPaths) {
  Parts shape;
  shape.tensors["accept_path"].shape = {4};
  shape.expect_invalid("accept_path has 1 dimensions and 4 rows, expected 2 and 2");
  Parts rows;
  rows.tensors["accept_path"].shape = {1, 4};
  rows.expect_invalid("accept_path has 2 dimensions and 1 rows, expected 2 and 2");
  for (const int32_t count : {-1, 3}) {
    Parts parts;
    parts.set_i32("accept_count", 1, count);
    parts.expect_invalid(fmt::format("accept_count[1] is {}, expected 0 .. 2", count));
  }
  for (const int32_t node : {-1, 4}) {
    Parts parts;
    parts.set_i32("accept_path", 3, node);
    parts.expect_invalid(fmt::format("accept_path: request 1 has node {}, expected 0 .. 3", node));
  }
}

TEST(Bundle, WhatFollowsTheLayerIsThereOrNot) {
  for (const char* name :
       {"residual", "later_kv", "temperature", "top_k", "top_p", "min_p", "seed", "request"}) {
    Parts parts;
    parts.tensors.erase(name);
    parts.expect_invalid(
        fmt::format("{} is missing, expected an array with metadata \"layer\" and \"model\"", name));
    Parts stray;
    stray.metadata.erase("layer");
    stray.metadata.erase("model");
    for (const auto& array : bundle_arrays()) {
      if (array.resumes && std::string(array.name) != name) stray.tensors.erase(array.name);
    }
    stray.expect_invalid(
        fmt::format("{} is there, expected it only with metadata \"layer\" and \"model\"", name));
  }
  for (const char* name : {"tokens", "target_tokens"}) {
    Parts parts;
    parts.tensors.erase(name);
    parts.expect_invalid(std::string(name) + " is missing, expected an array with residual");
  }
  Parts path;
  path.tensors.erase("accept_path");
  path.tensors.erase("accept_count");
  path.expect_invalid("accept_path is missing, expected an array with residual");
  for (const char* key : {"layer", "model"}) {
    Parts parts;
    parts.metadata.erase(key);
    parts.expect_invalid(fmt::format("metadata \"{}\" is missing, expected layer and model together", key));
  }
  Parts none;
  none.metadata.erase("layer");
  none.metadata.erase("model");
  for (const auto& array : bundle_arrays()) {
    if (array.resumes) none.tensors.erase(array.name);
  }
  const auto read = none.read();
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_FALSE(read->resumable());
  EXPECT_TRUE(Parts().read()->resumable());
}

TEST(Bundle, WhatFollowsTheLayerFits) {
  for (const char* layer : {"", "-1", "3x", "0x3", "2147483648"}) {
    Parts parts;
    parts.metadata["layer"] = layer;
    parts.expect_invalid(
        fmt::format("metadata \"layer\" is \"{}\", expected a number in 0 .. 2^31 - 1", layer));
  }
  for (const char* model : {"0123456789abcde", "0123456789abcdeF", "0123456789abcdef0"}) {
    Parts parts;
    parts.metadata["model"] = model;
    parts.expect_invalid(fmt::format("metadata \"model\" is \"{}\", expected 16 hexadecimal digits", model));
  }
  const auto with_shape = [](const char* name, std::vector<int64_t> shape, const std::string& message) {
    Parts parts;
    parts.tensors[name] = Tensor(parts.tensors[name].dtype, std::move(shape));
    parts.expect_invalid(message);
  };
  with_shape("residual", {42}, "residual has shape [42], expected [7, 42]");
  with_shape("residual", {6, 6}, "residual has shape [6, 6], expected [7, 6]");
  with_shape("residual", {7, 6, 1}, "residual has shape [7, 6, 1], expected [7, 1]");
  const int64_t slots = make_bundle().problem.scalars.kv_slots;
  with_shape("later_kv", {2, slots},
             fmt::format("later_kv has shape [2, {}], expected [2, {}, 32]", slots, slots));
  with_shape("later_kv", {2, slots - 1, 32},
             fmt::format("later_kv has shape [2, {}, 32], expected [2, {}, 32]", slots - 1, slots));
  with_shape("later_kv", {2, slots, 16},
             fmt::format("later_kv has shape [2, {}, 16], expected [2, {}, 32]", slots, slots));
  with_shape("seed", {1}, "seed has 1 elements, expected at least 2");
  Parts type;
  type.tensors["later_kv"] = Tensor(DType::f32, type.tensors["later_kv"].shape);
  type.expect_invalid("later_kv is f32, expected bf16");
  Parts words;
  words.tensors["seed"] = Tensor(DType::i64, {2});
  words.expect_invalid("seed is i64, expected u64");
  Parts twice;
  const int32_t slot = twice.tensors["draft_slots"].as<int32_t>()[2];
  twice.set_i32("draft_slots", 5, slot);
  twice.expect_invalid(
      fmt::format("draft_slots has slot {} twice, expected distinct slots with residual", slot));
  Parts shared;
  const int32_t prefix_slot = shared.tensors["kv_indices"].as<int32_t>()[1];
  shared.set_i32("draft_slots", 5, prefix_slot);
  shared.expect_invalid(fmt::format(
      "kv_indices[1] is slot {}, one of draft_slots, expected slots of its own with residual", prefix_slot));
  Bundle separate = make_bundle(KDTREE_TREE_PARENTS, KDTREE_DRAFT_SEPARATE);
  add_what_follows(separate);
  const TemporaryDirectory directory;
  expect_error(write_bundle(directory.file("a"), separate), KDTREE_INVALID_ARGUMENT,
               "draft_location is 1, expected 0 (in the pool) with residual");
  // The last layer has none behind it.
  Bundle last = make_bundle();
  last.later_kv = Tensor(DType::bf16, {0, slots, 32});
  const auto read = Parts(last).read();
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->later_kv.shape, last.later_kv.shape);
}

TEST(Bundle, WritesOnlyWhatItReads) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("a");
  ASSERT_TRUE(write_bundle(path, make_bundle()).has_value());
  const std::string before = read_text(path);
  Bundle bad = make_bundle();
  bad.problem.scalars.scale = std::numeric_limits<float>::quiet_NaN();
  expect_error(write_bundle(path, bad), KDTREE_INVALID_ARGUMENT,
               path + ": scale is nan, expected a finite number");
  Bundle stray = make_bundle();
  stray.problem.scalars.q_dtype = KDTREE_DTYPE_F32;
  expect_error(write_bundle(path, stray), KDTREE_INVALID_ARGUMENT, path + ": q is bf16, expected f32");
  EXPECT_EQ(read_text(path), before);
  EXPECT_EQ(directory.entries(), 1u);
}

RC_GTEST_PROP(BundleFields, FloatsReadBackBitForBit, (uint32_t bits)) {
  const auto value = std::bit_cast<float>(bits);
  RC_PRE(std::isfinite(value));
  auto problem = kdtree_init<VerifyProblem>();
  problem.scale = value;
  problem.kv_slots = std::numeric_limits<int64_t>::max();
  problem.mask_column_offset = -1;
  const auto read = problem_from_json(problem_to_json(problem));
  RC_ASSERT(read.has_value());
  RC_ASSERT(std::bit_cast<uint32_t>(read->scale) == bits);
  RC_ASSERT(read->kv_slots == problem.kv_slots);
  RC_ASSERT(read->mask_column_offset == -1);
}

}  // namespace
}  // namespace kdtree
