#include "cases/verify_case.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "cases/random.h"
#include "tree/ancestor_bits.h"

namespace kdtree {
namespace {

constexpr std::array<const char*, 5> kShapeNames = {"chain", "star", "comb", "binary", "random"};
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

int32_t parent_of(TreeShape shape, int32_t node, Random& random) {
  switch (shape) {
    case TreeShape::chain:
      return node - 1;
    case TreeShape::star:
      return 0;
    case TreeShape::comb:  // a spine of odd nodes, each with one tooth
      return node % 2 == 1 ? std::max(node - 2, 0) : node - 1;
    case TreeShape::binary:
      return (node - 1) / 2;
    case TreeShape::random:
      break;
  }
  return static_cast<int32_t>(random.below(node));
}

DraftTree make_tree(const RequestSpec& request, Random& random) {
  const int64_t nodes = request.nodes - request.padding_rows;
  DraftTree tree;
  for (int32_t i = 0; i < nodes; ++i) {
    const int32_t parent = i == 0 ? -1 : parent_of(request.shape, i, random);
    const auto p = static_cast<size_t>(std::max(parent, 0));
    tree.parent.push_back(parent);
    tree.depth.push_back(i == 0 ? 0 : tree.depth[p] + 1);
    tree.log_weight.push_back(i == 0 ? 0.0 : tree.log_weight[p] - 0.1 - random.uniform());
    tree.token.push_back(3 * i + static_cast<int32_t>(random.below(3)));  // all different
  }
  return tree;
}

Status check_spec(const CaseSpec& spec) {
  const auto expect = [](bool good, const char* field, int64_t value, const char* expected) -> Status {
    if (good) return {};
    return fail(KDTREE_INVALID_ARGUMENT, "{} is {}, expected {}", field, value, expected);
  };
  KDTREE_RETURN_IF_ERROR(
      expect(spec.page_size >= 1 && spec.page_size <= 65536, "page_size", spec.page_size, "1 .. 65536"));
  KDTREE_RETURN_IF_ERROR(expect(spec.spare_slots >= 0, "spare_slots", spec.spare_slots, ">= 0"));
  KDTREE_RETURN_IF_ERROR(expect(spec.stride_padding >= 0, "stride_padding", spec.stride_padding, ">= 0"));
  KDTREE_RETURN_IF_ERROR(expect(spec.latent_dim >= 16 && spec.rope_dim >= 0 && spec.heads >= 1, "latent_dim",
                                spec.latent_dim, ">= 16, with rope_dim >= 0 and heads >= 1"));
  for (const RequestSpec& request : spec.requests) {
    KDTREE_RETURN_IF_ERROR(
        expect(request.nodes >= 0 && request.nodes <= 1 << 20, "nodes", request.nodes, "0 .. 1048576"));
    KDTREE_RETURN_IF_ERROR(expect(request.prefix_length >= 0 && request.prefix_length <= int64_t{1} << 32,
                                  "prefix_length", request.prefix_length, "0 .. 2^32"));
    KDTREE_RETURN_IF_ERROR(expect(request.padding_rows >= 0 && request.padding_rows <= request.nodes,
                                  "padding_rows", request.padding_rows, "0 .. nodes"));
    if (request.padding_rows > 0 && spec.tree_encoding == KDTREE_TREE_CHAIN) {
      return fail(KDTREE_INVALID_ARGUMENT, "padding_rows is {}, expected 0 with KDTREE_TREE_CHAIN",
                  request.padding_rows);
    }
    if (request.shape != TreeShape::chain && request.nodes > 1 && spec.tree_encoding == KDTREE_TREE_CHAIN) {
      return fail(KDTREE_INVALID_ARGUMENT, "shape is {}, expected chain with KDTREE_TREE_CHAIN",
                  tree_shape_name(request.shape));
    }
  }
  return {};
}

void set_index(Tensor& tensor, int64_t i, int64_t value) {
  if (tensor.dtype == DType::i64) {
    tensor.as<int64_t>()[static_cast<size_t>(i)] = value;
  } else {
    tensor.as<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(value);
  }
}

class Generator {
 public:
  Generator(const CaseSpec& spec, const Progress& progress)
      : spec_(spec), progress_(progress), random_(spec.seed) {
    width_ = int64_t{spec.latent_dim} + spec.rope_dim;
    row_stride_ = width_ + spec.stride_padding;
    result_.spec = spec;
  }

  VerifyCase make() {
    fill_scalars();
    lay_out_batch();
    if (!make_kv()) return std::move(result_);
    make_trees();
    make_query_and_outputs();
    return std::move(result_);
  }

 private:
  OwnedProblem& problem() { return result_.problem; }
  bool in_pool() const { return spec_.draft_location == KDTREE_DRAFT_IN_POOL; }

  void fill_scalars() {
    VerifyProblem& p = problem().scalars;
    p.batch = static_cast<int32_t>(spec_.requests.size());
    p.heads = spec_.heads;
    p.latent_dim = spec_.latent_dim;
    p.rope_dim = spec_.rope_dim;
    // DeepSeek's absorbed scale, (nope + rope)^-1/2, with its nope size of 128.
    p.scale =
        spec_.scale != 0.0f ? spec_.scale : 1.0f / std::sqrt(128.0f + static_cast<float>(spec_.rope_dim));
    p.logit_cap = spec_.logit_cap;
    p.q_dtype = static_cast<int32_t>(spec_.q_dtype);
    p.out_dtype = static_cast<int32_t>(spec_.out_dtype);
    p.kv_dtype = static_cast<int32_t>(spec_.kv_dtype);
    p.kv_scale = spec_.kv_dtype == DType::e4m3 ? 0.25f : 0.0f;
    p.lse_dtype = spec_.out_dtype == DType::f64 ? KDTREE_DTYPE_F64 : 0;
    p.indptr_dtype = static_cast<int32_t>(spec_.indptr_dtype);
    p.kv_indices_dtype = static_cast<int32_t>(spec_.index_dtype);
    p.draft_location = spec_.draft_location;
    p.tree_encoding = spec_.tree_encoding;
    if (spec_.stride_padding > 0) {
      p.kv_row_stride = row_stride_;
      p.draft_row_stride = row_stride_;
      p.q_head_stride = row_stride_;
      p.q_token_stride = spec_.heads * row_stride_ + spec_.stride_padding;
      p.out_head_stride = spec_.latent_dim + spec_.stride_padding;
      p.out_token_stride = spec_.heads * p.out_head_stride + spec_.stride_padding;
      p.lse_token_stride = spec_.heads + spec_.stride_padding;
    }
  }

  // indptr arrays, and a random page for every page_size positions of every request.
  void lay_out_batch() {
    const auto batch = static_cast<int64_t>(spec_.requests.size());
    problem().qo_indptr = Tensor(spec_.indptr_dtype, {batch + 1});
    problem().kv_indptr = Tensor(spec_.indptr_dtype, {batch + 1});
    int64_t prefix = 0;
    int64_t pages = ceil_div(spec_.spare_slots, spec_.page_size);
    for (int64_t r = 0; r < batch; ++r) {
      const RequestSpec& request = spec_.requests[static_cast<size_t>(r)];
      rows_ += request.nodes;
      prefix += request.prefix_length;
      set_index(problem().qo_indptr, r + 1, rows_);
      set_index(problem().kv_indptr, r + 1, prefix);
      pages += pages_of(request);
    }
    prefix_rows_ = prefix;
    pages_.resize(static_cast<size_t>(pages));
    for (size_t i = 0; i < pages_.size(); ++i)
      pages_[i] = static_cast<int64_t>(i);
    random_.shuffle(std::span(pages_));
    first_slot_ = spec_.contiguous ? prefix : 0;
    problem().scalars.kv_slots = first_slot_ + pages * spec_.page_size;
    if (spec_.contiguous) return;
    // Two entries more than needed: over-allocation is allowed, and these must not be read.
    problem().kv_indices = Tensor(spec_.index_dtype, {prefix + 2});
    set_index(problem().kv_indices, prefix, -1);
    set_index(problem().kv_indices, prefix + 1, -1);
  }

  int64_t pages_of(const RequestSpec& request) const {
    return ceil_div(request.prefix_length + (in_pool() ? request.nodes : 0), spec_.page_size);
  }

  // Random rows where a request has a position, NaN everywhere else. False when stopped.
  bool make_kv() {
    Tensor& kv = problem().kv;
    kv = Tensor(spec_.kv_dtype, {problem().scalars.kv_slots, row_stride_});
    fill(kv, kNaN);
    if (in_pool()) {
      problem().draft_slots = Tensor(spec_.index_dtype, {rows_});
    } else {
      problem().draft_kv = Tensor(spec_.kv_dtype, {rows_, row_stride_});
      fill(problem().draft_kv, kNaN);
    }
    int64_t first_page = 0;
    int64_t prefix = 0;
    int64_t row = 0;
    for (const RequestSpec& request : spec_.requests) {
      const auto slot_of = [&](int64_t position) {
        const int64_t page = pages_[static_cast<size_t>(first_page + position / spec_.page_size)];
        return first_slot_ + page * spec_.page_size + position % spec_.page_size;
      };
      for (int64_t i = 0; i < request.prefix_length; ++i, ++prefix) {
        if (!spec_.contiguous) set_index(problem().kv_indices, prefix, slot_of(i));
        write_row(kv, spec_.contiguous ? prefix : slot_of(i));
        if (progress_ && !progress_(prefix + 1, prefix_rows_)) return false;
      }
      for (int64_t i = 0; i < request.nodes; ++i, ++row) {
        if (in_pool()) set_index(problem().draft_slots, row, slot_of(request.prefix_length + i));
        if (i >= request.nodes - request.padding_rows) continue;
        write_row(in_pool() ? kv : problem().draft_kv, in_pool() ? slot_of(request.prefix_length + i) : row);
      }
      first_page += pages_of(request);
    }
    return true;
  }

  void write_row(Tensor& tensor, int64_t row) {
    const double spread = spec_.kv_dtype == DType::e4m3 ? 4.0 : 1.0;
    for (int64_t c = 0; c < width_; ++c)
      tensor.set(row * row_stride_ + c, spread * random_.normal());
  }

  void make_trees() {
    std::vector<int32_t> parents;
    int64_t most_nodes = 0;
    for (const RequestSpec& request : spec_.requests) {
      result_.trees.push_back(make_tree(request, random_));
      const DraftTree& tree = result_.trees.back();
      parents.insert(parents.end(), tree.parent.begin(), tree.parent.end());
      parents.insert(parents.end(), static_cast<size_t>(request.padding_rows), KDTREE_PARENT_PADDING);
      most_nodes = std::max(most_nodes, request.nodes);
    }
    if (spec_.tree_encoding == KDTREE_TREE_PARENTS) {
      problem().parents = Tensor::from<int32_t>(DType::i32, parents);
    } else if (spec_.tree_encoding != KDTREE_TREE_CHAIN) {
      const int64_t words = ceil_div(most_nodes, 64);
      Tensor bits(DType::u64, {rows_, words});
      int64_t row = 0;
      for (const RequestSpec& request : spec_.requests) {
        ancestor_bits_from_parents(std::span<const int32_t>(parents).subspan(
                                       static_cast<size_t>(row), static_cast<size_t>(request.nodes)),
                                   bits.as<uint64_t>().subspan(static_cast<size_t>(row * words)), words);
        row += request.nodes;
      }
      if (spec_.tree_encoding == KDTREE_TREE_ANCESTOR_BITS) {
        problem().ancestor_bits = std::move(bits);
      } else {
        make_mask(bits, words);
      }
    }
  }

  // SGLang's layout. Where prefix columns are not to be read they are 0, so that reading them shows.
  void make_mask(const Tensor& bits, int64_t words) {
    const bool skip_prefix = spec_.seed % 2 == 0;
    problem().scalars.mask_skip_prefix = skip_prefix ? 1 : 0;
    std::vector<uint8_t> mask;
    std::vector<int64_t> indptr = {0};
    int64_t row = 0;
    for (const RequestSpec& request : spec_.requests) {
      for (int64_t i = 0; i < request.nodes; ++i, ++row) {
        mask.insert(mask.end(), static_cast<size_t>(request.prefix_length), skip_prefix ? 0 : 1);
        for (int64_t j = 0; j < request.nodes; ++j) {
          const uint64_t word = bits.as<uint64_t>()[static_cast<size_t>(row * words + j / 64)];
          mask.push_back(static_cast<uint8_t>(word >> (j % 64) & 1));
        }
      }
      indptr.push_back(static_cast<int64_t>(mask.size()));
    }
    problem().mask = Tensor::from<uint8_t>(DType::u8, mask);
    problem().mask_indptr = Tensor::from<int64_t>(DType::i64, indptr);
  }

  void make_query_and_outputs() {
    const VerifyProblem& p = problem().scalars;
    // Servers leave anything in the queries of padding rows.
    problem().q = Tensor(spec_.q_dtype, {rows_, q_token_stride(p)});
    fill(problem().q, kNaN);
    int64_t t = 0;
    for (const RequestSpec& request : spec_.requests) {
      for (int64_t i = 0; i < request.nodes; ++i, ++t) {
        if (i < request.nodes - request.padding_rows) make_query(t);
      }
    }
    // NaN: an element that a backend does not write fails the comparison.
    problem().out = Tensor(spec_.out_dtype, {rows_, out_token_stride(p)});
    fill(problem().out, kNaN);
    if (spec_.want_lse) {
      problem().lse = Tensor(lse_dtype(p), {rows_, lse_token_stride(p)});
      fill(problem().lse, kNaN);
    }
  }

  void make_query(int64_t t) {
    const VerifyProblem& p = problem().scalars;
    for (int64_t h = 0; h < spec_.heads; ++h) {
      for (int64_t c = 0; c < width_; ++c)
        problem().q.set(t * q_token_stride(p) + h * q_head_stride(p) + c, random_.normal());
    }
  }

  static void fill(Tensor& tensor, double value) {
    for (int64_t i = 0; i < tensor.size(); ++i)
      tensor.set(i, value);
  }

  const CaseSpec& spec_;
  const Progress& progress_;
  Random random_;
  VerifyCase result_;
  std::vector<int64_t> pages_;
  int64_t width_ = 0;
  int64_t row_stride_ = 0;
  int64_t rows_ = 0;
  int64_t prefix_rows_ = 0;
  int64_t first_slot_ = 0;  // of the pages
};

}  // namespace

Result<TreeShape> parse_tree_shape(const std::string& name) {
  for (size_t i = 0; i < kShapeNames.size(); ++i) {
    if (name == kShapeNames[i]) return static_cast<TreeShape>(i);
  }
  return fail(KDTREE_INVALID_ARGUMENT, "shape is \"{}\", expected chain, star, comb, binary or random", name);
}

const char* tree_shape_name(TreeShape shape) {
  return kShapeNames[static_cast<size_t>(shape)];
}

Result<VerifyCase> make_verify_case(const CaseSpec& spec, const Progress& progress) {
  KDTREE_RETURN_IF_ERROR(check_spec(spec));
  return Generator(spec, progress).make();
}

}  // namespace kdtree
