#include "tests/cases/case_table.h"

#include <string>
#include <utility>

#include "cases/random.h"

namespace kdtree::testing {
namespace {

// Small rows by default: the layout matters to most cases, not the width.
CaseSpec small(std::string name, std::vector<RequestSpec> requests) {
  CaseSpec spec;
  spec.name = std::move(name);
  spec.heads = 2;
  spec.latent_dim = 32;
  spec.rope_dim = 16;
  spec.requests = std::move(requests);
  for (const char c : spec.name)
    spec.seed = spec.seed * 31 + static_cast<unsigned char>(c);
  return spec;
}

std::vector<CaseSpec> make_table() {
  std::vector<CaseSpec> table;
  const auto add = [&](CaseSpec spec) { table.push_back(std::move(spec)); };

  // Tree shapes.
  for (const TreeShape shape :
       {TreeShape::chain, TreeShape::star, TreeShape::comb, TreeShape::binary, TreeShape::random}) {
    add(small(std::string("shape_") + tree_shape_name(shape), {{33, 24, shape}}));
  }
  add(small("one_node", {{40, 1, TreeShape::chain}}));
  add(small("empty_prefix", {{0, 9, TreeShape::random}}));
  add(small("empty_prefix_one_node", {{0, 1, TreeShape::chain}}));
  add(small("no_rows", {{12, 0, TreeShape::chain}, {5, 3, TreeShape::random}, {0, 0, TreeShape::chain}}));
  add(small("no_requests", {}));

  // Node counts and prefix lengths on, just under and just over every tile edge in use: 16, 32, 64, 128, 512.
  for (const int64_t nodes : {8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129}) {
    add(small("nodes_" + std::to_string(nodes), {{20, nodes, TreeShape::random}}));
  }
  for (const int64_t prefix :
       {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1025}) {
    add(small("prefix_" + std::to_string(prefix), {{prefix, 5, TreeShape::random}}));
  }

  add(small("path_over_many_edges", {{500, 150, TreeShape::chain}, {121, 40, TreeShape::comb}}));

  // Ragged batches with padding rows and dummy requests.
  const std::vector<RequestSpec> ragged = {{17, 5, TreeShape::random},  {0, 3, TreeShape::star},
                                           {64, 1, TreeShape::chain},   {129, 33, TreeShape::binary},
                                           {0, 2, TreeShape::chain, 2}, {31, 12, TreeShape::comb, 4}};
  for (const int32_t encoding : {KDTREE_TREE_PARENTS, KDTREE_TREE_ANCESTOR_BITS, KDTREE_TREE_BOOL_MASK}) {
    for (const int32_t location : {KDTREE_DRAFT_IN_POOL, KDTREE_DRAFT_SEPARATE}) {
      CaseSpec spec =
          small("ragged_encoding_" + std::to_string(encoding) + "_draft_" + std::to_string(location), ragged);
      spec.tree_encoding = encoding;
      spec.draft_location = location;
      spec.index_dtype = encoding == KDTREE_TREE_PARENTS ? DType::i64 : DType::i32;
      spec.indptr_dtype = location == KDTREE_DRAFT_SEPARATE ? DType::i64 : DType::i32;
      add(spec);
    }
  }
  for (const int32_t location : {KDTREE_DRAFT_IN_POOL, KDTREE_DRAFT_SEPARATE}) {
    CaseSpec spec = small("contiguous_draft_" + std::to_string(location), ragged);
    spec.contiguous = true;
    spec.draft_location = location;
    add(spec);
  }
  {
    CaseSpec spec = small("mask_prefix_not_read", ragged);
    spec.tree_encoding = KDTREE_TREE_BOOL_MASK;
    spec.seed = 2;
    add(spec);
    spec.name = "mask_prefix_read";
    spec.seed = 3;
    add(spec);
  }
  {
    CaseSpec spec = small("chain_encoding", {{17, 6, TreeShape::chain}, {3, 1, TreeShape::chain}});
    spec.tree_encoding = KDTREE_TREE_CHAIN;
    add(spec);
  }

  // Element types.
  for (const DType kv : {DType::f32, DType::f16, DType::bf16, DType::e4m3}) {
    for (const DType q : {DType::f32, DType::f16, DType::bf16}) {
      CaseSpec spec = small(std::string("kv_") + dtype_name(kv) + "_q_" + dtype_name(q),
                            {{37, 7, TreeShape::random}, {9, 4, TreeShape::random}});
      spec.kv_dtype = kv;
      spec.q_dtype = q;
      spec.out_dtype = q;
      add(spec);
    }
  }

  // Layouts and sizes.
  for (const int64_t page_size : {16, 64}) {
    CaseSpec spec = small("page_size_" + std::to_string(page_size),
                          {{page_size, 7, TreeShape::random}, {page_size * 2 + 1, 9, TreeShape::random}});
    spec.page_size = page_size;
    add(spec);
  }
  {
    CaseSpec spec = small("padded_strides", ragged);
    spec.stride_padding = 8;
    add(spec);
    spec = small("logit_cap", {{50, 9, TreeShape::random}});
    spec.logit_cap = 2.0f;
    add(spec);
    spec = small("large_scale", {{50, 9, TreeShape::random}});
    spec.scale = 3.0f;  // a nearly one-hot softmax
    add(spec);
    spec = small("huge_scores", {{50, 9, TreeShape::random}, {0, 3, TreeShape::chain}});
    spec.scale = 200.0f;  // exp of a score overflows without its maximum taken off
    add(spec);
    spec = small("no_lse", {{11, 3, TreeShape::random}});
    spec.want_lse = false;
    add(spec);
    spec = small("no_rope", {{21, 6, TreeShape::random}});
    spec.rope_dim = 0;
    add(spec);
    spec = small("one_head", {{21, 6, TreeShape::random}});
    spec.heads = 1;
    add(spec);
    spec = small("many_heads", {{5, 3, TreeShape::random}});
    spec.heads = 128;
    add(spec);
  }
  // The models' own sizes.
  {
    CaseSpec spec = small("deepseek_v3", {{65, 9, TreeShape::random}, {7, 17, TreeShape::random}});
    spec.heads = 8;
    spec.latent_dim = 512;
    spec.rope_dim = 64;
    add(spec);
    spec.name = "deepseek_v3_f32";
    spec.q_dtype = spec.kv_dtype = spec.out_dtype = DType::f32;
    add(spec);
  }
  return table;
}

}  // namespace

const std::vector<CaseSpec>& case_table() {
  static const std::vector<CaseSpec> table = make_table();
  return table;
}

CaseSpec random_spec(uint64_t seed) {
  Random random(seed);
  const auto pick = [&](auto... choices) {
    const auto list = {choices...};
    return *(list.begin() + random.below(static_cast<int64_t>(list.size())));
  };
  CaseSpec spec;
  spec.name = "random_" + std::to_string(seed);
  spec.seed = seed;
  spec.heads = pick(1, 2, 3, 8);
  spec.latent_dim = pick(16, 32, 48, 64);
  spec.rope_dim = pick(0, 16, 32);
  spec.q_dtype = pick(DType::f32, DType::f16, DType::bf16);
  spec.kv_dtype = pick(DType::f32, DType::f16, DType::bf16, DType::e4m3);
  spec.out_dtype = pick(DType::f32, DType::f16, DType::bf16);
  spec.index_dtype = pick(DType::i32, DType::i64);
  spec.indptr_dtype = pick(DType::i32, DType::i64);
  spec.tree_encoding =
      pick(KDTREE_TREE_CHAIN, KDTREE_TREE_PARENTS, KDTREE_TREE_ANCESTOR_BITS, KDTREE_TREE_BOOL_MASK);
  spec.draft_location = pick(KDTREE_DRAFT_IN_POOL, KDTREE_DRAFT_SEPARATE);
  spec.page_size = pick(1, 1, 3, 16);
  spec.stride_padding = pick(0, 0, 1, 5);
  spec.logit_cap = pick(0.0f, 0.0f, 5.0f);
  const int64_t requests = random.below(4);
  for (int64_t r = 0; r < requests; ++r) {
    RequestSpec request;
    request.prefix_length = random.below(80);
    request.nodes = random.below(20);
    request.shape = static_cast<TreeShape>(random.below(5));
    if (spec.tree_encoding == KDTREE_TREE_CHAIN) {
      request.shape = TreeShape::chain;
    } else {
      request.padding_rows = random.below(4) == 0 ? random.below(request.nodes + 1) : 0;
    }
    spec.requests.push_back(request);
  }
  for (RequestSpec& request : spec.requests) {
    if (random.below(5) == 0) request.prefix_length += 100 * random.below(6);
  }
  return spec;
}

}  // namespace kdtree::testing
