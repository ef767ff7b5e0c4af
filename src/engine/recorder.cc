#include "engine/recorder.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace kdtree {
namespace {

template <class T>
Tensor copy_array(DType dtype, const void* from, int64_t count) {
  return Tensor::from<T>(dtype, {static_cast<const T*>(from), static_cast<size_t>(count)});
}

Tensor copy_rows(DType dtype, const void* from, std::vector<int64_t> shape) {
  Tensor tensor(dtype, std::move(shape));
  std::memcpy(tensor.bytes.data(), from, tensor.bytes.size());
  return tensor;
}

}  // namespace

OwnedProblem copy_problem(const VerifyProblem& p) {
  OwnedProblem out;
  const int64_t rows = total_rows(p);
  const int64_t prefix = kv_indptr(p)[p.batch];
  std::vector<int64_t> used;
  for (int64_t i = 0; i < prefix; ++i)
    used.push_back(kv_indices(p)[i]);
  for (int64_t t = 0; t < rows; ++t)
    used.push_back(draft_slots(p)[t]);
  std::vector<int64_t> slots = used;
  std::sort(slots.begin(), slots.end());
  slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
  for (int64_t& slot : used)
    slot = std::lower_bound(slots.begin(), slots.end(), slot) - slots.begin();

  VerifyProblem& scalars = out.scalars;
  scalars.batch = p.batch;
  scalars.heads = p.heads;
  scalars.latent_dim = p.latent_dim;
  scalars.rope_dim = p.rope_dim;
  scalars.scale = p.scale;
  scalars.q_dtype = p.q_dtype;
  scalars.out_dtype = p.out_dtype;
  scalars.indptr_dtype = p.indptr_dtype;
  scalars.kv_dtype = p.kv_dtype;
  scalars.draft_location = p.draft_location;
  scalars.tree_encoding = p.tree_encoding;
  scalars.kv_slots = static_cast<int64_t>(slots.size());
  scalars.kv_indices_dtype = KDTREE_DTYPE_I64;
  out.q = copy_rows(static_cast<DType>(p.q_dtype), p.q, {rows, p.heads, row_width(p)});
  out.out = copy_rows(static_cast<DType>(p.out_dtype), p.out, {rows, p.heads, p.latent_dim});
  out.qo_indptr = copy_array<int32_t>(DType::i32, p.qo_indptr, int64_t{p.batch} + 1);
  out.kv_indptr = copy_array<int32_t>(DType::i32, p.kv_indptr, int64_t{p.batch} + 1);
  out.parents = copy_array<int32_t>(DType::i32, p.parents, rows);
  out.kv_indices = copy_array<int64_t>(DType::i64, used.data(), prefix);
  out.draft_slots = copy_array<int64_t>(DType::i64, used.data() + prefix, rows);
  out.kv = Tensor(static_cast<DType>(p.kv_dtype), {scalars.kv_slots, row_width(p)});
  const auto row_bytes = static_cast<size_t>(row_width(p) * dtype_size(out.kv.dtype));
  for (size_t i = 0; i < slots.size(); ++i) {
    std::memcpy(&out.kv.bytes[i * row_bytes],
                static_cast<const std::byte*>(p.kv) + static_cast<size_t>(slots[i]) * row_bytes, row_bytes);
  }
  return out;
}

BundleRecorder::BundleRecorder(Engine& engine, Options options, Sink sink)
    : options_(std::move(options)), sink_(std::move(sink)) {
  engine.watch_verify(
      [this](int64_t layer, const VerifyProblem& problem) { return on_verify(layer, problem); });
  engine.watch([this](const RoundView& round) { on_round(round); });
}

Status BundleRecorder::on_verify(int64_t layer, const VerifyProblem& problem) {
  if (layer == 0) ++round_;
  if (layer != options_.layer || recorded_ == options_.most || round_ % options_.every != 0) return {};
  const int64_t rows = total_rows(problem);
  bundle_ = Bundle{};
  bundle_.problem = copy_problem(problem);
  bundle_.provenance = options_.provenance;
  bundle_.tokens = Tensor(DType::i32, {rows});
  bundle_.target_tokens = Tensor(DType::i32, {rows});
  paths_.clear();
  requests_left_ = problem.batch;
  return {};
}

void BundleRecorder::on_round(const RoundView& round) {
  if (requests_left_ == 0 || !state_) return;
  const auto begin = static_cast<size_t>(bundle_.problem.qo_indptr.as<int32_t>()[paths_.size()]);
  const auto vocab = round.logits.size() / round.tree.token.size();
  for (size_t node = 0; node < round.tree.token.size(); ++node) {
    const int64_t position = round.start + round.tree.depth[node] + 1;
    const auto token =
        sample_token(round.logits.subspan(node * vocab, vocab), round.asked.sampling,
                     static_cast<uint64_t>(round.request), static_cast<uint64_t>(position), sampling_);
    if (!token) {
      state_ = tl::unexpected<Error>(token.error());
      return;
    }
    bundle_.tokens.as<int32_t>()[begin + node] = round.tree.token[node];
    bundle_.target_tokens.as<int32_t>()[begin + node] = *token;
  }
  paths_.emplace_back(round.accept_path.begin(), round.accept_path.end());
  if (--requests_left_ == 0) finish();
}

void BundleRecorder::finish() {
  size_t longest = 0;
  for (const auto& path : paths_)
    longest = std::max(longest, path.size());
  const auto requests = static_cast<int64_t>(paths_.size());
  bundle_.accept_count = Tensor(DType::i32, {requests});
  bundle_.accept_path = Tensor(DType::i32, {requests, static_cast<int64_t>(longest)});
  const auto all = bundle_.accept_path.as<int32_t>();
  std::fill(all.begin(), all.end(), -1);
  for (size_t r = 0; r < paths_.size(); ++r) {
    bundle_.accept_count.as<int32_t>()[r] = static_cast<int32_t>(paths_[r].size());
    std::copy(paths_[r].begin(), paths_[r].end(), all.begin() + static_cast<std::ptrdiff_t>(r * longest));
  }
  state_ = sink_(round_, bundle_);
  if (state_) ++recorded_;
}

}  // namespace kdtree
