#include "cli/case_options.h"

#include <algorithm>
#include <map>

#include <fmt/ranges.h>

#include "cli/memory.h"
#include "cli/options.h"
#include "core/checked.h"

namespace kdtree::cli {
namespace {

const std::map<std::string, DType> kDTypes = {
    {"bf16", DType::bf16}, {"f16", DType::f16}, {"f32", DType::f32}, {"e4m3", DType::e4m3}};
const std::map<std::string, int32_t> kEncodings = {{"chain", KDTREE_TREE_CHAIN},
                                                   {"parents", KDTREE_TREE_PARENTS},
                                                   {"bits", KDTREE_TREE_ANCESTOR_BITS},
                                                   {"mask", KDTREE_TREE_BOOL_MASK}};

// The value of request r in a list of one value for all, or one a request.
int64_t pick(const std::vector<int64_t>& list, int32_t r) {
  return list.size() == 1 ? list.front() : list[static_cast<size_t>(r)];
}

// An upper bound of what the generator and a run in double take.
std::optional<int64_t> case_bytes(const CaseSpec& spec) {
  int64_t rows = 0;
  int64_t slots = spec.spare_slots;
  std::optional<int64_t> masks = 0;
  for (const RequestSpec& request : spec.requests) {
    rows += request.nodes;
    slots += request.prefix_length + request.nodes + spec.page_size;
    const auto cells = checked_mul(request.nodes, request.prefix_length + request.nodes);
    masks = cells && masks ? checked_add(*masks, *cells) : std::nullopt;
  }
  const int64_t width = spec.latent_dim + spec.rope_dim;
  const auto queries = checked_mul(rows, int64_t{8} * spec.heads * (width + 2 * spec.latent_dim));
  const auto keys = checked_mul(slots, 8 * width);
  const auto arrays = queries && keys ? checked_add(*queries, *keys) : std::nullopt;
  return arrays && masks ? checked_add(*arrays, *masks) : std::nullopt;
}

}  // namespace

void add_case_options(CLI::App& command, CaseOptions& o) {
  const auto list = [&](const char* name, std::vector<int64_t>& value, const char* help, int64_t least,
                        int64_t most) {
    command
        .add_option_function<std::string>(
            name, [&value](const std::string& text) { value = parse_integers(text); }, help)
        ->type_name("N[,N...]")
        ->check(integers_in(least, most))
        ->default_str(fmt::format("{}", fmt::join(value, ",")));
  };
  const auto word = [&](const char* name, std::string& value, const char* help,
                        const std::vector<std::string>& words) {
    command.add_option(name, value, help)->check(one_of(words))->capture_default_str();
  };
  command.add_option("--heads", o.heads, "Query heads")->check(integer_in(1, 1024))->capture_default_str();
  command.add_option("--latent-dim", o.latent_dim, "Latent columns of a KV row (V is these)")
      ->check(multiple_in(16, 4096, 16))
      ->capture_default_str();
  command.add_option("--rope-dim", o.rope_dim, "Rope columns of a KV row")
      ->check(multiple_in(0, 4096, 16))
      ->capture_default_str();
  command.add_option("--batch", o.batch, "Requests (default: as many as the longer list)")
      ->check(integer_in(1, 65536));
  list("--prefix", o.prefix, "Prefix length of each request, or one for all", 0, int64_t{1} << 31);
  list("--nodes", o.nodes, "Query rows of each request's tree, root included, or one for all", 1, 65536);
  word("--shape", o.shape, "Shape of the trees", {"chain", "star", "comb", "binary", "random"});
  word("--dtype", o.dtype, "Element type of q and out", {"bf16", "f16", "f32"});
  word("--kv-dtype", o.kv_dtype, "Element type of the KV pool (default: --dtype)",
       {"bf16", "f16", "f32", "e4m3"});
  word("--index", o.index, "Type of slots and indptr arrays", {"i32", "i64"});
  word("--encoding", o.encoding, "Tree encoding", {"chain", "parents", "bits", "mask"});
  word("--draft", o.draft, "Where the nodes' KV rows are", {"pool", "separate"});
  command.add_option("--page-size", o.page_size, "Slots a page")
      ->check(integer_in(1, 65536))
      ->capture_default_str();
  command.add_option("--logit-cap", o.logit_cap, "Soft cap of the scores; 0 = none")
      ->check(number_in(0.0, 1e6))
      ->capture_default_str();
  command.add_option("--seed", o.seed, "Seed of everything random")
      ->check(seed_value())
      ->capture_default_str();
}

Result<CaseSpec> case_spec(const CaseOptions& o) {
  const size_t longest = std::max(o.prefix.size(), o.nodes.size());
  const int32_t batch = o.batch > 0 ? o.batch : static_cast<int32_t>(longest);
  for (const auto& [name, list] : {std::pair("--prefix", &o.prefix), std::pair("--nodes", &o.nodes)}) {
    if (list->size() != 1 && list->size() != static_cast<size_t>(batch)) {
      return fail(KDTREE_INVALID_ARGUMENT, "{}: {} values, expected 1 or {}, one a request", name,
                  list->size(), batch);
    }
  }
  if (o.encoding == "chain" && o.shape != "chain") {
    return fail(KDTREE_INVALID_ARGUMENT, "--encoding: 'chain' with --shape {}, expected --shape chain",
                o.shape);
  }
  CaseSpec spec;
  spec.name = "cli";
  spec.seed = o.seed;
  spec.heads = o.heads;
  spec.latent_dim = o.latent_dim;
  spec.rope_dim = o.rope_dim;
  spec.q_dtype = kDTypes.at(o.dtype);
  spec.out_dtype = kDTypes.at(o.dtype);
  spec.kv_dtype = kDTypes.at(o.kv_dtype.empty() ? o.dtype : o.kv_dtype);
  spec.index_dtype = o.index == "i64" ? DType::i64 : DType::i32;
  spec.indptr_dtype = spec.index_dtype;
  spec.tree_encoding = kEncodings.at(o.encoding);
  spec.draft_location = o.draft == "separate" ? KDTREE_DRAFT_SEPARATE : KDTREE_DRAFT_IN_POOL;
  spec.page_size = o.page_size;
  spec.logit_cap = o.logit_cap;
  const auto shape = parse_tree_shape(o.shape);
  if (!shape) return with_context(shape.error(), "--shape: ");
  for (int32_t r = 0; r < batch; ++r)
    spec.requests.push_back({pick(o.prefix, r), pick(o.nodes, r), *shape, 0});
  KDTREE_RETURN_IF_ERROR(check_memory(case_bytes(spec), "--prefix, --nodes, --batch, --heads"));
  return spec;
}

std::string command_line(const CaseOptions& o) {
  std::string line =
      fmt::format("--heads {} --latent-dim {} --rope-dim {}", o.heads, o.latent_dim, o.rope_dim);
  if (o.batch > 0) line += fmt::format(" --batch {}", o.batch);
  line += fmt::format(" --prefix {} --nodes {} --shape {} --dtype {} --kv-dtype {} --index {} --encoding {}",
                      fmt::join(o.prefix, ","), fmt::join(o.nodes, ","), o.shape, o.dtype,
                      o.kv_dtype.empty() ? o.dtype : o.kv_dtype, o.index, o.encoding);
  line += fmt::format(" --draft {} --page-size {} --logit-cap {} --seed {}", o.draft, o.page_size,
                      o.logit_cap, o.seed);
  return line;
}

}  // namespace kdtree::cli
