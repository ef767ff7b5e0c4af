#include "engine/replay.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "attention/tree_encoding.h"
#include "tree/draft_tree.h"

namespace kdtree {
namespace {

Status check_equal(const char* name, int64_t value, int64_t expected) {
  if (value == expected) return {};
  return fail(KDTREE_INVALID_FILE, "{} is {}, expected the model's {}", name, value, expected);
}

// Adds the request's rows, and their positions, to `batch`.
Status add_request(const VerifyProblem& p, int32_t request, ForwardBatch& batch) {
  const RequestView view = request_view(p, request);
  const auto parents = read_parents(p, request);
  if (!parents) return with_context(parents.error(), fmt::format("request {}: ", request));
  std::vector<int32_t> depth(parents->size());
  depths_from_parents(*parents, depth);
  for (size_t node = 0; node < parents->size(); ++node) {
    batch.positions.push_back(view.prefix_length + depth[node]);
    batch.slots.push_back(draft_slots(p)[view.row_begin + static_cast<int64_t>(node)]);
  }
  batch.parents.insert(batch.parents.end(), parents->begin(), parents->end());
  for (int64_t i = 0; i < view.prefix_length; ++i)
    batch.kv_indices.push_back(kv_indices(p)[view.prefix_begin + i]);
  batch.qo_indptr.push_back(static_cast<int32_t>(batch.parents.size()));
  batch.kv_indptr.push_back(static_cast<int32_t>(batch.kv_indices.size()));
  return {};
}

Result<ForwardBatch> make_batch(const VerifyProblem& p) {
  ForwardBatch batch;
  const int64_t entries = std::max(total_rows(p), kv_indptr(p)[p.batch]);
  if (entries > std::numeric_limits<int32_t>::max()) {
    return fail(KDTREE_UNSUPPORTED, "the indptr arrays go to {}, expected at most {}", entries,
                std::numeric_limits<int32_t>::max());
  }
  batch.qo_indptr = batch.kv_indptr = {0};
  for (int32_t r = 0; r < p.batch; ++r)
    KDTREE_RETURN_IF_ERROR(add_request(p, r, batch));
  batch.tokens.resize(batch.parents.size());  // not read behind the first layer
  batch.logit_rows.resize(batch.parents.size());
  std::iota(batch.logit_rows.begin(), batch.logit_rows.end(), 0);
  return batch;
}

// The prefixes of the layers behind the recorded one.
Result<KvPool> make_pool(const Bundle& bundle, const ModelConfig& config) {
  const VerifyProblem& p = bundle.problem.scalars;
  auto pool = KvPool::create(config.layers, p.kv_slots, config.kv_width(), static_cast<DType>(p.kv_dtype));
  KDTREE_RETURN_IF_ERROR(pool);
  const auto layer_bytes = static_cast<size_t>(p.kv_slots * pool->row_bytes());
  for (int64_t i = 0; i < bundle.later_kv.shape[0] && layer_bytes > 0; ++i) {
    std::memcpy(pool->layer(bundle.layer + 1 + i),
                bundle.later_kv.bytes.data() + static_cast<size_t>(i) * layer_bytes, layer_bytes);
  }
  return pool;
}

std::vector<float> attended(const VerifyProblem& result) {
  std::vector<float> values;
  for (int64_t t = 0; t < total_rows(result); ++t) {
    for (int64_t h = 0; h < result.heads; ++h) {
      const int64_t from = t * out_token_stride(result) + h * out_head_stride(result);
      for (int64_t c = 0; c < result.latent_dim; ++c)
        values.push_back(
            static_cast<float>(load_element(result.out, static_cast<DType>(result.out_dtype), from + c)));
    }
  }
  return values;
}

float top_two_gap(std::span<const float> logits) {
  float best = -std::numeric_limits<float>::infinity();
  float second = best;
  for (const float logit : logits) {
    second = std::max(second, std::min(best, logit));
    best = std::max(best, logit);
  }
  return best - second;
}

SamplingParams sampling_of(const Bundle& bundle, size_t request) {
  return {.temperature = bundle.temperature.as<double>()[request],
          .top_p = bundle.top_p.as<double>()[request],
          .top_k = bundle.top_k.as<int32_t>()[request],
          .min_p = bundle.min_p.as<double>()[request],
          .seed = bundle.seed.as<uint64_t>()[request]};
}

}  // namespace

Result<BundleReplay> BundleReplay::create(TargetModel& target) {
  auto model = target.fingerprint();
  KDTREE_RETURN_IF_ERROR(model);
  return BundleReplay(target, *std::move(model));
}

Status BundleReplay::check(const Bundle& bundle) const {
  const ModelConfig& config = target_.config();
  const VerifyProblem& p = bundle.problem.scalars;
  if (bundle.model != model_) {
    return fail(KDTREE_INVALID_ARGUMENT, "metadata \"model\" is {}, expected {}, the hash of the model given",
                bundle.model, model_);
  }
  // A file may claim any hash.
  KDTREE_RETURN_IF_ERROR(check_equal("heads", p.heads, config.heads));
  KDTREE_RETURN_IF_ERROR(check_equal("latent_dim", p.latent_dim, config.latent_dim));
  KDTREE_RETURN_IF_ERROR(check_equal("rope_dim", p.rope_dim, config.rope_dim));
  KDTREE_RETURN_IF_ERROR(check_equal("residual's width", bundle.residual.shape[1], config.hidden_size));
  if (bundle.layer >= config.layers) {
    return fail(KDTREE_INVALID_FILE, "layer is {}, expected less than the model's {}", bundle.layer,
                config.layers);
  }
  KDTREE_RETURN_IF_ERROR(
      check_equal("later_kv's layers", bundle.later_kv.shape[0], config.layers - 1 - bundle.layer));
  if (p.kv_dtype != KDTREE_DTYPE_F32 && p.kv_dtype != KDTREE_DTYPE_BF16) {
    return fail(KDTREE_INVALID_FILE, "kv is {}, expected f32 or bf16, which the model's cache has",
                dtype_name(static_cast<DType>(p.kv_dtype)));
  }
  return {};
}

Result<std::vector<ReplayedRow>> BundleReplay::run(const Bundle& bundle, const VerifyProblem& result) {
  KDTREE_RETURN_IF_ERROR(check(bundle));
  const auto batch = make_batch(result);
  KDTREE_RETURN_IF_ERROR(batch);
  auto pool = make_pool(bundle, target_.config());
  KDTREE_RETURN_IF_ERROR(pool);
  const auto logits =
      target_.resume(*batch, *pool, bundle.layer, bundle.residual.as<float>(), attended(result));
  KDTREE_RETURN_IF_ERROR(logits);

  std::vector<ReplayedRow> rows;
  const auto vocab = static_cast<size_t>(target_.config().vocab_size);
  for (int32_t r = 0; r < result.batch; ++r) {
    const RequestView view = request_view(result, r);
    const SamplingParams sampling = sampling_of(bundle, static_cast<size_t>(r));
    if (const Status valid = validate(sampling); !valid)
      return fail(KDTREE_INVALID_FILE, "request {}: {}", r, valid.error().message);
    for (int64_t node = 0; node < view.nodes; ++node) {
      const int64_t row = view.row_begin + node;
      const auto t = static_cast<size_t>(row);
      if (batch->parents[t] == KDTREE_PARENT_PADDING) continue;
      const auto own = logits->subspan(t * vocab, vocab);
      const auto token = sample_token(own, sampling, bundle.request.as<uint64_t>()[static_cast<size_t>(r)],
                                      static_cast<uint64_t>(batch->positions[t]) + 1, sampling_);
      rows.push_back({.row = row,
                      .request = r,
                      .node = static_cast<int32_t>(node),
                      .token = token ? *token : -1,
                      .sampled = sampling.temperature > 0.0,
                      .gap = top_two_gap(own)});
    }
  }
  return rows;
}

}  // namespace kdtree
