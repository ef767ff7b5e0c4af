#include "engine/recorder.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "attention/backend.h"
#include "core/scratch.h"

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

// The pool's slots that `p` uses, ascending.
std::vector<int64_t> used_slots(const VerifyProblem& p) {
  std::vector<int64_t> slots;
  for (int64_t i = 0; i < kv_indptr(p)[p.batch]; ++i)
    slots.push_back(kv_indices(p)[i]);
  for (int64_t t = 0; t < total_rows(p); ++t)
    slots.push_back(draft_slots(p)[t]);
  std::sort(slots.begin(), slots.end());
  slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
  return slots;
}

// Where `array` points to, as positions in `slots`.
Tensor renumbered(const IndexArray& array, int64_t count, const std::vector<int64_t>& slots) {
  Tensor tensor(DType::i64, {count});
  for (int64_t i = 0; i < count; ++i) {
    tensor.as<int64_t>()[static_cast<size_t>(i)] =
        std::lower_bound(slots.begin(), slots.end(), array[i]) - slots.begin();
  }
  return tensor;
}

// Appends the rows of `slots` to `to`.
void copy_kv(const VerifyProblem& p, const std::vector<int64_t>& slots, Tensor& to) {
  const auto row_bytes = static_cast<size_t>(row_width(p) * dtype_size(to.dtype));
  for (const int64_t slot : slots) {
    const auto* row = static_cast<const std::byte*>(p.kv) + static_cast<size_t>(slot) * row_bytes;
    to.bytes.insert(to.bytes.end(), row, row + row_bytes);
  }
}

// A copy of `p` and of the arrays it points to, of the pool only the rows of `slots`. For the problems that
// TargetModel makes: contiguous, int32 indptr arrays, parents, drafts in the pool.
OwnedProblem copy_problem(const VerifyProblem& p, const std::vector<int64_t>& slots) {
  OwnedProblem out;
  const int64_t rows = total_rows(p);
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
  out.kv_indices = renumbered(kv_indices(p), kv_indptr(p)[p.batch], slots);
  out.draft_slots = renumbered(draft_slots(p), rows, slots);
  out.kv.dtype = static_cast<DType>(p.kv_dtype);
  out.kv.shape = {scalars.kv_slots, row_width(p)};
  copy_kv(p, slots, out.kv);
  return out;
}

Tensor rounded(const Tensor& from, DType dtype) {
  Tensor to(dtype, from.shape);
  for (int64_t i = 0; i < from.size(); ++i)
    to.set(i, from.value(i));
  return to;
}

// Rounds q, and computes out from it.
Status change_dtype(OwnedProblem& problem, DType dtype) {
  problem.q = rounded(problem.q, dtype);
  problem.out = Tensor(dtype, problem.out.shape);
  problem.scalars.q_dtype = problem.scalars.out_dtype = static_cast<int32_t>(dtype);
  const VerifyProblem p = problem.params();
  const auto bytes = verify_workspace_size(p);
  KDTREE_RETURN_IF_ERROR(bytes);
  std::vector<std::byte> memory(*bytes + Scratch::kAlignment);
  const auto workspace = Scratch::inside(memory).take<std::byte>(static_cast<int64_t>(*bytes));
  return run_verify(p, workspace.data(), *bytes, nullptr);
}

}  // namespace

Result<std::unique_ptr<BundleRecorder>> BundleRecorder::create(Engine& engine, const TargetModel& target,
                                                               Options options, Sink sink) {
  auto model = target.fingerprint();
  KDTREE_RETURN_IF_ERROR(model);
  std::unique_ptr<BundleRecorder> recorder(
      new BundleRecorder(std::move(options), std::move(sink), *std::move(model), target.config().eos_tokens));
  engine.watch_verify(
      [self = recorder.get()](int64_t layer, const VerifyProblem& problem, std::span<const float> residual) {
        return self->on_verify(layer, problem, residual);
      });
  engine.watch([self = recorder.get()](const RoundView& round) { self->on_round(round); });
  return recorder;
}

BundleRecorder::BundleRecorder(Options options, Sink sink, std::string model, std::vector<int32_t> eos_tokens)
    : options_(std::move(options)),
      sink_(std::move(sink)),
      model_(std::move(model)),
      eos_tokens_(std::move(eos_tokens)) {}

Status BundleRecorder::on_verify(int64_t layer, const VerifyProblem& problem,
                                 std::span<const float> residual) {
  if (layer == 0) ++round_;
  const bool wanted =
      recorded_ < options_.most && round_ >= options_.from && (round_ - options_.from) % options_.every == 0;
  if (!wanted) return {};
  if (layer == options_.layer) return start(problem, residual);
  if (layer > options_.layer) {
    copy_kv(problem, slots_, bundle_.later_kv);
    ++bundle_.later_kv.shape[0];
  }
  return {};
}

Status BundleRecorder::start(const VerifyProblem& problem, std::span<const float> residual) {
  const int64_t rows = total_rows(problem);
  const int64_t requests = problem.batch;
  slots_ = used_slots(problem);
  bundle_ = Bundle{};
  bundle_.problem = copy_problem(problem, slots_);
  if (options_.dtype != DType::f32) {
    KDTREE_RETURN_IF_ERROR(change_dtype(bundle_.problem, options_.dtype));
  }
  bundle_.provenance = options_.provenance;
  bundle_.provenance["round"] = fmt::format("{}", round_);
  bundle_.tokens = Tensor(DType::i32, {rows});
  bundle_.target_tokens = Tensor(DType::i32, {rows});
  bundle_.eos_tokens = Tensor::from<int32_t>(DType::i32, eos_tokens_);
  bundle_.layer = static_cast<int32_t>(options_.layer);
  bundle_.model = model_;
  bundle_.residual = Tensor::from<float>(DType::f32, residual);
  bundle_.residual.shape = {rows, static_cast<int64_t>(residual.size()) / rows};
  bundle_.later_kv.dtype = bundle_.problem.kv.dtype;
  bundle_.later_kv.shape = {0, bundle_.problem.scalars.kv_slots, row_width(problem)};
  bundle_.temperature = bundle_.top_p = bundle_.min_p = Tensor(DType::f64, {requests});
  bundle_.top_k = Tensor(DType::i32, {requests});
  bundle_.seed = bundle_.request = Tensor(DType::u64, {requests});
  paths_.clear();
  requests_left_ = requests;
  return {};
}

void BundleRecorder::on_round(const RoundView& round) {
  if (requests_left_ == 0 || !state_) return;
  const SamplingParams& sampling = round.asked.sampling;
  const size_t request = paths_.size();
  bundle_.temperature.as<double>()[request] = sampling.temperature;
  bundle_.top_k.as<int32_t>()[request] = sampling.top_k;
  bundle_.top_p.as<double>()[request] = sampling.top_p;
  bundle_.min_p.as<double>()[request] = sampling.min_p;
  bundle_.seed.as<uint64_t>()[request] = sampling.seed;
  bundle_.request.as<uint64_t>()[request] = static_cast<uint64_t>(round.request);
  const auto begin = static_cast<size_t>(bundle_.problem.qo_indptr.as<int32_t>()[request]);
  const auto vocab = round.logits.size() / round.tree.token.size();
  for (size_t node = 0; node < round.tree.token.size(); ++node) {
    const int64_t position = round.start + round.tree.depth[node] + 1;
    const auto token =
        sample_token(round.logits.subspan(node * vocab, vocab), sampling,
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
