#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>

#include "core/scratch.h"
#include "tree/accept.h"
#include "tree/best_first.h"
#include "tree/compaction.h"
#include "tree/top_k.h"

namespace kdtree {
namespace {

// Prompt tokens of one forward pass: enough that the weights are read once for many of them, few enough that
// the part of attention that is not shared, quadratic in this, stays small.
constexpr int64_t kPrefillChunk = 64;

// Adds the seconds of its life to `to`.
class Stopwatch {
 public:
  explicit Stopwatch(double& to) : to_(to), begin_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() { to_ += seconds(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  double& to_;
  std::chrono::steady_clock::time_point begin_;
};

// Tokens a request may have in all.
int64_t total_tokens(const ModelConfig& config, const Request& request) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  return std::min(saturating_add(prompt, request.max_new_tokens), config.max_positions);
}

}  // namespace

struct Engine::Sequence {
  int64_t id = 0;
  Request request;
  std::vector<int32_t> tokens;  // prompt and what was emitted; the last one is the root of the next round
  std::vector<int64_t> slots;   // of each position, and behind them of a tree's rows
  int64_t committed = 0;        // positions whose KV is in the pool
  int64_t most_tokens = 0;      // prompt included
  std::unique_ptr<DraftState> draft;
  bool drafted = false;  // in the last round: the drafter has no backlog of committed tokens

  int64_t room() const { return most_tokens - static_cast<int64_t>(tokens.size()); }
};

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::eos:
      return "eos";
    case FinishReason::length:
      return "length";
    case FinishReason::context:
      return "context";
    default:
      return "none";
  }
}

Engine::Engine(TargetModel& target, Drafter* drafter, const EngineOptions& options, KvPool pool)
    : target_(target), drafter_(drafter), options_(options), pool_(std::move(pool)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine::~Engine() = default;

Result<Engine> Engine::create(TargetModel& target, Drafter* drafter, const EngineOptions& options,
                              std::optional<NodePolicy> policy) {
  if (options.mode != DecodeMode::autoregressive && drafter == nullptr) {
    return fail(KDTREE_INVALID_ARGUMENT, "drafter is absent, expected one for chains and trees");
  }
  if (options.kv_slots > std::numeric_limits<int32_t>::max()) {
    return fail(KDTREE_INVALID_ARGUMENT, "kv_slots is {}, expected at most {}", options.kv_slots,
                std::numeric_limits<int32_t>::max());
  }
  if (options.nodes < 0 || options.batch < 1 || options.kv_slots < 1) {
    return fail(KDTREE_INVALID_ARGUMENT,
                "nodes is {}, batch {}, kv_slots {}, expected nodes >= 0, the others >= 1", options.nodes,
                options.batch, options.kv_slots);
  }
  auto pool =
      KvPool::create(target.config().layers, options.kv_slots, target.config().kv_width(), options.kv_dtype);
  KDTREE_RETURN_IF_ERROR(pool);
  Engine engine(target, options.mode == DecodeMode::autoregressive ? nullptr : drafter, options,
                *std::move(pool));
  engine.policy_ = std::move(policy);
  return engine;
}

int64_t Engine::slots_needed(const ModelConfig& config, const EngineOptions& options,
                             const Request& request) {
  // The last token is never computed; a tree's rows begin where it would lie.
  const int64_t nodes = options.mode == DecodeMode::autoregressive ? 0 : options.nodes;
  return saturating_add(total_tokens(config, request), nodes);
}

Result<int64_t> Engine::submit(Request request) {
  const ModelConfig& config = target_.config();
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (length == 0) return fail(KDTREE_INVALID_ARGUMENT, "the prompt is empty, expected at least one token");
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] >= 0 && request.prompt[i] < config.vocab_size) continue;
    return fail(KDTREE_INVALID_ARGUMENT, "prompt[{}] is token {}, expected 0 .. {}", i, request.prompt[i],
                config.vocab_size - 1);
  }
  if (length >= config.max_positions) {
    return fail(KDTREE_INVALID_ARGUMENT,
                "the prompt has {} tokens, expected fewer than the context's {} (max_position_embeddings)",
                length, config.max_positions);
  }
  if (request.max_new_tokens < 1) {
    return fail(KDTREE_INVALID_ARGUMENT, "max_new_tokens is {}, expected at least 1", request.max_new_tokens);
  }
  if (request.nodes < 0) {
    return fail(KDTREE_INVALID_ARGUMENT, "nodes is {}, expected at least 0", request.nodes);
  }
  KDTREE_RETURN_IF_ERROR(validate(request.sampling));
  const int64_t needed = slots_needed(config, options_, request);
  if (needed > pool_.slots()) {
    return fail(KDTREE_OUT_OF_MEMORY, "the request takes {} slots of the KV pool, expected at most its {}",
                needed, pool_.slots());
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->id = static_cast<int64_t>(request_stats_.size());
  sequence->tokens = request.prompt;
  sequence->most_tokens = total_tokens(config, request);
  sequence->request = std::move(request);
  request_stats_.emplace_back();
  waiting_.push_back(std::move(sequence));
  return waiting_.back()->id;
}

bool Engine::idle() const {
  return waiting_.empty() && active_.empty();
}

const GenerationStats& Engine::request_stats(int64_t request) const {
  return request_stats_[static_cast<size_t>(request)];
}

Status Engine::step(const Emit& emit) {
  if (state_) state_ = admit_and_round(emit);
  return state_;
}

Status Engine::admit_and_round(const Emit& emit) {
  KDTREE_RETURN_IF_ERROR(admit(emit));
  return active_.empty() ? Status() : round(emit);
}

// The model may serve another engine between two passes of this one.
Result<ForwardOutput> Engine::forward() {
  target_.set_feature_layers(drafter_ != nullptr ? drafter_->feature_layers() : std::vector<int64_t>());
  return target_.forward(batch_, pool_);
}

Status Engine::admit(const Emit& emit) {
  while (!waiting_.empty() && static_cast<int64_t>(active_.size()) < options_.batch) {
    Sequence& sequence = *waiting_.front();
    int64_t shared = 0;
    const Sequence* other = longest_shared_prefix(sequence, shared);
    const int64_t needed = slots_needed(target_.config(), options_, sequence.request) - shared;
    if (needed > pool_.allocator().free_slots()) return {};
    if (other != nullptr) {
      sequence.slots.assign(other->slots.begin(), other->slots.begin() + shared);
      pool_.allocator().share(sequence.slots);
      sequence.committed = shared;
    }
    const auto own = pool_.allocator().allocate(needed);
    KDTREE_RETURN_IF_ERROR(own);
    sequence.slots.insert(sequence.slots.end(), own->begin(), own->end());
    if (drafter_ != nullptr) {
      sequence.draft = other != nullptr ? drafter_->fork(*other->draft, shared) : drafter_->start();
    }
    active_.push_back(std::move(waiting_.front()));
    waiting_.erase(waiting_.begin());
    KDTREE_RETURN_IF_ERROR(start(*active_.back(), emit));
    drop_finished();
  }
  return {};
}

// The active request that has most of the prompt's first tokens in the pool. The prompt's last token is
// computed in any case: its logits give the first new one.
const Engine::Sequence* Engine::longest_shared_prefix(const Sequence& sequence, int64_t& length) const {
  const Sequence* best = nullptr;
  for (const auto& other : active_) {
    const auto most = std::min(other->committed, static_cast<int64_t>(sequence.request.prompt.size()) - 1);
    const auto end = sequence.tokens.begin() + most;
    const auto differs = std::mismatch(sequence.tokens.begin(), end, other->tokens.begin());
    const int64_t common = differs.first - sequence.tokens.begin();
    if (common > length) {
      length = common;
      best = other.get();
    }
  }
  return best;
}

// Computes the prompt and emits the first token.
Status Engine::start(Sequence& sequence, const Emit& emit) {
  KDTREE_RETURN_IF_ERROR(prefill(sequence));
  const auto position = static_cast<int64_t>(sequence.tokens.size());
  const auto vocab = static_cast<size_t>(target_.config().vocab_size);
  const auto token =
      sample_token(std::span<const float>(last_logits_).first(vocab), sequence.request.sampling,
                   static_cast<uint64_t>(sequence.id), static_cast<uint64_t>(position), sampling_);
  if (!token)
    return with_context(token.error(), fmt::format("request {}: position {}: ", sequence.id, position));
  sequence.tokens.push_back(*token);
  const int32_t tokens[] = {*token};
  deliver(sequence, tokens, emit);
  return {};
}

Status Engine::prefill(Sequence& sequence) {
  const Stopwatch stopwatch(times_.prefill);
  const auto length = static_cast<int64_t>(sequence.request.prompt.size());
  while (sequence.committed < length) {
    const int64_t begin = sequence.committed;
    const int64_t end = std::min(begin + kPrefillChunk, length);
    batch_.clear();
    for (int64_t i = begin; i < end; ++i) {
      batch_.tokens.push_back(sequence.tokens[static_cast<size_t>(i)]);
      batch_.positions.push_back(i);
      batch_.parents.push_back(static_cast<int32_t>(i - begin) - 1);
      batch_.slots.push_back(sequence.slots[static_cast<size_t>(i)]);
    }
    batch_.qo_indptr = {0, static_cast<int32_t>(end - begin)};
    batch_.kv_indptr = {0, static_cast<int32_t>(begin)};
    batch_.kv_indices.assign(sequence.slots.begin(), sequence.slots.begin() + begin);
    if (end == length) batch_.logit_rows = {static_cast<int32_t>(end - begin) - 1};
    const auto out = forward();
    KDTREE_RETURN_IF_ERROR(out);
    if (sequence.draft != nullptr) drafter_->extend(*sequence.draft, batch_.tokens, out->features);
    if (end == length) last_logits_.assign(out->logits.begin(), out->logits.end());
    sequence.committed = end;
  }
  return {};
}

double Engine::mean_context() const {
  double sum = 0.0;
  for (const auto& sequence : active_)
    sum += static_cast<double>(sequence->committed);
  return sum / static_cast<double>(active_.size());
}

Status Engine::round(const Emit& emit) {
  KDTREE_RETURN_IF_ERROR(draft());
  {
    const Stopwatch stopwatch(times_.compile);
    compile();
  }
  const double context = mean_context();
  double verify_seconds = 0.0;
  Result<ForwardOutput> out;
  {
    const Stopwatch stopwatch(verify_seconds);
    target_.set_verify_hook(watch_verify_);
    out = forward();
    target_.set_verify_hook({});
  }
  KDTREE_RETURN_IF_ERROR(out);
  times_.verify += verify_seconds;
  if (policy_) policy_->observe_verify(batch_.rows(), context, verify_seconds * 1e6);
  for (size_t i = 0; i < active_.size(); ++i)
    KDTREE_RETURN_IF_ERROR(accept(i, batch_.qo_indptr[i], *out, emit));
  drop_finished();
  return {};
}

// One tree for each active request: of its root alone where nothing is drafted.
Status Engine::draft() {
  trees_.clear();
  for (const auto& sequence : active_)
    trees_.push_back({{sequence->tokens.back()}, {-1}, {0}, {0.0}});
  const bool drafts = drafter_ != nullptr && options_.nodes > 0 && (!policy_ || policy_->should_draft());
  if (!drafts) {
    for (const auto& sequence : active_)
      sequence->drafted = false;
    return {};
  }
  std::vector<DraftQuery> queries;
  std::vector<size_t> drafting;
  bool backlog = false;
  for (size_t i = 0; i < active_.size(); ++i) {
    if (active_[i]->room() < 2) continue;  // the root's own token ends it
    if (most_nodes(*active_[i]) == 0) continue;
    queries.push_back({active_[i]->draft.get(), active_[i]->tokens.back()});
    drafting.push_back(i);
    backlog = backlog || !active_[i]->drafted;
    active_[i]->drafted = true;
  }
  if (queries.empty()) return {};
  const int64_t depth = draft_depth(drafting);
  double seconds = 0.0;
  std::span<const float> logits;
  {
    const Stopwatch stopwatch(seconds);
    logits = drafter_->propose(queries, depth);
  }
  times_.draft += seconds;
  const Stopwatch stopwatch(times_.build);
  const auto size = static_cast<size_t>(depth * target_.config().vocab_size);
  for (size_t q = 0; q < drafting.size(); ++q) {
    auto tree = build(*active_[drafting[q]], logits.subspan(q * size, size), depth);
    if (!tree) return with_context(tree.error(), "drafter: ");
    trees_[drafting[q]] = *std::move(tree);
  }
  if (policy_) {
    policy_->observe_draft(static_cast<int64_t>(queries.size()), depth, seconds * 1e6, backlog);
    const auto keep = policy_->choose(trees_, mean_context(), depth);
    for (size_t i = 0; i < trees_.size(); ++i)
      trees_[i] = part_of(trees_[i], keep[i]);
  }
  return {};
}

// As many positions as the trees may be deep, or as the policy wants.
int64_t Engine::draft_depth(std::span<const size_t> drafting) {
  int64_t depth = 0;
  if (policy_) {
    depth = policy_->draft_depth();
  } else {
    for (const size_t i : drafting)
      depth = std::max(depth, std::min<int64_t>(most_nodes(*active_[i]), active_[i]->room() - 1));
  }
  return std::clamp(depth, drafter_->least_depth(), drafter_->depth());
}

int32_t Engine::most_nodes(const Sequence& sequence) const {
  return std::min(sequence.request.nodes, options_.nodes);
}

// The tree of the drafter's logits [drafted, vocab]: no deeper than what may still be emitted.
Result<DraftTree> Engine::build(const Sequence& sequence, std::span<const float> logits, int64_t drafted) {
  const auto vocab = static_cast<int32_t>(target_.config().vocab_size);
  const auto depth = static_cast<int32_t>(std::min(drafted, sequence.room() - 1));
  const int32_t nodes = most_nodes(sequence);
  const int32_t k = options_.mode == DecodeMode::chain ? 1 : std::min(nodes, vocab);
  const auto count = static_cast<size_t>(depth) * static_cast<size_t>(k);
  candidate_tokens_.resize(count);
  candidate_log_probs_.resize(count);
  for (int32_t d = 0; d < depth; ++d) {
    const auto at = static_cast<size_t>(d) * static_cast<size_t>(k);
    Scratch needed;
    top_k_scratch(k, needed);
    workspace_.resize(std::max(workspace_.size(), static_cast<size_t>(needed.used() + Scratch::kAlignment)));
    Scratch scratch = Scratch::inside(workspace_);
    const auto row =
        logits.subspan(static_cast<size_t>(d) * static_cast<size_t>(vocab), static_cast<size_t>(vocab));
    const Status found = top_k_row(
        row.data(), DType::f32, vocab, std::span(candidate_tokens_).subspan(at, static_cast<size_t>(k)),
        std::span(candidate_log_probs_).subspan(at, static_cast<size_t>(k)), scratch);
    if (!found) return with_context(found.error(), fmt::format("position {}: ", d));
  }
  return build_best_first({candidate_tokens_.data(), candidate_log_probs_.data(), depth, k},
                          sequence.tokens.back(), nodes);
}

void Engine::compile() {
  batch_.clear();
  batch_.qo_indptr = {0};
  batch_.kv_indptr = {0};
  for (size_t i = 0; i < active_.size(); ++i) {
    const Sequence& sequence = *active_[i];
    const DraftTree& tree = trees_[i];
    const auto start = sequence.slots.begin() + sequence.committed;
    batch_.tokens.insert(batch_.tokens.end(), tree.token.begin(), tree.token.end());
    batch_.parents.insert(batch_.parents.end(), tree.parent.begin(), tree.parent.end());
    for (const int32_t depth : tree.depth)
      batch_.positions.push_back(sequence.committed + depth);
    batch_.slots.insert(batch_.slots.end(), start, start + tree.size());
    batch_.kv_indices.insert(batch_.kv_indices.end(), sequence.slots.begin(), start);
    batch_.qo_indptr.push_back(static_cast<int32_t>(batch_.tokens.size()));
    batch_.kv_indptr.push_back(static_cast<int32_t>(batch_.kv_indices.size()));
  }
  batch_.logit_rows.resize(batch_.tokens.size());
  std::iota(batch_.logit_rows.begin(), batch_.logit_rows.end(), 0);
}

Status Engine::accept(size_t index, int64_t first_row, const ForwardOutput& out, const Emit& emit) {
  Sequence& sequence = *active_[index];
  const DraftTree& tree = trees_[index];
  const auto vocab = static_cast<size_t>(target_.config().vocab_size);
  const auto logits =
      out.logits.subspan(static_cast<size_t>(first_row) * vocab, static_cast<size_t>(tree.size()) * vocab);
  std::vector<int32_t> path(tree.parent.size()), emitted(tree.parent.size());
  Result<Acceptance> acceptance;
  {
    const Stopwatch stopwatch(times_.accept);
    const TargetToken target_token = [&](int32_t node) -> Result<int32_t> {
      const int64_t position = sequence.committed + tree.depth[static_cast<size_t>(node)] + 1;
      auto token =
          sample_token(logits.subspan(static_cast<size_t>(node) * vocab, vocab), sequence.request.sampling,
                       static_cast<uint64_t>(sequence.id), static_cast<uint64_t>(position), sampling_);
      if (!token) {
        return with_context(token.error(), fmt::format("request {}: position {}: ", sequence.id, position));
      }
      return token;
    };
    const auto most = std::min<int64_t>(sequence.room(), std::numeric_limits<int32_t>::max());
    acceptance = accept_path(tree.parent, tree.token, target_token,
                             {target_.config().eos_tokens, static_cast<int32_t>(most)}, path, emitted);
  }
  KDTREE_RETURN_IF_ERROR(acceptance);
  path.resize(static_cast<size_t>(acceptance->count));
  emitted.resize(path.size());
  const int32_t deepest = *std::max_element(tree.depth.begin(), tree.depth.end());
  for (GenerationStats* stats : {&stats_, &request_stats_[static_cast<size_t>(sequence.id)]})
    stats->add_round(tree.size(), deepest, acceptance->count);
  if (policy_) policy_->observe_acceptance(tree, path);
  if (watch_) watch_({sequence.id, sequence.request, sequence.committed, tree, logits, path, emitted});
  {
    const Stopwatch stopwatch(times_.commit);
    KDTREE_RETURN_IF_ERROR(commit(sequence, first_row, path, out.features));
  }
  sequence.tokens.insert(sequence.tokens.end(), emitted.begin(), emitted.end());
  deliver(sequence, emitted, emit);
  return {};
}

// Moves the path's rows into place.
Status Engine::move_rows(const Sequence& sequence, int64_t first_row, std::span<const int32_t> path) {
  const std::span<const int64_t> rows(&batch_.slots[static_cast<size_t>(first_row)],
                                      static_cast<size_t>(path.back()) + 1);
  std::vector<int64_t> from(path.size()), to(path.size()), destinations(path.size());
  const auto moves = plan_commit({.path = path,
                                  .draft_slots = IndexArray(rows.data(), DType::i64),
                                  .nodes = static_cast<int64_t>(rows.size()),
                                  .page_table = {},
                                  .page_size = 1,
                                  .start = sequence.committed},
                                 from, to, destinations);
  KDTREE_RETURN_IF_ERROR(moves);
  const auto count = static_cast<size_t>(*moves);
  pool_.move(std::span(from).first(count), std::span(to).first(count));
  return {};
}

// Makes the path's rows part of the prefix and hands their features to the drafter.
Status Engine::commit(Sequence& sequence, int64_t first_row, std::span<const int32_t> path,
                      std::span<const float> features) {
  if (options_.move_rows) {
    KDTREE_RETURN_IF_ERROR(move_rows(sequence, first_row, path));
  } else {
    // Each accepted row's slot comes before those of the rows that were not.
    const auto slots = sequence.slots.begin() + sequence.committed;
    for (size_t i = 0; i < path.size(); ++i)
      std::rotate(slots + static_cast<int64_t>(i), slots + path[i], slots + path[i] + 1);
  }
  sequence.committed += static_cast<int64_t>(path.size());
  if (sequence.draft == nullptr) return {};

  const auto width = static_cast<int64_t>(features.size()) / batch_.rows();
  features_.clear();
  std::vector<int32_t> tokens;
  for (const int32_t node : path) {
    const int64_t row = first_row + node;
    tokens.push_back(batch_.tokens[static_cast<size_t>(row)]);
    features_.insert(features_.end(), features.begin() + row * width, features.begin() + (row + 1) * width);
  }
  drafter_->extend(*sequence.draft, tokens, features_);
  return {};
}

// Hands out new tokens, which are the sequence's last, and ends the request where they end it.
void Engine::deliver(Sequence& sequence, std::span<const int32_t> tokens, const Emit& emit) {
  const ModelConfig& config = target_.config();
  FinishReason reason = FinishReason::none;
  if (std::find(config.eos_tokens.begin(), config.eos_tokens.end(), tokens.back()) !=
      config.eos_tokens.end()) {
    reason = FinishReason::eos;
  } else if (sequence.room() == 0) {
    const auto wanted =
        saturating_add(static_cast<int64_t>(sequence.request.prompt.size()), sequence.request.max_new_tokens);
    reason = sequence.most_tokens == wanted ? FinishReason::length : FinishReason::context;
  }
  const bool goes_on = emit({sequence.id, tokens, reason});
  if (reason == FinishReason::none && goes_on) return;
  pool_.allocator().release(sequence.slots);
  sequence.slots.clear();
}

void Engine::drop_finished() {
  std::erase_if(active_, [](const auto& sequence) { return sequence->slots.empty(); });
}

}  // namespace kdtree
