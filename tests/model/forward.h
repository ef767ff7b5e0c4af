// Running a target model over whole sequences.
#pragma once

#include <numeric>
#include <span>

#include "core/tensor.h"
#include "model/drafter.h"
#include "model/target_model.h"

namespace kdtree {

// Tokens [begin, end) of a sequence whose token i has slot slots[i], as a chain behind those before it.
inline void add_chain(ForwardBatch& batch, std::span<const int32_t> tokens, std::span<const int64_t> slots,
                      int64_t begin, int64_t end) {
  if (batch.qo_indptr.empty()) {
    batch.qo_indptr = {0};
    batch.kv_indptr = {0};
  }
  for (int64_t i = begin; i < end; ++i) {
    batch.tokens.push_back(tokens[static_cast<size_t>(i)]);
    batch.positions.push_back(i);
    batch.parents.push_back(static_cast<int32_t>(i - begin) - 1);
    batch.slots.push_back(slots[static_cast<size_t>(i)]);
  }
  batch.qo_indptr.push_back(static_cast<int32_t>(batch.tokens.size()));
  batch.kv_indices.insert(batch.kv_indices.end(), slots.begin(), slots.begin() + begin);
  batch.kv_indptr.push_back(static_cast<int32_t>(batch.kv_indices.size()));
}

// Logits [T, vocab] of every position, the prompt cut into chains of `chunk` tokens.
inline Result<Tensor> teacher_forced_logits(TargetModel& model, std::span<const int32_t> tokens,
                                            int64_t chunk = 16) {
  const auto count = static_cast<int64_t>(tokens.size());
  auto pool = KvPool::create(model.config().layers, count, model.config().kv_width(), DType::f32);
  KDTREE_RETURN_IF_ERROR(pool);
  const auto slots = pool->allocator().allocate(count);
  KDTREE_RETURN_IF_ERROR(slots);
  Tensor all(DType::f32, {count, model.config().vocab_size});
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const int64_t end = std::min(begin + chunk, count);
    ForwardBatch batch;
    add_chain(batch, tokens, *slots, begin, end);
    batch.logit_rows.resize(static_cast<size_t>(end - begin));
    std::iota(batch.logit_rows.begin(), batch.logit_rows.end(), 0);
    const auto out = model.forward(batch, *pool);
    KDTREE_RETURN_IF_ERROR(out);
    std::copy(out->logits.begin(), out->logits.end(),
              all.as<float>().begin() + begin * model.config().vocab_size);
  }
  return all;
}

// What `drafter` proposes behind the last token, which the target has not seen: [depth, vocab].
inline Result<Tensor> draft_logits(TargetModel& model, Drafter& drafter, std::span<const int32_t> tokens,
                                   int64_t depth) {
  model.set_feature_layers(drafter.feature_layers());
  const auto count = static_cast<int64_t>(tokens.size()) - 1;
  auto pool = KvPool::create(model.config().layers, count + 1, model.config().kv_width(), DType::f32);
  KDTREE_RETURN_IF_ERROR(pool);
  const auto slots = pool->allocator().allocate(count);
  KDTREE_RETURN_IF_ERROR(slots);
  const auto state = drafter.start();
  if (count > 0) {
    ForwardBatch batch;
    add_chain(batch, tokens, *slots, 0, count);
    const auto out = model.forward(batch, *pool);
    KDTREE_RETURN_IF_ERROR(out);
    drafter.extend(*state, tokens.first(static_cast<size_t>(count)), out->features);
  }
  const DraftQuery query[] = {{state.get(), tokens.back()}};
  const auto logits = drafter.propose(query, depth);
  Tensor out(DType::f32, {depth, model.config().vocab_size});
  std::copy(logits.begin(), logits.end(), out.as<float>().begin());
  return out;
}

// At its most.
inline Result<Tensor> draft_logits(TargetModel& model, Drafter& drafter, std::span<const int32_t> tokens) {
  return draft_logits(model, drafter, tokens, drafter.depth());
}

}  // namespace kdtree
